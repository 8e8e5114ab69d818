"""Partitions and seeks in librdkafka's terms."""

from __future__ import annotations

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException


def at(partition: tuple[str, int], offset: int | None = None, epoch: int = -1) -> confluent_kafka.TopicPartition:
    """A place in a partition; `epoch` is the leader epoch of the record before it, -1 when unknown."""
    if offset is None:
        return confluent_kafka.TopicPartition(*partition)
    if epoch < 0:
        return confluent_kafka.TopicPartition(*partition, offset)
    return confluent_kafka.TopicPartition(*partition, offset, leader_epoch=epoch)


def seek(consumer: confluent_kafka.Consumer, partition: tuple[str, int], offset: int, epoch: int = -1) -> None:
    """Seek, also in a partition that librdkafka has been assigned and has not begun to read.

    It begins only when others that were taken away have stopped, and refuses to seek until then. Assigned anew it
    begins at the given offset.
    """
    try:
        consumer.seek(at(partition, offset, epoch))
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError._STATE:
            raise
        consumer.incremental_unassign([at(partition)])
        consumer.incremental_assign([at(partition, offset, epoch)])
