"""The breaker's pace, applied to a loop: the mark in its commits, and its partitions paused while the breaker is
open."""

from __future__ import annotations

from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.committing import Committing
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.pauses import BREAKER_OPEN
from fleet_consumer.worker.consume.progress import ConsumeProgress


class Throttle:
    """The pace of one loop. The loop writes `idle`: there was nothing to handle, and nothing is being handled."""

    def __init__(self, parts: LoopParts, progress: ConsumeProgress, committing: Committing) -> None:
        self._parts = parts
        self._progress = progress
        self._committing = committing
        self.pace = Pace.FULL
        self.idle = False

    def adjust(self) -> None:
        """Take over the pacing's pace and mark. Other workers see the mark at once: it is committed soon."""
        pace = self._parts.pacing.pace(idle=self.idle)
        self._committing.carry(self._parts.pacing.mark)
        if pace is self.pace:
            return
        self.pace = pace
        for topic_partition in self._progress.partitions:
            if pace is Pace.STOP:
                self._parts.pauses.pause(topic_partition, BREAKER_OPEN)
            else:
                self._parts.pauses.resume(topic_partition, BREAKER_OPEN)

    def assigned(self, topic_partition: TopicPartition) -> None:
        """A partition that comes while all stand still is paused like them."""
        if self.pace is Pace.STOP:
            self._parts.pauses.pause(topic_partition, BREAKER_OPEN)
