"""Handling on the loop's own thread, of synchronous handlers that take one record at a time.

A poll's records are handled partition by partition in offset order. Their writes are sent at once, and the next polls'
records are handled meanwhile. The loop waits for acknowledgements only if it has nothing else to do, has too much on
its way, or is to stop. An offset is committable once everything before it is handled and written (`progress`), so
nothing is committed too early. Between two records, about once a second, the loop looks after what cannot wait for the
end of a long batch: the poll that keeps the membership, commits, an ordered stop.

A partition whose writes cannot be acknowledged stands still ("held"): it is paused, tried again with backoff, and
shown. The other partitions go on. When too much fails (`pacing`), all stand still: the record that failed last and all
behind it in hand are sought back to, and come again.
"""

from __future__ import annotations

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
from fleet_consumer.worker.consume.writing import ACK_LOOK_S, ACK_WAIT_S
from fleet_consumer.worker.stats import Stats

TIMED_FROM_S: Final = 100e-6
"""The mean of a run from which on the next one's records are timed one by one: the clock is below a hundredth."""
SHORT_RUN: Final = 16
"""Runs up to this length are always timed one by one: the poll before them costs much more."""


class CallTimes:
    """Durations of a handler's calls, for the histogram, and of all handling, on the consume loop's thread.

    A clock around each call would cost a handler that does nothing a tenth of its throughput. So records of a long run
    are timed one by one only while they take longer than the clock matters; otherwise the run is, and each of its
    records counts as taking its share. The worker is busy for the time of whole runs, which costs no clock of its own.
    """

    def __init__(self, handle: Handle, stats: Stats, clock: Clock) -> None:
        self._handle = handle
        self._stats = stats
        self._histogram = stats.handling
        self._now = clock.monotonic
        self._slow = True
        self._each = self._counts = True
        self._began = self._paused = 0.0

    def begin(self, count: int, instead: Handle | None = None) -> Handle:
        """Begin a run of so many records; returns what to call for each: the handler, or the untimed `instead`."""
        self._counts = instead is None
        self._each = self._slow or count <= SHORT_RUN
        self._began = now = self._now()
        self._stats.busy.begin(now)
        return instead or (self._timed if self._each else self._handle)

    def pause(self) -> None:
        """Leave out the time until `resume`, in which the loop does something else than handling."""
        self._paused = now = self._now()
        self._stats.busy.end(now)

    def resume(self) -> None:
        now = self._now()
        self._began += now - self._paused
        self._stats.busy.begin(now)

    def end(self, count: int) -> None:
        """The run is over, `count` records of it were handled."""
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
    """The rounds of a loop that calls the handler itself."""

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
        # Whether a record of the batch in hand has to stay.
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
        most_s = ACK_LOOK_S if awaits else POLL_TIMEOUT_S
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
        """Nothing is in hand between two rounds; writes are seen through when partitions are revoked."""

    def has_in_hand(self, partition: PartitionProgress) -> bool:
        return False

    def finish(self, going: Partitions, timeout_s: float) -> None:
        self._writing.finish(going, timeout_s)

    def forget(self, gone: Partitions) -> None:
        for topic_partition in gone:
            self._batch.pop(topic_partition, None)

    def _begin(self, run: Run) -> PartitionProgress:
        """Begin a run: it joins the batch in hand, bound to its partition's progress of now.

        Should the partition be taken away and come back while the run waits its turn, it comes back with other
        progress: reading starts again at the committed offset, and handling the old run as well would move the new
        progress past records that nobody has handled.
        """
        partition = self._loop.partitions[run.topic_partition]
        if run.topic_partition not in self._batch:
            _take_up(partition, run)
        self._batch[run.topic_partition] = partition
        return partition

    def _handle_batch(self, runs: Sequence[Run], error: Exception | None = None) -> None:
        """Handle a batch; with an `error` its records fail with it, and are not handed out."""
        parts = [part for run in runs for part in self._parts.skips.parts(run)]
        work = [(run, self._begin(run), error or skipped) for run, skipped in parts]
        owns = self._loop.owns
        try:
            for run, partition, instead in work:
                if owns(partition) and not self._handle_run(run, partition, instead):
                    break
        except BaseException:
            self._times.pause()  # it ends the session
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
        """Hand out a run a few records at a time, and commit before each time how many are going to be in hand."""
        topic_partition, records = run.topic_partition, run.records
        partition = self._loop.partitions.get(topic_partition)
        if partition is None:
            return  # it went while others of this poll were handled
        position = self._parts.consumer.position(topic_partition)
        if position is not None and position <= records[0].offset:
            return  # it comes again: an earlier run of this poll was sought back to
        _take_up(partition, run)
        notes = self._loop.notes
        while records and not self._loop.draining:
            self._writing.follow(ACK_WAIT_S)
            if partition.unfinished:
                break  # what was written is not acknowledged
            count, error = notes.take(partition, records)
            if not count:
                break
            part = Run(topic_partition, records[:count])
            began, until = self._clock.monotonic(), part.next_offset
            self._handle_batch([part], error)
            if not self._loop.owns(partition):
                return
            notes.came_back(partition, count, self._clock.monotonic() - began)
            if partition.position != until:
                break
            records = records[count:]
        notes.write({topic_partition: partition}, self._loop.committing.mark)
        if records:
            self._seek_back(partition)

    def _handle_run(self, run: Run, partition: PartitionProgress, error: Exception | None = None) -> bool:
        """Handle a run's records in order; with an `error` they fail with it. False when the whole batch is to be given
        up: the worker stops, the breaker opens, or other records are to be passed by.

        This is the hot path: what it does for a record that writes nothing is one store, one call and one test.
        """
        watch, outcomes, pacing, outputs_of = self._watch, self._outcomes, self._pacing, self._outcomes.outputs_of
        records, times = run.records, self._times
        handle = times.begin(len(records), None if error is None else self._raising(error))
        # Records that count as something else than done, or once what they wrote is acknowledged, and those counted.
        apart = 0
        after = 0  # the place behind the last record that failed; the successes from there on are not counted yet
        for record in records:
            watch.record = record
            try:
                answer = handle(record)
                if answer is not None:
                    answer = outputs_of(answer)
            except BaseException as error:  # SystemExit of an application must not end the worker either
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
                # Not where the handler's errors are caught: what fails here is no failure of the record.
                if answer:
                    outcomes.answered(partition, record, answer)
                    apart += 1
            if watch.due:
                count = _place(records, record, max(0, after - 1)) + 1
                self._count_handled(records, count, partition, apart)
                apart = count
                goes_on = self._look_around()
                if not goes_on or not self._loop.owns(partition):
                    pacing.succeeded(count - after)
                    times.end(count)
                    return goes_on
        pacing.succeeded(len(records) - after)
        times.end(len(records))
        self._count_handled(records, len(records), partition, apart)
        return True

    def _raising(self, error: Exception) -> Handle:
        """The call for records that fail without their handler. Only one that the handler would have got fails: a copy
        is passed over, and the first of several is noted, or the next one would be handled in its place."""
        present = self._parts.intake.present

        def handle(record: Record) -> Any:
            if present is not None and present(record) is None:
                raise PassedOver
            raise error

        return handle

    def _count_handled(self, records: Sequence[Record], count: int, partition: PartitionProgress, apart: int) -> None:
        """The first `count` of these have been through the handler."""
        if count:
            last = as_read(records[count - 1])
            partition.handled(last.offset, last.leader_epoch)
            partition.timestamp = last.timestamp
        self._stats.done += count - apart

    def _seek_back(self, partition: PartitionProgress) -> None:
        """Records of a batch that was given up come again: polls go on at the first that nobody has handled.

        Never ahead: a position that is lower, or being looked up, is that of another log. The consumer has gone over to
        it since these records were polled, because the topic was made anew or its log was cut.
        """
        position = self._parts.consumer.position(partition.topic_partition)
        if partition.next_offset is not None and position is not None and partition.next_offset < position:
            self._parts.consumer.seek(partition.topic_partition, partition.next_offset)

    def _look_around(self) -> bool:
        """Interrupt the handling between two records of a long batch. False to give the batch up."""
        self._times.pause()
        goes_on = self._see_to_others()
        self._times.resume()
        return goes_on

    def _see_to_others(self) -> bool:
        """Poll without taking records, settle, commit. False to give the batch up.

        While the session is in doubt no further record is handled: another member may own it. Either a heartbeat
        gets through, and the batch goes on, or the partitions are lost. A stop waits for neither.
        """
        end_forked_child(self._pid)
        self._watch.record = None
        self._watch.due = False
        self._loop.poll(0.0, max_records=0)
        while not self._parts.consumer.holds_session() and self._loop.partitions and not self._loop.draining:
            self._loop.poll(POLL_TIMEOUT_S, max_records=0)
        self._writing.expect(self._batch)
        self._writing.follow(0.0)
        if self._parts.skips.look():
            self._stayed = True  # the batch in hand was divided by an older list
        self._loop.come_round()
        in_doubt = self._loop.draining and not self._parts.consumer.holds_session()
        return not (in_doubt or self._loop.drain_over or self._stayed)


def _take_up(partition: PartitionProgress, run: Run) -> None:
    """Make the first record of a poll's run the next to take up, wherever the last poll ended.

    Neither a seek back nor a commit may go where that was: offsets between were deleted or passed by, and where the
    first record lies lower, the log was cut.
    """
    first = as_read(run.records[0])
    partition.handled(first.offset - 1, first.leader_epoch)


def _place(records: Sequence[Record], record: Record, start: int) -> int:
    """The place of `record` in its run, from `start` on: by identity, for records compare by content."""
    return next(place for place in range(start, len(records)) if records[place] is record)
