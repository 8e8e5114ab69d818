"""Lag and time behind of each partition that this worker owns, for its metrics.

Ends of partitions are asked for only while somebody scrapes the metrics. What librdkafka knows of them needs no
request, but is as old as its last fetch, and so stands still for a partition that is held or waits behind an open
breaker, when lag matters most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.record import Record
from fleet_consumer.worker.consume.progress import PartitionProgress, Partitions

WANTED_S: Final = 300.0
"""Time after a scrape for which ends are kept fresh: the longest interval of scrapes that is served well."""
LOOK_S: Final = 5.0
"""Interval at which known ends are taken over; they are asked for less often (`settings.LAG_INTERVAL_MS`)."""


class Lags:
    """Keeps `end` of owned partitions. `want` is for any thread, all else for the loop's."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._wanted_until = float("-inf")
        self._due_at = float("-inf")

    def want(self) -> None:
        """Somebody looks at the metrics."""
        self._wanted_until = self._clock.monotonic() + WANTED_S

    def look(self, partitions: Partitions) -> None:
        """Take over the ends that are known, if they are due; never blocks. Unwanted ones are forgotten."""
        now = self._clock.monotonic()
        if now < self._due_at:
            return
        self._due_at = now + LOOK_S
        wanted = now < self._wanted_until
        for topic_partition, partition in partitions.items():
            try:
                lag = self._consumer.lag(topic_partition) if wanted else None
                position = self._consumer.position(topic_partition) if lag is not None else None
            except ConsumerError:
                lag = position = None  # it is just being lost
            partition.end = None if lag is None or position is None else position + lag


def lag_of(partition: PartitionProgress) -> int | None:
    """Records from the committed offset, or from where reading began before there was a commit, to the end."""
    first = partition.start if partition.committed is None else partition.committed
    return None if first is None or partition.end is None else max(0, partition.end - first)


def seconds_behind(partition: PartitionProgress, in_hand: Callable[[], Record | None], now: float) -> float | None:
    """Age of the oldest record in hand, or else of the one handled last; 0 when none is left to handle.

    By the records' own timestamps (`now` is wall clock), None without one. `in_hand` gives this partition's record on
    the loop's own thread.
    """
    try:
        record: Record | None = partition.unfinished[0].record
    except IndexError:
        record = in_hand()
    following = max(partition.next_offset or 0, partition.committed or 0)
    if record is None and (partition.end is None or partition.next_offset is None):
        return None
    if record is None and partition.end is not None and following >= partition.end:
        return 0.0
    timestamp = partition.timestamp if record is None else record.timestamp
    return None if timestamp is None or timestamp <= 0 else max(0.0, now - timestamp / 1000)
