"""`fleet-consumer skip`: moves the next record of a group to the group's failed topic without handling the record, as
`spec.offsets.skip` does."""

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
from fleet_consumer.retry.headers import FailedDelivery, continued, failed_headers, first_history, read
from fleet_consumer.retry.routing import partition_of
from fleet_consumer.worker.commands.empty_group import empty_group, without_topic
from fleet_consumer.worker.commands.failed_records import RecordMissing
from fleet_consumer.worker.commands.options import brokers_of
from fleet_consumer.worker.config.settings import connection_settings

CLIENT: Final = "fleet-consumer-skip"
TEXT: Final = "skipped by fleet-consumer skip; the handler was not called"


def run(options: argparse.Namespace) -> int:
    partition, offset = place_of(options.place)
    failed = options.topic or failed_topic(options.group)
    if failed == partition.topic:
        raise SettingsInvalid("--topic", "is the record's own topic; name the failed topic")
    brokers = brokers_of(options)
    # Always read_committed: a record of an aborted transaction must not get into the failed topic, because a redrive
    # would deliver it.
    config = consumer_config(connection_settings(brokers, CLIENT), CLIENT, "read_committed", {})
    with (
        empty_group(brokers, consuming_group(options.group, partition.topic), options.timeout) as group,
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
    print(f"record {options.place} was moved to the failed topic; the group continues after it", file=sys.stderr)
    return EXIT_OK


def place_of(text: str) -> tuple[TopicPartition, int]:
    """Parse TOPIC-PARTITION:OFFSET to a partition and an offset. Raises SettingsInvalid."""
    where, _, offset = text.rpartition(":")
    topic, _, partition = where.rpartition("-")
    if not topic or not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in (partition, offset)):
        raise SettingsInvalid("TOPIC-PARTITION:OFFSET", f"is {text!r}; it must have the form orders-3:1734")
    return TopicPartition(topic, int(partition)), int(offset)


def consuming_group(group_id: str, topic: str) -> str:
    """Return the id of the Kafka group that reads a topic: the retry workers' group for retry and redrive topics, and
    `group_id` for all others."""
    waits = topic == redrive_topic(group_id) or topic.startswith(retry_topic(group_id, ""))
    return retry_group(group_id) if waits else group_id


def named(record: Record | None, partition: TopicPartition, offset: int) -> Record:
    """Return `record`, the group's next record. Raises RecordMissing if it is None or not at `offset`."""
    if record is None:
        raise RecordMissing(
            f"{partition.name} has no next record for the group; open and aborted transactions do not count"
        )
    if record.offset != offset:
        why = (
            "only the next record can be skipped, because the commit would also skip all earlier records"
            if offset > record.offset
            else "the group is past that record, or the record was deleted, or its transaction was aborted"
        )
        where = f"{partition.name} is at offset {record.offset}"
        raise RecordMissing(f"the group's next record in {where}, not {offset}: {why}")
    return record


def behind(offset: int, before: OffsetAndMetadata | None) -> OffsetAndMetadata:
    """Return a commit of the next offset after `offset`, in the replay epoch of the previous commit `before`."""
    replay_epoch = continued(before)
    return OffsetAndMetadata(offset + 1, -1, "" if replay_epoch is None else replay_epoch.metadata(offset + 1))


def _next_record(
    reader: BoundedReader, partition: TopicPartition, commit: OffsetAndMetadata | None, timeout_s: float
) -> Record | None:
    """Return the first record at or after the committed offset; without a commit, at or after the start of the log.
    None if there is no record before the partition's end."""
    if partition not in reader.partitions(partition.topic):
        raise RecordMissing(f"topic {partition.topic} has no partition {partition.partition}")
    first, end = reader.bounds([partition])[partition]
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    for step in reader.read({partition: (max(first, commit.offset if commit else first), end)}):
        for record in step.records.get(partition, ()):
            return record
        if clock.monotonic() >= deadline:
            raise DataPlaneFailed(f"partition {partition.name}: no records within {timeout_s:g} s")
    return None


def _set_aside(brokers: Brokers, topic: str, targets: int, group_id: str, record: Record) -> None:
    """Write a record to the failed topic `topic` and wait for the acknowledgement. `targets` is the topic's number of
    partitions."""
    now_ms = round(SystemClock().wall() * 1000)
    own = consuming_group(group_id, record.topic) == group_id
    history = first_history(record) if own else read(record, now_ms=now_ms)
    failure = classify(Skipped(TEXT))
    assert isinstance(failure, Failure), "no policy says otherwise"
    headers = failed_headers(FailedDelivery(record, failure, group_id, now_ms, history))
    where = partition_of(record.key, history.origin, targets)
    producer = RecordProducer(connection_config(connection_settings(brokers, CLIENT)))
    handle = producer.send(topic, key=record.key, value=record.value, headers=headers, partition=where)
    producer.flush(ACK_TIMEOUT_S)
    if handle.error is not None:
        raise handle.error
    if not handle.done:
        raise ProduceFailed(topic, "NotAcknowledged", f"no acknowledgement within {ACK_TIMEOUT_S:g} s")
