"""A group's records in `__consumer_offsets`: its committed offsets and its last generation.

The coordinator returns the same offsets (`Consumer.committed`), but the topic also has their commit times, and can be
read while the coordinator is unavailable. Reading the topic needs Read permission, which few principals have.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.contract.naming import coordinator_partition
from fleet_consumer.group import errors
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.settings import consumer_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.offsets_topic import (
    TOPIC,
    CommittedOffset,
    GroupMetadataValue,
    OffsetCommitValue,
    StoredGroup,
    decode,
)

__all__ = ["GroupMetadataValue", "OffsetCommitValue", "StoredOffsets", "read_group"]


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """One group's records in `partition` of `__consumer_offsets`. `group` is None if its metadata record is missing or
    was deleted. `unknown` counts the partition's records of unknown kind or version, including records of other
    groups."""

    partition: int
    offsets: Mapping[TopicPartition, OffsetCommitValue]
    group: GroupMetadataValue | None
    unknown: int


def read_group(
    connection: ConnectionSettings, group_id: str, timeout_s: float = 60.0, clock: Clock | None = None
) -> StoredOffsets:
    """Read the group's partition of `__consumer_offsets` from its beginning to its end.

    Raises TopicAuthorizationFailed (allow Read on the topic), TopicMissing (no group has ever committed),
    DataPlaneFailed (also when the time is up), SettingsRefused.
    """
    clock = clock or SystemClock()
    config = consumer_config(connection, group_id, "read_committed", {})
    offsets: dict[TopicPartition, OffsetCommitValue] = {}
    group: GroupMetadataValue | None = None
    unknown = 0
    with BoundedReader(config, stores_offsets=False, patience_s=timeout_s) as reader:
        try:
            count = len(reader.partitions(TOPIC))
        except errors.TopicMissing as missing:
            raise errors.TopicMissing(
                f"topic {TOPIC} does not exist: no group of this cluster has committed anything yet"
            ) from missing
        partition = TopicPartition(TOPIC, coordinator_partition(group_id, count))
        bounds = reader.bounds([partition])
        deadline = clock.monotonic() + timeout_s
        for step in reader.read(bounds):
            for record in step.records.get(partition, ()):
                entry = decode(record.key, record.value)
                if isinstance(entry, CommittedOffset) and entry.group == group_id:
                    if entry.value is None:
                        offsets.pop(entry.partition, None)
                    else:
                        offsets[entry.partition] = entry.value
                elif isinstance(entry, StoredGroup) and entry.group == group_id:
                    group = entry.value
                elif not isinstance(entry, (CommittedOffset, StoredGroup)):
                    unknown += 1
            if not step.done and clock.monotonic() >= deadline:
                raise errors.DataPlaneFailed(
                    f"{TOPIC}-{partition.partition}: the end of the partition was not reached within "
                    f"{round(timeout_s, 2):g} s; allow more time"
                )
    return StoredOffsets(partition.partition, offsets, group, unknown)
