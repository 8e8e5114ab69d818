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
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.consume.progress import PartitionProgress

EVERY_S: Final = 5.0
"""The least time between two lookups, however often somebody scrapes."""
WAIT_S: Final = 0.5
"""A scrape waits so long for its answer; one that comes later is for the next."""
OLD_S: Final = 60.0
"""Ends of this age are unknown again."""

NO_ENDS: Final[Mapping[TopicPartition, int]] = {}


_Lookup = tuple[Ticket[dict[TopicPartition, int]], float]
"""A question to the brokers and when it was asked, monotonic seconds."""


class Ends:
    """The last known ends of partitions. Any thread; two at once may look up twice, and each sees a whole answer."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._lookup: _Lookup | None = None
        self._asked_at = float("-inf")
        self._known: Mapping[TopicPartition, tuple[int, float]] = {}

    def look(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Ends of these partitions, without those that are not known."""
        lookup = self._lookup
        self._take(lookup)
        now = self._clock.monotonic()
        if now >= self._asked_at + EVERY_S:
            if lookup is not None:
                lookup[0].cancel()
            self._asked_at = now
            self._lookup = lookup = self._consumer.look_up_ends(partitions), now
        if lookup is not None:
            lookup[0].wait(WAIT_S)
            self._take(lookup)
        oldest = self._clock.monotonic() - OLD_S
        return {each: end for each, (end, at) in self._known.items() if at > oldest}

    def _take(self, lookup: _Lookup | None) -> None:
        """Take an answer that has come. It has no end of a partition whose broker did not answer: that one stays."""
        if lookup is None or not lookup[0].done:
            return
        found, asked_at = lookup[0].result, lookup[1]
        if self._lookup is lookup:
            self._lookup = None
        if found is not None:
            oldest = self._clock.monotonic() - OLD_S
            kept = {each: known for each, known in self._known.items() if known[1] > oldest}
            self._known = kept | {each: (end, asked_at) for each, end in found.items()}


def lag_of(partition: PartitionProgress, end: int | None) -> int | None:
    """Records from the committed offset, or from where reading began before there was a commit, to the end.

    None also where the end is below: it was looked up before that commit.
    """
    first = partition.start if partition.committed is None else partition.committed
    return None if first is None or end is None or end < first else end - first


def seconds_behind(
    partition: PartitionProgress, end: int | None, in_hand: Callable[[], Record | None], now: float
) -> float | None:
    """Age of the oldest record in hand, or else of the one handled last; 0 when none is left to handle.

    By the records' own timestamps (`now` is wall clock), None without one, or while it is not known whether any is
    left. A record that came after this function has last found none left is no older than that. `in_hand` gives the
    record on the loop's own thread, of whichever partition.
    """
    try:
        record: Record | None = partition.unfinished[0].record
    except IndexError:
        held = in_hand()
        record = None if held is None else as_read(held)
        if record is not None and (record.topic, record.partition) != partition.topic_partition:
            record = None
    if record is not None:
        return _age(record.timestamp, now)
    committed, position = partition.committed or 0, partition.next_offset
    if end is None or position is None or end < committed:
        return None
    if max(position, committed) >= end:
        partition.caught_up_at = now
        return 0.0
    age = _age(partition.timestamp, now)
    return None if age is None else max(0.0, min(age, now - partition.caught_up_at))


def _age(timestamp: int | None, now: float) -> float | None:
    return None if timestamp is None or timestamp <= 0 else max(0.0, now - timestamp / 1000)
