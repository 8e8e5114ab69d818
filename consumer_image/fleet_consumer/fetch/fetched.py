"""From librdkafka's messages to records.

This is the hot path: what is done here is done for every record that anybody handles. All fields are filled at once,
in one plain loop: an assignment to a slot is the cheapest way that Python has to fill an object, and a field that is
filled costs next to nothing to read. Decision record 0009 has what else was measured.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

from confluent_kafka import Message

from fleet_consumer.record import Headers, Record, TopicPartition

_NO_HEADERS: Headers = ()


def fetched_records(topic_partition: TopicPartition, run: list[Message]) -> list[Record]:
    """One record for each message of a run; all are of this partition, in offset order, and none is an error."""
    topic, partition = topic_partition
    no_headers = _NO_HEADERS
    # Leader epochs never fall along a partition, so a run whose ends agree has one epoch throughout.
    epoch = leader_epoch(run[0])
    # Made without their `__init__`, whose call alone would cost half of what the whole loop does.
    records: list[Record] = list(map(object.__new__, repeat(Record, len(run))))
    message: Any
    for record, message in zip(records, run, strict=True):
        record.topic = topic
        record.partition = partition
        record.offset = message.offset()
        _, record.timestamp = message.timestamp()
        record.key = message.key()
        record.value = message.value()
        record.headers = message.headers() or no_headers
        record.leader_epoch = epoch
        record.attempt = 0
        record.first_failed_at = None
    if leader_epoch(run[-1]) != epoch:
        for record, message in zip(records, run, strict=True):
            record.leader_epoch = leader_epoch(message)
    return records


def leader_epoch(message: Message) -> int:
    """The epoch of the leader that wrote a message, -1 when the broker did not tell."""
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch
