"""The consume loop of one member: polls, pace, commits, orderly stop, and partitions from assignment to revocation.

The modules `inline` and `concurrent` handle the polled records.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from fleet_consumer.contract.skips import PassedBy, Place
from fleet_consumer.fetch.read_errors import PartitionError
from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.committing import Committing
from fleet_consumer.worker.consume.crash_markers import CrashMarkers
from fleet_consumer.worker.consume.lags import Ends
from fleet_consumer.worker.consume.parts import LoopParts, Topics
from fleet_consumer.worker.consume.progress import (
    BREAKER_OPEN,
    PartitionProgress,
    Partitions,
    record_polled,
    record_starts,
)
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

POLL_TIMEOUT_S: Final = 0.5
"""Longest wait of a poll for records in seconds. On a quiet topic, commits and holds may be this much late."""

ERROR_PAUSE_S: Final = 1.0
"""Pause in seconds after a poll that raised an error. Without it, a permanent error would cause a busy loop."""

ERROR_SHOWN_S: Final = 15.0
"""An error that has not occurred again for this many seconds counts as resolved. Permanent errors occur again every few
seconds."""

REVOKE_WAIT_S: Final = 10.0
"""Longest wait in seconds during a rebalance: first for acknowledgements, then again for the commit. A longer wait
would avoid duplicates, but delay all members."""


class Rounds(Protocol):
    """Handles polled records, on the loop's thread (`inline`) or on other threads (`concurrent`)."""

    @property
    def in_flight(self) -> int:
        """Number of admitted records that are not handled yet. Any thread."""

    @property
    def busy(self) -> bool:
        """True while any record is being handled or waits for its handler."""

    def receive(self) -> Records:
        """Poll for records, and wait at most `POLL_TIMEOUT_S`."""

    def handle(self, runs: list[Run], careful: list[Run]) -> None:
        """Handle polled records and write their outputs. Records in `careful` may kill the process (`crash_guard`)."""

    def drain(self) -> None:
        """Finish records in flight before the consumer is closed."""

    def has_in_hand(self, partition: PartitionProgress) -> bool:
        """Return True while records of this partition are being handled outside the loop's thread."""

    def finish(self, going: Partitions, timeout_s: float) -> None:
        """Finish calls and writes of these partitions, within `timeout_s` seconds."""

    def drop_partitions(self, gone: Partitions) -> None:
        """Drop the records of partitions that are no longer owned."""


class Loop:
    """The consume loop of one group member, from `start` to `close`. All methods except `stop` belong to one thread.

    Any thread may use `ends`, and read `topics`, `partitions`, `in_flight`, `in_hand`, `error` and `beat_at` (end of
    the last round in monotonic seconds). `at_once` is the maximum number of records of a partition that are handled
    concurrently. Rebalance callbacks run inside polls and `close`. The constructor does not join the group.
    """

    def __init__(self, parts: LoopParts, make_rounds: "Callable[[Loop], Rounds]", *, at_once: int = 1) -> None:
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
        self.crash_markers = CrashMarkers(parts, self.partitions, self.committing, at_once=at_once)
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
        """The record that is being handled on the loop's thread, or None. Any thread."""
        return self._parts.watch.record

    @property
    def error(self) -> ConsumerError | None:
        """The last error of a poll; None once records arrive, or after `ERROR_SHOWN_S` without an error."""
        last = self._last_error
        return last[0] if last is not None and self._clock.monotonic() < last[1] else None

    def start(self) -> None:
        """Begin to join the group, without waiting for the assignment."""
        self.subscribe(self.topics)

    def subscribe(self, topics: Topics) -> None:
        """Change the subscription, without waiting. Partitions of other topics are revoked after a commit."""
        self.topics = topics
        self._consumer.subscribe(topics, on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost)

    def stop(self, within_s: float | None = None, *, gives_up: bool = False) -> None:
        """Stop the loop: finish the records in flight within the drain timeout, and start no others. Any thread.

        `within_s` (seconds) replaces the drain timeout of the settings. `gives_up` means that records still in a
        handler are the reason why the process ends. They then count as the cause of its death (`crash_guard`).
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
        """True if `stop` was called and the drain timeout has passed."""
        return self._drain_until is not None and self._clock.monotonic() >= self._drain_until

    def step(self) -> None:
        """Poll once, then handle, write and commit. After a FatalConsumerError, only `close` may be called."""
        before = self._clock.monotonic()
        self.adjust_pace()
        records = self._rounds.receive()
        self._parts.stats.poll_wait_seconds += self._clock.monotonic() - before
        partitions = self.partitions
        record_polled(self._consumer, records, partitions)
        self._parts.skips.reload()
        runs = self._parts.intake.admit(self._parts.replay_epochs.admit(records.runs, partitions), partitions)
        self.idle = not (runs or self._rounds.busy)
        careful, runs = self.crash_markers.admit(runs)
        self._rounds.handle(runs, careful)
        # Checked last, because the polled records come before the unreadable data and are handled first.
        self.unreadable.check(partitions)
        self.come_round()

    def close(self, timeout_s: float) -> None:
        """Finish writes, commit, leave the group, and stop all threads, in at most about `timeout_s` seconds. A static
        member does not leave the group.

        The consumer's close first revokes all partitions. The revocation waits for acknowledgements and for the commit,
        each at most a third of the time. If `stop` was called, records in flight finish before the revocation, within
        the drain timeout.
        """
        try:
            if self.draining:
                self._rounds.drain()
        finally:
            self._revoke_wait_s = min(REVOKE_WAIT_S, timeout_s / 3)
            try:
                self._consumer.close(timeout_s)
            finally:
                # If the close failed, some partitions were not revoked. Their waiting calls must not start after the
                # end of the session.
                self._rounds.drop_partitions(self.partitions)

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Poll for records. After an error, log the error, keep it in `error`, pause, and return no records.

        With `max_records` 0, the poll only keeps the membership: callbacks run and the poll interval starts again.
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
        """Adopt the breaker's pace. All partitions are paused while the breaker is open. A new breaker state is
        committed soon, so that retry workers can read it."""
        pace = self._parts.pacing.pace(idle=self.idle)
        self.committing.carry(self._parts.pacing.breaker_state)
        if pace is self.pace:
            return
        self.pace = pace
        change = self._parts.pauses.pause if pace is Pace.STOP else self._parts.pauses.resume
        for topic_partition in self.partitions:
            change(topic_partition, BREAKER_OPEN)

    def come_round(self) -> None:
        """End a round. Once per commit interval, prepare new partitions (starting position, replay epoch, crash marker)
        and commit."""
        if self.committing.due:
            record_starts(self._consumer, self.partitions, self.partitions)
            self._parts.replay_epochs.begin_partitions(self.partitions)
            self.crash_markers.begin_partitions()
            self.committing.commit()
        self.beat_at = self._clock.monotonic()

    def owns(self, partition: PartitionProgress) -> bool:
        """Return True if the assignment for which this progress object was created has not ended."""
        return self.partitions.get(partition.topic_partition) is partition

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._parts.stats.rebalances += 1
        for topic_partition in partitions:
            partition = self.partitions[topic_partition] = PartitionProgress(topic_partition)
            self.crash_markers.assigned(partition)
            if self.pace is Pace.STOP:
                self._parts.pauses.pause(topic_partition, BREAKER_OPEN)
        LOG.info("partitions assigned", extra=fields(partitions=sorted(each.name for each in partitions)))

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish and commit the records of revoked partitions, so that no other member repeats these records."""
        record_starts(self._consumer, partitions, self.partitions)
        self.crash_markers.find()
        going = {each: self.partitions[each] for each in partitions if each in self.partitions}
        self._rounds.finish(going, self._revoke_wait_s)
        self._parts.replay_epochs.try_to_begin(going, self._revoke_wait_s / 3)
        for partition in going.values():
            died = self._gives_up and self._rounds.has_in_hand(partition)
            self.crash_markers.release(partition, died=died)
        committed = self.committing.commit_leaving(going, self._revoke_wait_s)
        self._forget(partitions)
        names = sorted(each.name for each in partitions)
        LOG.info("partitions revoked", extra=fields(partitions=names, committed=committed))

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget lost partitions without a commit, because another member may already own them."""
        self._parts.stats.lost_partitions += len(partitions)
        self._forget(partitions)
        LOG.warning("partitions lost", extra=fields(partitions=sorted(each.name for each in partitions)))

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        owned = self.partitions
        self._rounds.drop_partitions({each: owned.pop(each) for each in partitions if each in owned})
        self._parts.writing.discard_partitions(partitions)
        self._parts.intake.discard_partitions(partitions)
        self.crash_markers.discard_partitions(partitions)
        self._parts.pauses.discard_partitions(partitions)


UNREADABLE_CHECK_S: Final = 1.0
AGAIN_S: Final = 10.0
"""Seconds until a failed search for the end of an unreadable batch is repeated."""
ASK_S: Final = 5.0
"""Timeout of a search for the end of an unreadable batch in seconds."""


class Unreadable:
    """Skips unreadable data at the consumer's position if the skip list contains this position, or if the intake does
    not need the data."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._check_at = self._search_at = float("-inf")

    def check(self, partitions: Partitions) -> None:
        """Check the partitions that are stuck at unreadable data, at most once a second. Raises FatalConsumerError."""
        now = self._parts.clock.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + UNREADABLE_CHECK_S
        for topic_partition, data in self._parts.consumer.unreadable().items():
            if topic_partition in partitions:
                self._pass_batch(partitions[topic_partition], data)

    def _pass_batch(self, partition: PartitionProgress, data: PartitionError) -> None:
        parts, topic_partition, offset = self._parts, partition.topic_partition, data.offset
        if topic_partition in parts.pauses.reasons or parts.consumer.position(topic_partition) != offset:
            return  # records before the unreadable data must be handled first
        further = parts.intake.not_needed(topic_partition, offset)
        if further is not None:
            parts.consumer.seek(topic_partition, further)
            return
        asked = parts.skips.names(topic_partition, offset)
        known = partition.replay_epoch is not None and partition.crash_marker is not None and not partition.unfinished
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
            LOG.warning("skipping unreadable data failed: %s", error, extra=where)
            return
        partition.pass_gap(offset, end)
        parts.consumer.seek(topic_partition, end)
        parts.stats.passed_by(Place(*topic_partition, offset), PassedBy(parts.clock.wall(), end - 1))
        LOG.warning("unreadable data skipped: offsets %d to %d", offset, end - 1, extra=where)
