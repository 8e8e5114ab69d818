"""The consume loop: poll, handle, write, commit, in an order that loses nothing.

All of it runs on one thread, the one that polls. This is the way of synchronous handlers that take one record at a
time; `concurrent` is the way of all others, and stays out of this one, where every step is paid for by each record.
A poll's records are handled partition by partition in offset order; what they write is sent at once, and while it is
on its way the next polls' records are handled, as long as there are any: only a loop that has nothing else to do, has
too much on its way or is to stop waits for acknowledgements. An offset is committable once everything before it is
handled and written (`progress`), so what goes on meanwhile commits nothing too early. Between two records, about once a
second, the loop looks after what cannot wait for the end of a long batch: the poll that keeps the membership, commits,
an ordered stop.

A partition whose writes cannot be acknowledged stands still ("held"): it is paused, tried again with backoff, and
shown. The other partitions go on. When too much fails (`pacing`), all stand still: the record that failed last and all
behind it in hand are sought back to, and come again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.handlers.forked import end_forked_child
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Gap, Record, Records, Run, TopicPartition
from fleet_consumer.worker.breaker.pacing import Pace, Pacing
from fleet_consumer.worker.consume.intake import Intake, note_start
from fleet_consumer.worker.consume.notes import Notes
from fleet_consumer.worker.consume.outcomes import Handle, Outcomes
from fleet_consumer.worker.consume.pauses import BREAKER_OPEN, SUSPECT, Pauses
from fleet_consumer.worker.consume.progress import ConsumeProgress, PartitionProgress
from fleet_consumer.worker.consume.readings import Readings
from fleet_consumer.worker.consume.writing import ACK_LOOK_S, ACK_WAIT_S, Writing
from fleet_consumer.worker.lifecycle.watchdog import Watch
from fleet_consumer.worker.logs import fields
from fleet_consumer.worker.stats import Stats

LOG = logging.getLogger("fleet_consumer.worker")

POLL_TIMEOUT_S: Final = 0.5
"""How long a poll may wait for records: bounds the delay of commits and holds on a quiet topic."""

ERROR_PAUSE_S: Final = 1.0
"""Pause after a poll that raised: a cause that stays must not become a hot loop."""

ERROR_TOLD_S: Final = 15.0
"""How long an error of a poll is told: what stays wrong is raised every few seconds only; no flicker."""

REVOKE_WAIT_S: Final = 10.0
"""How long a rebalance waits for acknowledgements and for the commit: longer saves duplicates, yet delays all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What the loop needs to know of the worker's settings; times in seconds."""

    topics: tuple[str, ...] | TopicPattern
    commit_interval_s: float
    drain_s: float


class ConsumeLoop:
    """One member's work, from subscribing to closing. Making one starts nothing.

    `pause(seconds)` waits, and returns early when the worker is to stop. `at_once` is how many records may be in hands.
    All methods belong to one thread, except `stop` and `error`.
    """

    def __init__(
        self,
        *,
        consumer: Consumer,
        handle: Handle,
        outcomes: Outcomes,
        writing: Writing,
        intake: Intake,
        readings: Readings,
        pacing: Pacing,
        pauses: Pauses,
        settings: LoopSettings,
        stats: Stats,
        watch: Watch,
        clock: Clock,
        pause: Callable[[float], object],
        at_once: int = 1,
    ) -> None:
        self._consumer = consumer
        self._handle = handle
        self._outcomes = outcomes
        self._writing = writing
        self._intake = intake
        self._readings = readings
        self._pacing = pacing
        self._pauses = pauses
        self._settings = settings
        self._stats = stats
        self._watch = watch
        self._clock = clock
        self._pause = pause
        self._pid = os.getpid()
        self.topics = settings.topics
        self.progress: ConsumeProgress = ConsumeProgress()
        self._notes = Notes(
            consumer,
            told=self._note_commit,
            at_once=at_once,
            careful_s=2 * settings.commit_interval_s,
            clock=clock,
        )
        self._error: tuple[ConsumerError, float] | None = None
        self.beat_at = clock.monotonic()
        self._batch: dict[TopicPartition, PartitionProgress] = {}
        self._commit_at = clock.monotonic() + settings.commit_interval_s
        self._commit_in_flight = False
        self._revoke_wait_s = REVOKE_WAIT_S
        self._pace = Pace.FULL
        self._mark = ""
        self._idle = False
        # Whether a record of the batch in hand has to stay.
        self._stayed = False
        self._stop_at: float | None = None
        self._gives_up = False

    def start(self) -> None:
        """Join the group; returns at once."""
        self.subscribe(self._settings.topics)

    def subscribe(self, topics: tuple[str, ...] | TopicPattern) -> None:
        """Consume these topics from now on; what else was consumed is given back in order. Returns at once."""
        self.topics = topics
        self._consumer.subscribe(topics, on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost)

    def stop(self, within_s: float | None = None, *, gives_up: bool = False) -> None:
        """Let what is in hand come to an end within the drain time, and nothing else begin. Any thread.

        `within_s` is another time than that of the settings. `gives_up`: what is still in hand at the end is what the
        process ends for, and counts as its death.
        """
        self._gives_up = gives_up
        if self._stop_at is None:
            self._stop_at = self._clock.monotonic() + (self._settings.drain_s if within_s is None else within_s)
            self._consumer.wakeup()

    @property
    def stopping(self) -> bool:
        return self._stop_at is not None

    @property
    def in_flight(self) -> int:
        """How many records are taken up and not through their handler. Any thread."""
        return int(self._watch.record is not None)

    @property
    def error(self) -> ConsumerError | None:
        """What polls met lately, None once records flow or nothing has been met for a while. Any thread."""
        met = self._error
        return met[0] if met is not None and self._clock.monotonic() < met[1] else None

    def step(self) -> None:
        """Poll once and see to everything that came of it. Raises FatalConsumerError; the loop is finished then."""
        before = self._clock.monotonic()
        self._match_pace()
        awaits = self._writing.open
        wait_s = self._intake.before_poll(self.progress.partitions, ACK_LOOK_S if awaits else POLL_TIMEOUT_S)
        records = self._poll(0.0 if awaits else wait_s, max_records=1 if self._pace is Pace.PROBE else None)
        now = self._clock.monotonic()
        self._stats.poll_wait_seconds += now - before
        self._note(records)
        runs = self._readings.admit(records.runs, self.progress.partitions)
        runs = self._intake.admit(runs, self.progress.partitions)
        self._idle = not runs
        if self._notes.unwritten:
            runs = self._noted(runs)
        careful, runs = self._apart(runs)
        if runs and not self.stopping:
            self._handle_batch(runs)
        for run in careful:
            self._handle_with_care(run)
        self._writing.follow(ACK_WAIT_S if self.stopping else wait_s if self._idle else 0.0)
        self._commit_if_due()
        self.beat_at = self._clock.monotonic()

    def close(self, timeout_s: float) -> None:
        """Write out, commit, leave (dynamic) or remain (static), stop all threads; about `timeout_s` seconds at most.

        The consumer's close revokes everything first, and `_revoked` waits for acknowledgements and commits, each at
        most a third of the time.
        """
        self._revoke_wait_s = min(REVOKE_WAIT_S, timeout_s / 3)
        self._consumer.close(timeout_s)

    def _poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        try:
            records = self._consumer.poll(timeout_s, max_records=max_records)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            if str(error) != str(self.error):
                LOG.warning("poll failed", extra=fields(reason=error.reason, error=str(error)))
            self._error = error, self._clock.monotonic() + ERROR_TOLD_S
            self._pause(ERROR_PAUSE_S)
            return Records([])
        if records:
            self._error = None
        return records

    def _begin(self, run: Run) -> PartitionProgress:
        """Put a run into the batch in hand, bound to its partition's progress of now.

        Should the partition be taken away and come back while the run waits its turn, it comes back with other
        progress: reading starts again at the committed offset, and handling the old run as well would move the new
        progress past records that nobody has handled.
        """
        partition = self.progress.partitions[run.topic_partition]
        self._batch[run.topic_partition] = partition
        return partition

    def _handle_batch(self, runs: Sequence[Run], handle: Handle | None = None) -> None:
        """`handle` stands in for the handler."""
        work = [(run, self._begin(run)) for run in runs]
        before = self._clock.monotonic()
        for run, partition in work:
            if self._owns(run.topic_partition, partition) and not self._handle_run(run, partition, handle):
                break
        self._watch.record = None
        batch, self._batch = self._batch, {}
        after = self._clock.monotonic()
        self._stats.batches += 1
        self._stats.handler_seconds += after - before
        self._writing.expect(batch)
        if self._stayed:
            self._stayed = False
            for topic_partition, partition in {run.topic_partition: partition for run, partition in work}.items():
                if self._owns(topic_partition, partition):
                    self._seek_back(topic_partition, partition)
            self._match_pace()

    def _noted(self, runs: list[Run]) -> list[Run]:
        """Those of partitions whose commits say that we have them; the others come again when theirs do, too."""
        unwritten = self._notes.unwritten
        if any(run.topic_partition in unwritten for run in runs):
            self._note_starts(unwritten)  # so that one question is asked for all
        for topic_partition in self._notes.begin(self.progress.partitions):
            self._pauses.resume(topic_partition, SUSPECT)
        for run in runs:
            if run.topic_partition in unwritten:
                self._consumer.seek(run.topic_partition, run.records[0].offset)
                self._pauses.pause(run.topic_partition, SUSPECT)
        return [run for run in runs if run.topic_partition not in unwritten]

    def _apart(self, runs: list[Run]) -> tuple[list[Run], list[Run]]:
        """Runs that ask for care, those with the fewest deaths first, and all others."""
        careful = self._notes.careful
        if not careful:
            return [], runs
        apart = [run for run in runs if run.topic_partition in careful]
        apart.sort(key=lambda run: self._notes.deaths(self.progress.partitions[run.topic_partition]))
        return apart, [run for run in runs if run.topic_partition not in careful]

    def _handle_with_care(self, run: Run) -> None:
        """Hand out a run a few records at a time, and commit before each time how many are going to be in hand."""
        topic_partition, records = run.topic_partition, run.records
        partition = self.progress.partitions.get(topic_partition)
        if partition is None:
            return  # it went while others of this poll were handled
        while records and not self.stopping:
            self._writing.follow(ACK_WAIT_S)
            if partition.unfinished:
                break  # what was written is not acknowledged
            count, error = self._notes.take(topic_partition, partition, records)
            if not count:
                break
            part = Run(topic_partition, records[:count])
            began, until = self._clock.monotonic(), part.next_offset
            self._handle_batch([part], None if error is None else _raising(error))
            if not self._owns(topic_partition, partition):
                return
            self._notes.came_back(topic_partition, partition, count, self._clock.monotonic() - began)
            if partition.position != until:
                break
            records = records[count:]
        self._notes.write({topic_partition: partition}, self._mark)
        if records:
            self._seek_back(topic_partition, partition)

    def _handle_run(self, run: Run, partition: PartitionProgress, instead: Handle | None = None) -> bool:
        """Handle a run's records in order; False when the whole batch is to be given up: the worker or the pacing
        stops.

        This is the hot path: what it does for a record that writes nothing is one store, one call and one test.
        """
        watch, handle, outcomes, pacing = self._watch, instead or self._handle, self._outcomes, self._pacing
        records = run.records
        apart = 0  # records that count as something else than done, or only once what they wrote is acknowledged
        after = 0  # the place behind the last record that failed; the successes from there on are not counted yet
        for record in records:
            watch.record = record
            try:
                answer = handle(record)
                if answer is not None:
                    apart += outcomes.answered(partition, record, answer)
            except BaseException as error:  # SystemExit of an application must not end the worker either
                place = _place(records, record, after)
                pacing.succeeded(place - after)
                after = place + 1
                if not outcomes.raised(partition, record, error):
                    self._stayed = True
                    self._count_handled(records, place, partition, apart)
                    return False
                apart += 1
            if watch.due:
                read = as_read(record)
                partition.handled(read.offset, read.leader_epoch)
                goes_on = self._look_around()
                if not goes_on or not self._owns(run.topic_partition, partition):
                    count = _place(records, record, max(0, after - 1)) + 1
                    pacing.succeeded(count - after)
                    self._count_handled(records, count, partition, apart)
                    return goes_on
        pacing.succeeded(len(records) - after)
        self._count_handled(records, len(records), partition, apart)
        return True

    def _count_handled(self, records: Sequence[Record], count: int, partition: PartitionProgress, apart: int) -> None:
        """The first `count` of these have been through the handler."""
        if count:
            last = as_read(records[count - 1])
            partition.handled(last.offset, last.leader_epoch)
        self._stats.done += count - apart

    def _seek_back(self, topic_partition: TopicPartition, partition: PartitionProgress) -> None:
        """Records of a batch that was given up come again: polls go on at the first that nobody has handled.

        Never ahead: a position that is lower, or being looked up, is that of another log. The consumer has gone over to
        it since these records were polled, because the topic was made anew or its log was cut.
        """
        position = self._consumer.position(topic_partition)
        if partition.next_offset is not None and position is not None and partition.next_offset < position:
            self._consumer.seek(topic_partition, partition.next_offset)

    def _match_pace(self) -> None:
        """Do as the pacing says. Others hear of it at once, by the mark that commits carry."""
        pace = self._pacing.pace(idle=self._idle)
        if self._pacing.mark != self._mark:
            self._mark = self._pacing.mark
            self._commit_at = self._clock.monotonic()
        if pace is self._pace:
            return
        self._pace = pace
        for topic_partition in self.progress.partitions:
            if pace is Pace.STOP:
                self._pauses.pause(topic_partition, BREAKER_OPEN)
            else:
                self._pauses.resume(topic_partition, BREAKER_OPEN)

    def _owns(self, topic_partition: TopicPartition, partition: PartitionProgress) -> bool:
        return self.progress.partitions.get(topic_partition) is partition

    def _look_around(self) -> bool:
        """Between two records of a long batch: poll without taking records, settle, commit. False to give the batch up.

        While the session is in doubt no further record is handled: another member may own it. Either a heartbeat
        gets through, and the batch goes on, or the partitions are lost.
        """
        end_forked_child(self._pid)
        self._watch.record = None
        self._watch.due = False
        self._keep_alive(0.0)
        while not self._consumer.holds_session() and self.progress.partitions and not self.stopping:
            self._keep_alive(POLL_TIMEOUT_S)
        self._writing.expect(self._batch)
        self._writing.follow(0.0)
        self._commit_if_due()
        self.beat_at = self._clock.monotonic()
        return self._stop_at is None or self.beat_at < self._stop_at

    def _keep_alive(self, timeout_s: float) -> None:
        """A poll for the membership's sake: callbacks run, the poll interval starts again, no record comes out."""
        self._poll(timeout_s, max_records=0)

    def _note(self, records: Records) -> None:
        for run in records.runs:
            self._note_run(run)
        for topic_partition, gap in records.gaps.items():
            self._note_gap(topic_partition, gap)

    def _note_run(self, run: Run) -> None:
        """The first run of a partition tells its start, also when it is not going to be handled any more: the
        consumer's position is past it by now, and committing that would skip it."""
        partition = self.progress.partitions[run.topic_partition]
        if partition.start is None:
            note_start(self._consumer, run.topic_partition, partition, run.records[0].offset)
        partition.read()

    def _note_gap(self, topic_partition: TopicPartition, gap: Gap) -> None:
        """Commits cover what is no record once all before it is done, or a drained partition would look behind."""
        partition = self.progress.partitions[topic_partition]
        if partition.start is None:
            note_start(self._consumer, topic_partition, partition, gap.first)
        partition.pass_gap(gap.first, gap.next)

    def _note_starts(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask where partitions begin that have handed out nothing yet; one that has is past its start already."""
        for topic_partition in partitions:
            partition = self.progress.partitions.get(topic_partition)
            if partition is not None and partition.start is None:
                note_start(self._consumer, topic_partition, partition)

    def _commit_if_due(self) -> None:
        now = self._clock.monotonic()
        if now < self._commit_at or self._commit_in_flight:
            return
        self._note_starts(self.progress.partitions)
        self._readings.begin(self.progress.partitions)
        if self._notes.unwritten:
            self._noted([])
        self._commit_at = now + self._settings.commit_interval_s
        offsets = self.progress.committable(self._mark)
        if offsets:
            self._commit_in_flight = True
            self._consumer.commit_async(offsets, self._committed)

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        self._commit_in_flight = False
        self._note_commit(offsets, error)

    def _note_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        if error is None:
            self._stats.commits += 1
            self.progress.committed(offsets)
        else:
            self._stats.commit_failures += 1
            reason = getattr(error, "reason", type(error).__name__)
            LOG.info("commit failed; it is repeated if still ours", extra=fields(reason=reason, error=str(error)))

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._stats.rebalances += 1
        for topic_partition in partitions:
            partition = PartitionProgress()
            self.progress.partitions[topic_partition] = partition
            self._notes.assigned(topic_partition, partition)
            if self._pace is Pace.STOP:
                self._pauses.pause(topic_partition, BREAKER_OPEN)
        LOG.info("partitions assigned", extra=fields(partitions=_names(partitions)))

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are about to go: what is finished by now is committed, so that nobody repeats it."""
        self._note_starts(partitions)
        self._notes.find(self.progress.partitions)
        going = {each: self.progress.partitions[each] for each in partitions if each in self.progress.partitions}
        self._finish(going, self._revoke_wait_s)
        self._readings.begin_leaving(going, self._revoke_wait_s)
        for topic_partition, partition in going.items():
            self._notes.release(topic_partition, partition, died=self._gives_up and self._in_hands(partition))
        offsets = {each: offset for each, partition in going.items() if (offset := partition.committable(self._mark))}
        if offsets:
            try:
                self._consumer.commit(offsets, self._revoke_wait_s)
            except ConsumerError as error:
                self._note_commit(offsets, error)
            else:
                self._note_commit(offsets, None)
        self._forget(partitions)
        LOG.info("partitions revoked", extra=fields(partitions=_names(partitions), committed=len(offsets)))

    def _in_hands(self, partition: PartitionProgress) -> bool:
        """Whether a handler has a record of this partition, while the loop itself is doing something else."""
        return False

    def _finish(self, going: Mapping[TopicPartition, PartitionProgress], timeout_s: float) -> None:
        """See through what these partitions have under way, at most `timeout_s`."""
        self._writing.finish(going, timeout_s)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions may be somebody else's already: nothing of them may be committed any more."""
        self._stats.lost_partitions += len(partitions)
        self._forget(partitions)
        LOG.warning("partitions lost", extra=fields(partitions=_names(partitions)))

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for topic_partition in partitions:
            self.progress.partitions.pop(topic_partition, None)
            self._batch.pop(topic_partition, None)
        self._writing.forget(partitions)
        self._intake.forget(partitions)
        self._notes.forget(partitions)
        self._pauses.forget(partitions)


def _place(records: Sequence[Record], record: Record, start: int) -> int:
    """Where `record` stands in its run, looked for from `start` on: by identity, for records compare by content."""
    return next(place for place in range(start, len(records)) if records[place] is record)


def _raising(error: Exception) -> Handle:
    def handle(record: Record) -> Any:
        raise error

    return handle


def _names(partitions: Sequence[TopicPartition]) -> list[str]:
    return sorted(f"{each.topic}-{each.partition}" for each in partitions)
