"""Handling on the loop's thread, for synchronous handlers of single records.

Polled records are handled one partition after another, in offset order. A record's writes are sent immediately, and
later records are handled while the writes await acknowledgement. The loop waits for acknowledgements only if it is
idle, stops, or has too many unacknowledged bytes. An offset is committable once all records before it are handled and
their writes are acknowledged (`progress`).

Some work cannot wait for the end of a long batch: commits, polls that keep the membership, and an orderly stop. The
loop does this work about once a second, between two records.

A partition whose writes fail or time out is held: it is paused and reported, and its failed writes are sent again with
back-off. The other partitions continue. When the breaker opens (`pacing`), all partitions are paused. The consumer
seeks back to the last failed record, and later continues from this record.
"""

import os
from collections.abc import Sequence
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.handlers.call import end_forked_child
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.loop import POLL_TIMEOUT_S, Loop
from fleet_consumer.worker.consume.outcomes import Handle, PassedOver
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.progress import PartitionProgress, Partitions
from fleet_consumer.worker.consume.writing import ACK_POLL_S, ACK_WAIT_S
from fleet_consumer.worker.stats import Stats

TIMED_FROM_S: Final = 100e-6
"""If a run took at least this many seconds per record on average, the records of the next run are timed one by one.
Reading the clock then costs less than 1 % of the time."""
SHORT_RUN: Final = 16
"""A run of at most this many records is always timed record by record, because fetching it costs much more."""


class CallTimes:
    """Measures handler calls on the consume loop's thread, for the histogram of their durations and the busy time.

    Reading the clock takes 127 ns, and updating a histogram bucket takes 1.7 µs (measured). Together, this is about ten
    times the duration of a call of an empty handler. The records of a long run are therefore timed one by one only if
    those of the previous run were slow. Otherwise the run is timed as a whole, and the mean duration is counted for
    each record. The histogram stays exact, because all durations below 0.1 ms are in the first bucket. Busy time is
    measured over whole runs.
    """

    def __init__(self, handle: Handle, stats: Stats, clock: Clock) -> None:
        self._handle = handle
        self._stats = stats
        self._histogram = stats.handling
        self._now = clock.monotonic
        self._slow = True
        self._each = self._counts = True
        self._began = self._paused = 0.0

    def begin_run(self, count: int, instead: Handle | None = None) -> Handle:
        """Begin a run of `count` records, and return the function to call for each record.

        The function is the handler, or `instead` if given. Calls of `instead` are not timed.
        """
        self._counts = instead is None
        self._each = self._slow or count <= SHORT_RUN
        self._began = now = self._now()
        self._stats.busy.call_began(now)
        return instead or (self._timed if self._each else self._handle)

    def pause(self) -> None:
        """Stop the time of the run until `resume`, because the loop handles no records in between."""
        self._paused = now = self._now()
        self._stats.busy.end(now)

    def resume(self) -> None:
        now = self._now()
        self._began += now - self._paused
        self._stats.busy.call_began(now)

    def end(self, count: int) -> None:
        """End the run, in which `count` records were handled."""
        now = self._now()
        self._stats.busy.end(now)
        if not (count and self._counts):
            return
        mean = (now - self._began) / count
        self._slow = mean >= TIMED_FROM_S
        if not self._each:
            self._histogram.observe(mean, count)

    def _timed(self, record: Record) -> Any:
        before = self._now()
        try:
            return self._handle(record)
        finally:
            self._histogram.observe(self._now() - before)


class InlineRounds:
    """Rounds of a loop that calls the handler on its own thread."""

    def __init__(self, loop: Loop, parts: LoopParts) -> None:
        self._loop = loop
        self._parts = parts
        self._times = CallTimes(parts.handle, parts.stats, parts.clock)
        self._outcomes = parts.outcomes
        self._pacing = parts.pacing
        self._writing = parts.writing
        self._stats = parts.stats
        self._watch = parts.watch
        self._clock = parts.clock
        self._pid = os.getpid()
        self._batch: dict[TopicPartition, PartitionProgress] = {}
        # True if the current batch was abandoned, so its unhandled records must be read again.
        self._stayed = False
        self._wait_s = 0.0

    @property
    def in_flight(self) -> int:
        return int(self._watch.record is not None)

    @property
    def busy(self) -> bool:
        return False

    def receive(self) -> Records:
        awaits = self._writing.open
        most_s = ACK_POLL_S if awaits else POLL_TIMEOUT_S
        self._wait_s = self._parts.intake.before_poll(self._loop.partitions, most_s)
        limit = 1 if self._loop.pace is Pace.PROBE else None
        return self._loop.poll(0.0 if awaits else self._wait_s, max_records=limit)

    def handle(self, runs: list[Run], careful: list[Run]) -> None:
        if runs and not self._loop.draining:
            self._handle_batch(runs)
        for run in careful:
            self._handle_with_care(run)
        self._writing.follow(ACK_WAIT_S if self._loop.draining else self._wait_s if self._loop.idle else 0.0)

    def drain(self) -> None:
        """Do nothing: no record is handled between two rounds, and `finish` waits for the writes at the revocation."""

    def has_in_hand(self, partition: PartitionProgress) -> bool:
        return False

    def finish(self, going: Partitions, timeout_s: float) -> None:
        self._writing.finish(going, timeout_s)

    def drop_partitions(self, gone: Partitions) -> None:
        for topic_partition in gone:
            self._batch.pop(topic_partition, None)

    def _begin(self, run: Run) -> PartitionProgress:
        """Add a run to the current batch and return its partition's current progress.

        A partition may be revoked and assigned again while one of its runs waits to be handled. The partition then has
        a new progress object, and is read again from the committed offset. Handling the old run as well would move the
        new progress past unhandled records.
        """
        partition = self._loop.partitions[run.topic_partition]
        if run.topic_partition not in self._batch:
            _take_up(partition, run)
        self._batch[run.topic_partition] = partition
        return partition

    def _handle_batch(self, runs: Sequence[Run], error: Exception | None = None) -> None:
        """Handle a batch of runs. If `error` is given, all records fail with it and the handler is not called."""
        parts = [part for run in runs for part in self._parts.skips.parts(run)]
        work = [(run, self._begin(run), error or skipped) for run, skipped in parts]
        owns = self._loop.owns
        try:
            for run, partition, instead in work:
                if owns(partition) and not self._handle_run(run, partition, instead):
                    break
        except BaseException:
            self._times.pause()  # this error ends the session
            raise
        self._watch.record = None
        batch, self._batch = self._batch, {}
        self._stats.batches += 1
        self._writing.expect(batch)
        if self._stayed:
            self._stayed = False
            for partition in dict.fromkeys(partition for _, partition, _ in work):
                if owns(partition):
                    self._seek_back(partition)
            self._loop.adjust_pace()

    def _handle_with_care(self, run: Run) -> None:
        """Handle a run in chunks of a few records. A crash marker with a chunk's size is committed before the chunk."""
        topic_partition, records = run.topic_partition, run.records
        partition = self._loop.partitions.get(topic_partition)
        if partition is None:
            return  # the partition was revoked while other records of this poll were handled
        position = self._parts.consumer.position(topic_partition)
        if position is not None and position <= records[0].offset:
            return  # the consumer was set back to an earlier run of this poll, and reads this run again
        _take_up(partition, run)
        markers = self._loop.crash_markers
        while records and not self._loop.draining:
            self._writing.follow(ACK_WAIT_S)
            if partition.unfinished:
                break  # some writes are not acknowledged yet
            count, error = markers.admit_records(partition, records)
            if not count:
                break
            part = Run(topic_partition, records[:count])
            began, until = self._clock.monotonic(), part.next_offset
            self._handle_batch([part], error)
            if not self._loop.owns(partition):
                return
            markers.count_handled(partition, count, self._clock.monotonic() - began)
            if partition.position != until:
                break
            records = records[count:]
        markers.write({topic_partition: partition}, self._loop.committing.breaker_state)
        if records:
            self._seek_back(partition)

    def _handle_run(self, run: Run, partition: PartitionProgress, error: Exception | None = None) -> bool:
        """Handle a run's records in order, or fail all of them with `error` if given.

        Returns False if the whole batch must be abandoned: the worker stops, the breaker opened, or the skip list
        changed. Hot path: a record without outputs costs one store, one call and one test.
        """
        watch, outcomes, pacing, outputs_of = self._watch, self._outcomes, self._pacing, self._outcomes.outputs_of
        records, times = run.records, self._times
        handle = times.begin_run(len(records), None if error is None else self._raising(error))
        # Number of handled records that are not counted as done at the end: failures, records with outputs, and records
        # that were counted earlier.
        apart = 0
        after = 0  # index after the last failed record; later successes are not yet counted by the breaker
        for record in records:
            watch.record = record
            try:
                answer = handle(record)
                if answer is not None:
                    answer = outputs_of(answer)
            except BaseException as error:  # also SystemExit: an application's exit must not end the worker
                place = _place(records, record, after)
                pacing.succeeded(place - after)
                after = place + 1
                if not outcomes.raised(partition, record, error):
                    self._stayed = True
                    times.end(place + 1)
                    self._count_handled(records, place, partition, apart)
                    return False
                apart += 1
            else:
                # Outside the try block, because an error in `answered` is not a failure of the record.
                if answer:
                    outcomes.answered(partition, record, answer)
                    apart += 1
            if watch.due:
                count = _place(records, record, max(0, after - 1)) + 1
                self._count_handled(records, count, partition, apart)
                apart = count
                goes_on = self._check_meanwhile()
                if not goes_on or not self._loop.owns(partition):
                    pacing.succeeded(count - after)
                    times.end(count)
                    return goes_on
        pacing.succeeded(len(records) - after)
        times.end(len(records))
        self._count_handled(records, len(records), partition, apart)
        return True

    def _raising(self, error: Exception) -> Handle:
        """Return a function that raises `error` in place of the handler.

        As with the handler, duplicates are skipped, and the first copy of a record is remembered. Otherwise a later
        copy of a failed record would be handled.
        """
        present = self._parts.intake.present

        def handle(record: Record) -> Any:
            if present is not None and present(record) is None:
                raise PassedOver
            raise error

        return handle

    def _count_handled(self, records: Sequence[Record], count: int, partition: PartitionProgress, apart: int) -> None:
        """Note that the first `count` records have been handled. All but `apart` of them count as done."""
        if count:
            last = as_read(records[count - 1])
            partition.handled(last.offset, last.leader_epoch)
            partition.timestamp = last.timestamp
        self._stats.done += count - apart

    def _seek_back(self, partition: PartitionProgress) -> None:
        """Seek back to the first unhandled record of an abandoned batch.

        No seek is done if the consumer's position is lower than this record, or is being looked up. Such a position
        belongs to another log: the topic was recreated or truncated after the poll.
        """
        position = self._parts.consumer.position(partition.topic_partition)
        if partition.next_offset is not None and position is not None and partition.next_offset < position:
            self._parts.consumer.seek(partition.topic_partition, partition.next_offset)

    def _check_meanwhile(self) -> bool:
        """Do urgent work between two records of a long batch. Returns False if the batch must be abandoned."""
        self._times.pause()
        goes_on = self._see_to_others()
        self._times.resume()
        return goes_on

    def _see_to_others(self) -> bool:
        """Poll without fetching records, process acknowledgements and commit. Returns False if the batch must be
        abandoned.

        While the session is unconfirmed, no further record is handled, because another member may own the partition.
        The worker waits until a heartbeat succeeds or the partitions are lost. After a heartbeat, it continues the
        batch. A stopping worker does not wait.
        """
        end_forked_child(self._pid)
        self._watch.record = None
        self._watch.due = False
        self._loop.poll(0.0, max_records=0)
        while not self._parts.consumer.holds_session() and self._loop.partitions and not self._loop.draining:
            self._loop.poll(POLL_TIMEOUT_S, max_records=0)
        self._writing.expect(self._batch)
        self._writing.follow(0.0)
        if self._parts.skips.reload():
            self._stayed = True  # the current batch was divided by the previous skip list
        self._loop.come_round()
        unconfirmed = self._loop.draining and not self._parts.consumer.holds_session()
        return not (unconfirmed or self._loop.drain_over or self._stayed)


def _take_up(partition: PartitionProgress, run: Run) -> None:
    """Move the partition's progress to the first record of a polled run, even if the last poll ended at another offset.

    If the run begins at a higher offset, the offsets in between were deleted or skipped. No seek or commit may go back
    to them. If the run begins at a lower offset, the log was truncated.
    """
    first = as_read(run.records[0])
    partition.handled(first.offset - 1, first.leader_epoch)


def _place(records: Sequence[Record], record: Record, start: int) -> int:
    """Return the index of `record`, searched by identity from `start` on. `==` would compare the content of records."""
    return next(place for place in range(start, len(records)) if records[place] is record)
