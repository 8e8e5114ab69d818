"""Completion of writes: waits for acknowledgements, and holds partitions whose writes fail or are overdue.

A held partition is paused at its first unfinished record. Its failed writes are sent again with back-off, indefinitely.
The alternatives would be to lose a record or to call its handler again. The partition resumes once all its writes are
acknowledged.
"""

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
"""Longest wait in seconds for an acknowledgement. After this time the partition is held and the other partitions
continue."""

CHECK_INTERVAL_S: Final = 0.1
"""Seconds between two checks of held partitions, and between two full checks in `tend`."""

ACK_POLL_S: Final = 0.02
"""Duration in seconds of one step of a wait for acknowledgements. A step does not end early when new records arrive, or
when only held partitions still lack acknowledgements. Steps are therefore short."""

OPEN_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of unacknowledged writes from which the loop waits for acknowledgements: about 6,000 small retry publishes.
This is more than a worker sends before the first acknowledgement, and far below librdkafka's own limits."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
"""Maximum back-off in seconds. Failed writes of a held partition are sent again after 1, 2, 4 … 30 s."""


@dataclass(slots=True)
class _Held:
    """A held partition. `retry_at` is the time at which its failed writes are sent again (monotonic seconds)."""

    partition: PartitionProgress
    retry_at: float
    delay_s: float


class Writing:
    """Tracks all unacknowledged writes of a loop. Used by the consume loop's thread only."""

    def __init__(self, *, outbox: Outbox, outcomes: Outcomes, pauses: Pauses, stats: Stats, clock: Clock) -> None:
        self._outbox = outbox
        self._outcomes = outcomes
        self._pauses = pauses
        self._stats = stats
        self._clock = clock
        self._held: dict[TopicPartition, _Held] = {}
        self._awaited: dict[TopicPartition, PartitionProgress] = {}
        self._check_at = float("-inf")
        self._open = False

    @property
    def open(self) -> bool:
        """True while any partition that is not held has unacknowledged writes."""
        return bool(self._awaited)

    def expect(self, batch: Partitions) -> None:
        """Track the writes of these partitions, whose records have been handled. `follow` completes the writes."""
        for topic_partition, partition in batch.items():
            if partition.unfinished and topic_partition not in self._held:
                self._awaited[topic_partition] = partition

    def follow(self, wait_s: float) -> None:
        """Wait for acknowledgements and process them. The wait is at most `wait_s` seconds, or `ACK_WAIT_S` if too many
        bytes are unacknowledged.

        Holds partitions whose acknowledgements are overdue, and sends failed writes of held partitions again.
        """
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
        if now >= self._check_at:
            self._check_at = now + CHECK_INTERVAL_S
            self._retry_held(now)

    def _wait(self, partitions: Partitions, most_s: float) -> None:
        """Process acknowledgements, and wait at most `most_s` seconds until the writes of `partitions` are complete."""
        deadline = self._clock.monotonic() + most_s
        while True:
            left = deadline - self._clock.monotonic() if _on_its_way(partitions) else 0.0
            self._outbox.wait(max(0.0, min(left, ACK_POLL_S)))
            if left <= ACK_POLL_S:
                return

    def _full(self) -> bool:
        held = sum(each.partition.size for each in self._held.values())
        return held + sum(each.size for each in self._awaited.values()) >= OPEN_BYTES_MAX

    def tend(self, partitions: Partitions) -> bool:
        """Process acknowledgements without waiting, and hold partitions whose acknowledgements are overdue.

        Returns True if the last full check found an unacknowledged write. The caller should then call again soon. The
        cost of a full check grows with the records in flight, so it runs only every `CHECK_INTERVAL_S`.
        """
        self._outbox.wait(0)
        for partition in partitions.values():
            if partition.unfinished:
                self._count(partition)
        now = self._clock.monotonic()
        if now >= self._check_at:
            self._check_at = now + CHECK_INTERVAL_S
            self._open = self._check_all(partitions, now)
        return self._open

    def _check_all(self, partitions: Partitions, now: float) -> bool:
        still_open = False
        for topic_partition, partition in partitions.items():
            oldest = None if topic_partition in self._held else _first_unwritten(partition)
            if oldest is None:
                continue
            still_open = True
            self._hold_if_stuck(partition, oldest, now)
        self._retry_held(now)
        return still_open

    def finish(self, partitions: Partitions, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for the writes of partitions that are being revoked. The next owner repeats
        records whose writes are still unacknowledged."""
        deadline = self._clock.monotonic() + timeout_s
        while any(partition.unfinished for partition in partitions.values()):
            self._wait(partitions, deadline - self._clock.monotonic())
            for partition in partitions.values():
                self._count(partition)
                self._recover(partition)
            if self._clock.monotonic() >= deadline or not _on_its_way(partitions):
                return

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            self._held.pop(topic_partition, None)
            self._awaited.pop(topic_partition, None)

    def _hold_if_stuck(self, partition: PartitionProgress, oldest: Unfinished, now: float) -> bool:
        """Hold the partition if a write of its oldest unwritten record is overdue, or has failed and cannot be
        replaced. Returns True if the partition is held."""
        overdue = now - oldest.handled_at >= ACK_WAIT_S
        if not overdue and not _failed(oldest):
            return False
        self._recover(partition)
        if not overdue and not _failed(oldest):
            return False
        self._hold(partition, now)
        return True

    def _retry_held(self, now: float) -> None:
        for held in list(self._held.values()):
            partition = held.partition
            self._count(partition)
            self._recover(partition)
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
        for result in partition.pop_finished():
            self._stats.count(result)

    def _recover(self, partition: PartitionProgress) -> None:
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
    return any(
        not write.done
        for partition in partitions.values()
        for unfinished in partition.unfinished
        for write in unfinished.writes
    )


def _failed(unfinished: Unfinished) -> bool:
    return any(write.error is not None for write in unfinished.writes)


def _hold_of(partition: PartitionProgress, previous: Hold | None, wall: float) -> Hold:
    """Return the hold of a partition. While a failed write is sent again, the hold keeps the reason of `previous`."""
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
        message = f"no acknowledgement yet from {', '.join(topics)}; check that the brokers are up"
    return Hold(offset, previous.since if previous is not None and same else wall, reason, message)
