"""Partitions, seeks and unreadable data in librdkafka's terms."""

from __future__ import annotations

from typing import Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

UNREADABLE: Final = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,  # an unknown codec or format
        KafkaError._UNDERFLOW,
        KafkaError.INVALID_MSG,  # the broker itself finds its log corrupt
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.UNKNOWN,  # it fails as it reads its log, and knows no word for that
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Errors of a partition that are about the bytes of its log, and not about who serves them.

librdkafka does not stop at such a batch: it reads on at a wrong place, and may go on at an offset that it made up
there, behind records that are good. Nothing counts that comes of the partition before it is sought.
"""


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


def stand(consumer: confluent_kafka.Consumer, partition: tuple[str, int]) -> None:
    """Stop at data that cannot be read, until `read_again`."""
    consumer.pause([at(partition)])


def read_again(consumer: confluent_kafka.Consumer, partition: tuple[str, int], offset: int) -> None:
    """Try data that could not be read once more, from `offset` on."""
    consumer.resume([at(partition)])
    seek(consumer, partition, offset)
