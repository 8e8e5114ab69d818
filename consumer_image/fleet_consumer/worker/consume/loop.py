"""The consume loop of one member: its polls, its pace, its commits, its ordered stop, and the partitions that it owns
from their assignment until they are revoked or lost.

`inline` and `concurrent` handle what it polls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from fleet_consumer.contract.skips import PassedBy, Place
from fleet_consumer.fetch.read_errors import PartitionError
from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.committing import Committing
from fleet_consumer.worker.consume.lags import Ends
from fleet_consumer.worker.consume.notes import Notes
from fleet_consumer.worker.consume.parts import LoopParts, Topics
from fleet_consumer.worker.consume.progress import BREAKER_OPEN, PartitionProgress, Partitions, note_polled, note_starts
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

POLL_TIMEOUT_S: Final = 0.5
"""Longest wait of a poll for records: bounds the delay of commits and holds on a quiet topic."""

ERROR_PAUSE_S: Final = 1.0
"""Pause after a poll that raised: a cause that stays must not become a hot loop."""

ERROR_SHOWN_S: Final = 15.0
"""An error that is not repeated for so long counts as resolved. Lasting ones are raised every few seconds only."""

REVOKE_WAIT_S: Final = 10.0
"""A rebalance waits so long for acknowledgements and for the commit: longer saves duplicates, yet delays all."""


class Rounds(Protocol):
    """The handling of what a loop polls, round by round."""

    @property
    def in_flight(self) -> int:
        """Number of records that are taken up and not through their handler. Any thread."""

    @property
    def busy(self) -> bool:
        """True while any record is being handled, or is to be handled yet."""

    def receive(self) -> Records:
        """Poll, and wait at most for as long as a round may."""

    def handle(self, runs: list[Run], careful: list[Run]) -> None:
        """Handle and write what was polled. The `careful` runs may kill their process (`caution`)."""

    def drain(self) -> None:
        """See through what has begun, before the consumer is closed."""

    def has_in_hand(self, partition: PartitionProgress) -> bool:
        """True if a handler has a record of this partition, while the loop itself is doing something else."""

    def finish(self, going: Partitions, timeout_s: float) -> None:
        """See through what these partitions have under way, at most `timeout_s`."""

    def forget(self, gone: Partitions) -> None:
        """Drop what is left of partitions that are not ours any more."""


class Loop:
    """One member's work, from subscribing to closing. All methods belong to one thread, except `stop`.

    Any thread may ask `ends`, and read `topics`, `partitions`, `in_flight`, `in_hand`, `error` and `beat_at`
    (monotonic seconds at the end of the last round). `at_once` is how many records of a partition the rounds may have
    in hand at once. Callbacks of a rebalance run inside polls and `close`. Making one starts nothing.
    """

    def __init__(self, parts: LoopParts, make_rounds: Callable[[Loop], Rounds], *, at_once: int = 1) -> None:
        self._parts = parts
        self._consumer = parts.consumer
        self._clock = parts.clock
        self._revoke_wait_s = REVOKE_WAIT_S
        self._last_error: tuple[ConsumerError, float] | None = None
        self._drain_until: float | None = None
        self._gives_up = False
        self.topics = parts.topics
        self.partitions: dict[TopicPartition, PartitionProgress] = {}
        self.committing = Committing(parts, self.partitions)
        self.ends = Ends(parts.consumer, parts.clock)
        self.notes = Notes(parts, self.partitions, self.committing, at_once=at_once)
        self.unreadable = Unreadable(parts)
        self.pace = Pace.FULL
        self.idle = False
        self.beat_at = parts.clock.monotonic()
        self._rounds = make_rounds(self)

    @property
    def in_flight(self) -> int:
        return self._rounds.in_flight

    @property
    def in_hand(self) -> Record | None:
        """The record that a handler has on the loop's own thread. Any thread."""
        return self._parts.watch.record

    @property
    def error(self) -> ConsumerError | None:
        """The error of the last polls, None once records flow or none was raised for a while."""
        last = self._last_error
        return last[0] if last is not None and self._clock.monotonic() < last[1] else None

    def start(self) -> None:
        """Join the group; returns at once."""
        self.subscribe(self.topics)

    def subscribe(self, topics: Topics) -> None:
        """Consume these topics from now on; partitions of others are given back in order. Returns at once."""
        self.topics = topics
        self._consumer.subscribe(topics, on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost)

    def stop(self, within_s: float | None = None, *, gives_up: bool = False) -> None:
        """Finish what is in hand and begin nothing else, within the drain time. Any thread.

        `within_s` replaces the drain time of the settings. `gives_up`: records still in hand at the end are why the
        process ends, and count as its death.
        """
        self._gives_up = gives_up
        if self._drain_until is None:
            self._drain_until = self._clock.monotonic() + (self._parts.drain_s if within_s is None else within_s)
            self._consumer.wakeup()

    @property
    def draining(self) -> bool:
        return self._drain_until is not None

    @property
    def drain_over(self) -> bool:
        """True once the time of a stop is over; False while none has begun."""
        return self._drain_until is not None and self._clock.monotonic() >= self._drain_until

    def step(self) -> None:
        """Poll once, and handle, write and commit what follows. The loop is finished after a FatalConsumerError."""
        before = self._clock.monotonic()
        self.adjust_pace()
        records = self._rounds.receive()
        self._parts.stats.poll_wait_seconds += self._clock.monotonic() - before
        partitions = self.partitions
        note_polled(self._consumer, records, partitions)
        self._parts.skips.look()
        runs = self._parts.intake.admit(self._parts.readings.admit(records.runs, partitions), partitions)
        self.idle = not (runs or self._rounds.busy)
        careful, runs = self.notes.admit(runs)
        self._rounds.handle(runs, careful)
        # Not before what this poll brought is taken up: that lies in front of what cannot be read.
        self.unreadable.look(partitions)
        self.come_round()

    def close(self, timeout_s: float) -> None:
        """Write out, commit, leave (dynamic) or remain (static), stop all threads; about `timeout_s` seconds at most.

        The consumer's close revokes everything first, which waits for acknowledgements and for the commit, each at
        most a third of the time. When the worker stops, what has begun may come to its end before, in the drain time.
        """
        try:
            if self.draining:
                self._rounds.drain()
        finally:
            self._revoke_wait_s = min(REVOKE_WAIT_S, timeout_s / 3)
            try:
                self._consumer.close(timeout_s)
            finally:
                # A close that broke has not given everything back, and no call may outlive its session unsent.
                self._rounds.forget(self.partitions)

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Records, none after an error, which is logged, shown for a while and followed by a pause.

        With `max_records` 0 it serves the membership: callbacks run, the poll interval starts again.
        Raises FatalConsumerError.
        """
        try:
            records = self._consumer.poll(timeout_s, max_records=max_records)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            if str(error) != str(self.error):
                LOG.warning("poll failed", extra=fields(reason=error.reason, error=str(error)))
            self._last_error = error, self._clock.monotonic() + ERROR_SHOWN_S
            self._parts.pause(ERROR_PAUSE_S)
            return Records([])
        if records:
            self._last_error = None
        return records

    def adjust_pace(self) -> None:
        """Adopt the breaker's pace and mark. Other workers see the mark at once: it is committed soon.

        All partitions are paused while the breaker is open.
        """
        pace = self._parts.pacing.pace(idle=self.idle)
        self.committing.carry(self._parts.pacing.mark)
        if pace is self.pace:
            return
        self.pace = pace
        change = self._parts.pauses.pause if pace is Pace.STOP else self._parts.pauses.resume
        for topic_partition in self.partitions:
            change(topic_partition, BREAKER_OPEN)

    def come_round(self) -> None:
        """At each commit interval, begin partitions that have handed out nothing yet, and commit."""
        if self.committing.due:
            note_starts(self._consumer, self.partitions, self.partitions)
            self._parts.readings.begin(self.partitions)
            self.notes.begin()
            self.committing.commit()
        self.beat_at = self._clock.monotonic()

    def owns(self, partition: PartitionProgress) -> bool:
        """True while the partition is in the assignment that this progress belongs to."""
        return self.partitions.get(partition.topic_partition) is partition

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._parts.stats.rebalances += 1
        for topic_partition in partitions:
            partition = self.partitions[topic_partition] = PartitionProgress(topic_partition)
            self.notes.assigned(partition)
            if self.pace is Pace.STOP:
                self._parts.pauses.pause(topic_partition, BREAKER_OPEN)
        LOG.info("partitions assigned", extra=fields(partitions=sorted(each.name for each in partitions)))

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit what is finished of partitions that are about to go, so that nobody repeats it."""
        note_starts(self._consumer, partitions, self.partitions)
        self.notes.find()
        going = {each: self.partitions[each] for each in partitions if each in self.partitions}
        self._rounds.finish(going, self._revoke_wait_s)
        self._parts.readings.try_to_begin(going, self._revoke_wait_s / 3)
        for partition in going.values():
            died = self._gives_up and self._rounds.has_in_hand(partition)
            self.notes.release(partition, died=died)
        committed = self.committing.commit_leaving(going, self._revoke_wait_s)
        self._forget(partitions)
        names = sorted(each.name for each in partitions)
        LOG.info("partitions revoked", extra=fields(partitions=names, committed=committed))

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget partitions that another member may own already: nothing of them may be committed any more."""
        self._parts.stats.lost_partitions += len(partitions)
        self._forget(partitions)
        LOG.warning("partitions lost", extra=fields(partitions=sorted(each.name for each in partitions)))

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        owned = self.partitions
        self._rounds.forget({each: owned.pop(each) for each in partitions if each in owned})
        self._parts.writing.forget(partitions)
        self._parts.intake.forget(partitions)
        self.notes.forget(partitions)
        self._parts.pauses.forget(partitions)


LOOK_S: Final = 1.0
AGAIN_S: Final = 10.0
"""Wait after a batch whose end was not found."""
ASK_S: Final = 5.0
"""Timeout of the search for one batch's end."""


class Unreadable:
    """Passes the rest of a batch that nobody can read, and nothing behind it, where the list of skips names the next
    offset, or an intake does not need it."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._look_at = self._search_at = float("-inf")

    def look(self, partitions: Partitions) -> None:
        """Look at the partitions that stand, about once a second. Raises FatalConsumerError."""
        now = self._parts.clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for topic_partition, data in self._parts.consumer.unreadable().items():
            if topic_partition in partitions:
                self._look(partitions[topic_partition], data)

    def _look(self, partition: PartitionProgress, data: PartitionError) -> None:
        parts, topic_partition, offset = self._parts, partition.topic_partition, data.offset
        if topic_partition in parts.pauses.reasons or parts.consumer.position(topic_partition) != offset:
            return  # records before it are held back
        further = parts.intake.not_needed(topic_partition, offset)
        if further is not None:
            parts.consumer.seek(topic_partition, further)
            return
        asked = parts.skips.names(topic_partition, offset)
        known = partition.reading is not None and partition.note is not None and not partition.unfinished
        now = parts.clock.monotonic()
        if not (asked and known and now >= self._search_at):
            return
        where = fields(**topic_partition._asdict(), offset=offset, error=str(data.error))
        try:
            end = parts.consumer.batch_end(topic_partition, offset, ASK_S)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            self._search_at = now + AGAIN_S
            LOG.warning("data that cannot be read are not passed by: %s", error, extra=where)
            return
        partition.pass_gap(offset, end)
        parts.consumer.seek(topic_partition, end)
        parts.stats.passed_by(Place(*topic_partition, offset), PassedBy(parts.clock.wall(), end - 1))
        LOG.warning("data that cannot be read are passed by: offsets %d to %d", offset, end - 1, extra=where)
