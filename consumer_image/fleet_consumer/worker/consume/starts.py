"""The offsets at which partitions begin, and those that hold no record, noted as polls bring them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.record import Records, TopicPartition
from fleet_consumer.worker.consume.progress import PartitionProgress, Partitions
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")


def note_start(
    consumer: Consumer, topic_partition: TopicPartition, partition: PartitionProgress, offset: int | None = None
) -> None:
    """Note where the reading of a partition begins: at `offset` if it is known, else at the consumer's position.

    Reading begins where the last commit ended, so these lines explain every record that comes twice.
    """
    if offset is None:
        try:
            offset = consumer.position(topic_partition)
        except ConsumerError:
            return  # it is just being lost; its next owner notes its start
    if offset is not None:
        partition.start = offset
        LOG.info("partition started", extra=fields(**topic_partition._asdict(), offset=offset))


def note_starts(consumer: Consumer, asked: Iterable[TopicPartition], partitions: Partitions) -> None:
    """Note the starts of partitions that have handed out nothing yet; one that has is past its start already."""
    for topic_partition in asked:
        partition = partitions.get(topic_partition)
        if partition is not None and partition.start is None:
            note_start(consumer, topic_partition, partition)


def note_polled(consumer: Consumer, records: Records, partitions: Partitions) -> None:
    """Note starts and gaps of what a poll brought.

    A start is that of the partition's first run, also when that is not going to be handled: the consumer's position is
    past it by now, and committing that would skip it. Commits cover a gap once all before it is done, or a drained
    partition would look behind.
    """
    for run in records.runs:
        partition = partitions[run.topic_partition]
        if partition.start is None:
            note_start(consumer, run.topic_partition, partition, run.records[0].offset)
        partition.read()
    for topic_partition, gap in records.gaps.items():
        partition = partitions[topic_partition]
        if partition.start is None:
            note_start(consumer, topic_partition, partition, gap.first)
        partition.pass_gap(gap.first, gap.next)
