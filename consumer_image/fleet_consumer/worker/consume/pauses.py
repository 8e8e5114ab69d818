"""Paused partitions and the reasons: a pause ends when its last reason ends.

Written by the consume loop's thread; others may read `reasons`, which is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.record import TopicPartition

WRITES_HELD: Final = "WritesHeld"
"""Paused because what its records wrote is not acknowledged."""
WINDOW_FULL: Final = "WindowFull"
"""Paused because its first unfinished record is too far behind."""
NOT_DUE: Final = "NotDue"
"""Paused because the record that comes next is not due yet."""
BREAKER_OPEN: Final = "BreakerOpen"
"""Paused because too much of what was handled lately failed."""
SUSPECT: Final = "Suspect"
"""Paused because one of the records in hand, or of those that come next, may have killed the partition's last owner."""


class Pauses:
    """The pauses of one consumer, each with its reasons (CamelCase)."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.reasons: Mapping[TopicPartition, frozenset[str]] = {}

    def pause(self, partition: TopicPartition, reason: str) -> None:
        """Add a reason; the first one pauses."""
        known = self.reasons.get(partition, frozenset())
        if not known:
            self._consumer.pause([partition])
        self.reasons = {**self.reasons, partition: known | {reason}}

    def resume(self, partition: TopicPartition, reason: str) -> None:
        """Take a reason away; the last one resumes."""
        known = self.reasons.get(partition, frozenset())
        if reason not in known:
            return
        left = known - {reason}
        others = {each: why for each, why in self.reasons.items() if each != partition}
        self.reasons = {**others, partition: left} if left else others
        if not left:
            self._consumer.resume([partition])

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are not owned any more; the consumer has ended their pauses itself."""
        gone = frozenset(partitions)
        if not gone.isdisjoint(self.reasons):
            self.reasons = {each: why for each, why in self.reasons.items() if each not in gone}
