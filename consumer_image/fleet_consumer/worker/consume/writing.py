"""Seeing writes through: waiting for acknowledgements, and holding the partitions whose writes do not come through.

A held partition is paused at its first unfinished record. Its failed writes are sent again with backoff, for ever,
because the alternatives are losing a record or repeating its handler. It goes on by itself once everything is
acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.consume.outbox import HOLD_REASONS, Outbox
from fleet_consumer.worker.consume.outcomes import Outcomes
from fleet_consumer.worker.consume.progress import WRITES_HELD, Hold, PartitionProgress, Partitions, Pauses, Unfinished
from fleet_consumer.worker.logs import fields
from fleet_consumer.worker.stats import Stats

LOG = logging.getLogger("fleet_consumer.worker")

ACK_WAIT_S: Final = 5.0
"""An acknowledgement may take so long before its partition is held and others go on."""

LOOK_INTERVAL_S: Final = 0.1
"""Interval of the look at held partitions, and of `tend`'s look at everything under way."""

ACK_LOOK_S: Final = 0.02
"""Slice of a wait for acknowledgements, because nothing else ends it: neither records, nor that only those of held
partitions are missing."""

OPEN_BYTES_MAX: Final = 8 * 1024 * 1024
"""Memory that unacknowledged writes may take before no record is added to them: some 6,000 hops of
small records, more than a worker writes in the time of an acknowledgement, and far below librdkafka's own limits."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
"""Writes of a held partition are sent again after 1 s, 2 s, 4 s … 30 s."""


@dataclass(slots=True)
class _Held:
    """A partition that stands still, and when its failed writes are sent again."""

    partition: PartitionProgress
    retry_at: float
    delay_s: float


class Writing:
    """All writes that are under way. Used by the consume loop's thread only."""

    def __init__(self, *, outbox: Outbox, outcomes: Outcomes, pauses: Pauses, stats: Stats, clock: Clock) -> None:
        self._outbox = outbox
        self._outcomes = outcomes
        self._pauses = pauses
        self._stats = stats
        self._clock = clock
        self._held: dict[TopicPartition, _Held] = {}
        self._awaited: dict[TopicPartition, PartitionProgress] = {}
        self._look_at = float("-inf")
        self._open = False

    @property
    def open(self) -> bool:
        """True while acknowledgements are awaited other than those of held partitions."""
        return bool(self._awaited)

    def expect(self, batch: Partitions) -> None:
        """Hand over partitions whose records were handled: `follow` sees to what is written for them."""
        for topic_partition, partition in batch.items():
            if partition.unfinished and topic_partition not in self._held:
                self._awaited[topic_partition] = partition

    def follow(self, wait_s: float) -> None:
        """Take in acknowledgements, waiting for them at most `wait_s`, or longer when too much is on its way; hold the
        partitions that miss some for too long, and see to held ones whose time has come."""
        if not self._awaited and not self._held:
            return
        before = self._clock.monotonic()
        self._wait(self._awaited, ACK_WAIT_S if self._full() else wait_s)
        now = self._clock.monotonic()
        self._stats.ack_wait_seconds += now - before
        for topic_partition, partition in list(self._awaited.items()):
            self._count(partition)
            oldest = _first_unwritten(partition)
            if oldest is None or self._hold_if_stuck(partition, oldest, now):
                del self._awaited[topic_partition]
        if now >= self._look_at:
            self._look_at = now + LOOK_INTERVAL_S
            self._look_after_held(now)

    def _wait(self, partitions: Partitions, most_s: float) -> None:
        """Take in acknowledgements; wait for those of these partitions, and for no others, at most `most_s`."""
        deadline = self._clock.monotonic() + most_s
        while True:
            left = deadline - self._clock.monotonic() if _on_its_way(partitions) else 0.0
            self._outbox.wait(max(0.0, min(left, ACK_LOOK_S)))
            if left <= ACK_LOOK_S:
                return

    def _full(self) -> bool:
        held = sum(each.partition.size for each in self._held.values())
        return held + sum(each.size for each in self._awaited.values()) >= OPEN_BYTES_MAX

    def tend(self, partitions: Partitions) -> bool:
        """Take in acknowledgements without waiting, and hold the partitions that miss some for too long.

        Returns whether any write was still open at the last look at all of them, so that the next comes soon. That look
        costs as much as there are records under way, so it is taken a few times a second and not for each record.
        """
        self._outbox.wait(0)
        for partition in partitions.values():
            if partition.unfinished:
                self._count(partition)
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_INTERVAL_S
            self._open = self._look_at_all(partitions, now)
        return self._open

    def _look_at_all(self, partitions: Partitions, now: float) -> bool:
        still_open = False
        for topic_partition, partition in partitions.items():
            oldest = None if topic_partition in self._held else _first_unwritten(partition)
            if oldest is None:
                continue
            still_open = True
            self._hold_if_stuck(partition, oldest, now)
        self._look_after_held(now)
        return still_open

    def finish(self, partitions: Partitions, timeout_s: float) -> None:
        """Wait for what these partitions still write, because they are about to go; what stays open is repeated."""
        deadline = self._clock.monotonic() + timeout_s
        while any(partition.unfinished for partition in partitions.values()):
            self._wait(partitions, deadline - self._clock.monotonic())
            for partition in partitions.values():
                self._count(partition)
                self._mend(partition)
            if self._clock.monotonic() >= deadline or not _on_its_way(partitions):
                return

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are not owned any more."""
        for topic_partition in partitions:
            self._held.pop(topic_partition, None)
            self._awaited.pop(topic_partition, None)

    def _hold_if_stuck(self, partition: PartitionProgress, oldest: Unfinished, now: float) -> bool:
        """Hold a partition whose oldest write failed or takes too long, unless something else can be written for it."""
        overdue = now - oldest.handled_at >= ACK_WAIT_S
        if not overdue and not _failed(oldest):
            return False
        self._mend(partition)
        if not overdue and not _failed(oldest):
            return False
        self._hold(partition, now)
        return True

    def _look_after_held(self, now: float) -> None:
        for held in list(self._held.values()):
            partition = held.partition
            self._count(partition)
            self._mend(partition)
            if _first_unwritten(partition) is None:
                self._release(partition)
                continue
            partition.hold = _hold_of(partition, partition.hold, self._clock.wall())
            if now >= held.retry_at:
                held.delay_s = min(held.delay_s * 2, BACKOFF_MAX_S)
                held.retry_at = now + held.delay_s
                for write in (write for each in partition.unfinished for write in each.writes):
                    if write.done and write.error is not None:
                        self._outbox.send(write)

    def _count(self, partition: PartitionProgress) -> None:
        for result in partition.settle():
            self._stats.count(result)

    def _mend(self, partition: PartitionProgress) -> None:
        for unfinished in partition.unfinished:
            for write in unfinished.writes:
                if write.refused:
                    self._outcomes.refused(unfinished, write)
                    break

    def _hold(self, partition: PartitionProgress, now: float) -> None:
        partition.hold = hold = _hold_of(partition, None, self._clock.wall())
        place = partition.topic_partition
        self._held[place] = _Held(partition, now + BACKOFF_FIRST_S, BACKOFF_FIRST_S)
        self._pauses.pause(place, WRITES_HELD)
        LOG.error(
            "partition held: its writes are not acknowledged",
            extra=fields(**place._asdict(), offset=hold.offset, reason=hold.reason, error=hold.message),
        )

    def _release(self, partition: PartitionProgress) -> None:
        place = partition.topic_partition
        del self._held[place]
        partition.hold = None
        self._pauses.resume(place, WRITES_HELD)
        LOG.info("partition released: its writes are acknowledged", extra=fields(**place._asdict()))


def _first_unwritten(partition: PartitionProgress) -> Unfinished | None:
    return next((each for each in partition.unfinished if each.unwritten), None)


def _on_its_way(partitions: Partitions) -> bool:
    """True while any write of these partitions is neither acknowledged nor failed."""
    return any(
        not write.done
        for partition in partitions.values()
        for unfinished in partition.unfinished
        for write in unfinished.writes
    )


def _failed(unfinished: Unfinished) -> bool:
    return any(write.error is not None for write in unfinished.writes)


def _hold_of(partition: PartitionProgress, previous: Hold | None, wall: float) -> Hold:
    """The reason for holding a partition; a known one stays while a write is tried again."""
    first = _first_unwritten(partition)
    assert first is not None, "only a partition that misses acknowledgements is held"
    offset = first.record.offset
    same = previous is not None and previous.offset == offset
    errors = [write.error for each in partition.unfinished for write in each.writes if write.error is not None]
    if errors:
        reason, message = HOLD_REASONS.get(errors[0].reason, "ProduceFailed"), str(errors[0])
    elif previous is not None and same:
        reason, message = previous.reason, previous.message
    else:
        topics = sorted({write.topic for write in first.writes if not write.done})
        reason = "Unacknowledged"
        message = f"no acknowledgement yet from {', '.join(topics)}; check that its brokers are up"
    return Hold(offset, previous.since if previous is not None and same else wall, reason, message)
