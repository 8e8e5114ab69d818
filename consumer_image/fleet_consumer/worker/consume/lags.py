"""Lag and time behind of each partition that this worker owns, for its metrics.

Ends are looked up when somebody scrapes, on the thread that answers: a handler that hangs has the loop's own thread,
and lag matters most then. What librdkafka knows of ends needs no request, but is as old as its last fetch, and so
stands still for a partition that is held or waits behind an open breaker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.consume.progress import PartitionProgress

EVERY_S: Final = 5.0
"""The least time between two lookups, however often somebody scrapes."""
WAIT_S: Final = 0.5
"""A scrape waits so long for its answer; one that comes later is for the next."""
OLD_S: Final = 60.0
"""Ends of this age are unknown again."""

NO_ENDS: Final[Mapping[TopicPartition, int]] = {}


class Ends:
    """The last known ends of partitions. Any thread; two at once may look up twice, and each sees a whole answer."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._lookup: Ticket[dict[TopicPartition, int]] | None = None
        self._asked_at = self._known_at = float("-inf")
        self._known = NO_ENDS

    def look(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Ends of these partitions, without those that are not known."""
        self._take()
        now = self._clock.monotonic()
        if now >= self._asked_at + EVERY_S:
            if self._lookup is not None:
                self._lookup.cancel()
            self._asked_at, self._lookup = now, self._consumer.look_up_ends(partitions)
        if self._lookup is not None:
            self._lookup.wait(WAIT_S)
        self._take()
        return self._known if self._clock.monotonic() < self._known_at + OLD_S else NO_ENDS

    def _take(self) -> None:
        lookup = self._lookup
        if lookup is not None and lookup.done:
            self._lookup = None
            if lookup.result is not None:
                self._known, self._known_at = lookup.result, self._asked_at


def lag_of(partition: PartitionProgress, end: int | None) -> int | None:
    """Records from the committed offset, or from where reading began before there was a commit, to the end."""
    first = partition.start if partition.committed is None else partition.committed
    return None if first is None or end is None else max(0, end - first)


def seconds_behind(
    partition: PartitionProgress, end: int | None, in_hand: Callable[[], Record | None], now: float
) -> float | None:
    """Age of the oldest record in hand, or else of the one handled last; 0 when none is left to handle.

    By the records' own timestamps (`now` is wall clock), None without one, or while it is not known whether any is
    left. `in_hand` gives this partition's record on the loop's own thread.
    """
    try:
        record: Record | None = partition.unfinished[0].record
    except IndexError:
        record = in_hand()
    if record is None and (end is None or partition.next_offset is None):
        return None
    if record is None and end is not None and max(partition.next_offset or 0, partition.committed or 0) >= end:
        return 0.0
    timestamp = partition.timestamp if record is None else record.timestamp
    return None if timestamp is None or timestamp <= 0 else max(0.0, now - timestamp / 1000)
