"""The end offsets of owned partitions, kept fresh for `Consumer.lag` without ever blocking.

librdkafka knows ends only from its fetches, of the wrong isolation level, and not of partitions that it does not fetch
just now. So brokers are asked, one request for each leader, and only while lags are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.record import TopicPartition

FRESH_S: Final = 1.0
"""The age at which an end is looked up again."""
ASKING_S: Final = 60.0
"""The time after the last `lag` for which polls keep ends fresh."""
PATIENCE_S: Final = 10.0
"""The timeout of one lookup; a broker that hangs must not keep the others' ends old."""


class EndOffsets:
    """The last known ends. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, *, read_committed: bool) -> None:
        self._group = group
        self._read_committed = read_committed
        self._ends: dict[TopicPartition, int] = {}
        self._lookup: Ticket[dict[TopicPartition, int]] | None = None
        self._asked: frozenset[TopicPartition] = frozenset()
        self._asked_at = self._wanted_until = float("-inf")

    def of(self, partition: TopicPartition, owned: frozenset[TopicPartition], now: float) -> int | None:
        """The end of a partition, None while unknown; starts a lookup for all `owned` when their ends are old."""
        self._wanted_until = now + ASKING_S
        self.refresh(owned, now, unknown=partition)
        return self._ends.get(partition)

    def refresh(self, owned: frozenset[TopicPartition], now: float, unknown: TopicPartition | None = None) -> None:
        """Take an answer that has come, and ask again when ends are old and lags were asked for of late."""
        if now >= self._wanted_until:
            return
        self._take(owned)
        if self._lookup is not None and now < self._asked_at + PATIENCE_S:
            return
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        # A partition that came since the last lookup need not wait until the others are old.
        new = unknown is not None and unknown not in self._asked
        if owned and (new or now >= self._asked_at + FRESH_S):
            self._asked, self._asked_at = owned, now
            self._lookup = self._group.end_offsets(sorted(owned), read_committed=self._read_committed)

    def look_up(self, partitions: Iterable[TopicPartition]) -> Ticket[dict[TopicPartition, int]]:
        """Look up ends once, whatever is known. Any thread."""
        return self._group.end_offsets(sorted(partitions), read_committed=self._read_committed)

    def _take(self, owned: frozenset[TopicPartition]) -> None:
        if self._lookup is None or not self._lookup.done:
            return
        found, self._lookup = self._lookup.result or {}, None
        # A partition without an answer keeps its last end; one that is not owned any more has none.
        self._ends = {part: end for part, end in {**self._ends, **found}.items() if part in owned}
