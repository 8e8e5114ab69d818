"""Metrics of each owned partition: lag in records, and seconds behind.

A scrape looks up the end offsets on its own thread, because lag matters most when a handler hangs on the loop's thread.
The end offsets in librdkafka would need no request, but are as old as its last fetch. They do not change while a
partition is held or the breaker is open. Decision: docs/decisions/0038-metrics-and-logs.md.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.consume.progress import PartitionProgress

EVERY_S: Final = 5.0
"""Minimum interval between two lookups in seconds, even if scrapes are more frequent."""
WAIT_S: Final = 0.5
"""Longest time in seconds that a scrape waits for the response. The next scrape uses a later response."""
OLD_S: Final = 60.0
"""End offsets older than this many seconds count as unknown."""


_Lookup = tuple[Ticket[dict[TopicPartition, int]], float]
"""A running lookup of end offsets, and its start (monotonic seconds)."""


class Ends:
    """The last known end offsets of partitions. Any thread. Two concurrent scrapes may both look up offsets, and each
    of them uses a complete response."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._lookup: _Lookup | None = None
        self._asked_at = float("-inf")
        self._known: Mapping[TopicPartition, tuple[int, float]] = {}

    def current(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets of these partitions. Partitions with an unknown end offset are left out."""
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
        """Store the result of a finished lookup. A partition whose broker did not respond keeps its last end offset."""
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
    """Return the number of offsets from the committed offset to `end`. Before the first commit, the starting position
    is used in place of the committed offset.

    Returns None if an offset is unknown, or if `end` is lower than the committed offset because it was looked up
    earlier.
    """
    first = partition.start if partition.committed is None else partition.committed
    return None if first is None or end is None or end < first else end - first


def seconds_behind(
    partition: PartitionProgress, end: int | None, in_hand: Callable[[], Record | None], now: float
) -> float | None:
    """Return how many seconds the partition is behind: the age of the oldest record being handled. If no record is
    being handled, it is the age of the last handled record. It is 0 if every record up to `end` has been handled.

    The age is computed from record timestamps (`now` is wall clock, in seconds). The age of the last handled record is
    limited to the time since this function last returned 0. Returns None without a timestamp, or if `end` is unknown.
    `in_hand` returns the record that the loop's thread is handling, which may belong to another partition.
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
