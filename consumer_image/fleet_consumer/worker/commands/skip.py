"""`fleet-consumer skip`: the next record of a group without members, set aside as by `spec.offsets.skip`."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.naming import failed_topic, redrive_topic, retry_group, retry_topic
from fleet_consumer.contract.pod import EXIT_OK
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.errors import DataPlaneFailed, TopicMissing
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.producer import ProduceFailed, RecordProducer
from fleet_consumer.librdkafka.settings import connection_config, consumer_config
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.redrive.job import ACK_TIMEOUT_S
from fleet_consumer.retry.failure import Failure, Skipped, classify
from fleet_consumer.retry.headers import FailedDelivery, continued, failed_headers, first_story, read
from fleet_consumer.retry.routing import partition_of
from fleet_consumer.worker.commands.empty_group import empty_group, without_topic
from fleet_consumer.worker.commands.failed_records import RecordMissing
from fleet_consumer.worker.commands.options import brokers_of
from fleet_consumer.worker.config.settings import connection_settings

CLIENT: Final = "fleet-consumer-skip"
TEXT: Final = "fleet-consumer skip named this record; it was not handed to the handler"


def run(options: argparse.Namespace) -> int:
    partition, offset = place_of(options.place)
    failed = options.topic or failed_topic(options.group)
    if failed == partition.topic:
        raise SettingsInvalid("--topic", "is the record's own topic; name that of failed records")
    brokers = brokers_of(options)
    # Whatever the group reads: a record of an aborted transaction must not come back by a redrive.
    config = consumer_config(connection_settings(brokers, CLIENT), CLIENT, "read_committed", {})
    with (
        empty_group(brokers, reading_group(options.group, partition.topic), options.timeout) as group,
        BoundedReader(config, stores_offsets=False, patience_s=options.timeout) as reader,
    ):
        try:
            targets = len(reader.partitions(failed))
        except TopicMissing as missing:
            raise without_topic(missing, brokers, failed, options.timeout) from missing
        before = group.committed()
        found = _next_record(reader, partition, before.get(partition), options.timeout)
        _set_aside(brokers, failed, targets, options.group, named(found, partition, offset))
        group.commit({partition: behind(offset, before.get(partition))}, before)
    print(f"record {options.place} is in the failed topic, and the group goes on behind it", file=sys.stderr)
    return EXIT_OK


def place_of(text: str) -> tuple[TopicPartition, int]:
    """Partition and offset of a place. Raises SettingsInvalid."""
    where, _, offset = text.rpartition(":")
    topic, _, partition = where.rpartition("-")
    if not topic or not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in (partition, offset)):
        raise SettingsInvalid("TOPIC-PARTITION:OFFSET", f"is {text!r}; write it such as orders-3:1734")
    return TopicPartition(topic, int(partition)), int(offset)


def reading_group(group_id: str, topic: str) -> str:
    """The Kafka group that reads a topic for this group: its retry worker reads what waits."""
    waits = topic == redrive_topic(group_id) or topic.startswith(retry_topic(group_id, ""))
    return retry_group(group_id) if waits else group_id


def named(record: Record | None, partition: TopicPartition, offset: int) -> Record:
    """The group's next record. Raises RecordMissing unless it is the one that was named."""
    if record is None:
        raise RecordMissing(f"the group has no committed record left in {partition.name}")
    if record.offset != offset:
        why = (
            "only the next one can be skipped, as the commit passes all before it"
            if offset > record.offset
            else "the group is past that one, or it is gone, or its transaction was aborted"
        )
        where = f"{partition.name} is at offset {record.offset}"
        raise RecordMissing(f"the group's next record in {where}, not {offset}: {why}")
    return record


def behind(offset: int, before: OffsetAndMetadata | None) -> OffsetAndMetadata:
    """The commit behind a record, in the same reading as the commit of before."""
    reading = continued(before)
    return OffsetAndMetadata(offset + 1, -1, "" if reading is None else reading.mark(offset + 1))


def _next_record(
    reader: BoundedReader, partition: TopicPartition, commit: OffsetAndMetadata | None, timeout_s: float
) -> Record | None:
    """The first record at the group's commit or behind it; from the start without a commit."""
    if partition not in reader.partitions(partition.topic):
        raise RecordMissing(f"topic {partition.topic} has no partition {partition.partition}")
    first, end = reader.bounds([partition])[partition]
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    for step in reader.read({partition: (max(first, commit.offset if commit else first), end)}):
        for record in step.records.get(partition, ()):
            return record
        if clock.monotonic() >= deadline:
            raise DataPlaneFailed(f"partition {partition.name}: nothing came in {timeout_s:g} s")
    return None


def _set_aside(brokers: Brokers, topic: str, targets: int, group_id: str, record: Record) -> None:
    """Write a record to the group's failed topic, of `targets` partitions, and wait until the brokers have it."""
    now_ms = round(SystemClock().wall() * 1000)
    own = reading_group(group_id, record.topic) == group_id
    story = first_story(record) if own else read(record, now_ms=now_ms)
    failure = classify(Skipped(TEXT))
    assert isinstance(failure, Failure), "no policy says otherwise"
    headers = failed_headers(FailedDelivery(record, failure, group_id, now_ms, story))
    where = partition_of(record.key, story.origin, targets)
    producer = RecordProducer(connection_config(connection_settings(brokers, CLIENT)))
    handle = producer.send(topic, key=record.key, value=record.value, headers=headers, partition=where)
    producer.flush(ACK_TIMEOUT_S)
    if handle.error is not None:
        raise handle.error
    if not handle.done:
        raise ProduceFailed(topic, "NotAcknowledged", f"not within {ACK_TIMEOUT_S:g} s")
