"""Data that cannot be read, passed by on request: the rest of their batch, and nothing behind it.

Used by the consume loop's thread only.
"""

from __future__ import annotations

import logging
from typing import Final

from fleet_consumer.contract.skips import PassedBy, Place
from fleet_consumer.fetch.read_errors import PartitionError
from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.progress import Partitions
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

LOOK_S: Final = 1.0
AGAIN_S: Final = 10.0
"""Wait after a batch whose end was not found."""
ASK_S: Final = 5.0
"""Timeout of the search for one batch's end."""


class Unreadable:
    """Passes what nobody can read, where the list of skips names the next offset, or an intake does not need it."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._look_at = self._search_at = float("-inf")

    def look(self, partitions: Partitions) -> None:
        """Look at the partitions that stand, about once a second. Raises FatalConsumerError."""
        now = self._parts.clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for topic_partition, data in self._parts.consumer.unreadable().items():
            if topic_partition in partitions:
                self._look(topic_partition, data, partitions)

    def _look(self, topic_partition: TopicPartition, data: PartitionError, partitions: Partitions) -> None:
        parts, partition, offset = self._parts, partitions[topic_partition], data.offset
        if topic_partition in parts.pauses.reasons or parts.consumer.position(topic_partition) != offset:
            return  # records before it are held back
        further = parts.intake.not_needed(topic_partition, offset)
        if further is not None:
            parts.consumer.seek(topic_partition, further)
            return
        asked = parts.skips.names(topic_partition, offset)
        known = partition.reading is not None and partition.note is not None and not partition.unfinished
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
            LOG.warning("data that cannot be read are not passed by: %s", error, extra=where)
            return
        partition.pass_gap(offset, end)
        parts.consumer.seek(topic_partition, end)
        parts.stats.passed_by(Place(*topic_partition, offset), PassedBy(parts.clock.wall(), end - 1))
        LOG.warning("data that cannot be read are passed by: offsets %d to %d", offset, end - 1, extra=where)
