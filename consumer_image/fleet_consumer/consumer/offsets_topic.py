"""A group's records in `__consumer_offsets`: its committed offsets and its last generation, without a JVM.

The same offsets come from the group's coordinator (`Consumer.committed`); the topic also has their commit times, and
can be read while the coordinator is away. It needs Read on that topic, which few principals have.
"""

from __future__ import annotations

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
    """The topic's records of one group; `group` is None without a record of members, or when they were removed.

    `partition` is the one of `__consumer_offsets` that was read; `unknown` is the number of its records, of this group
    or others, of an unknown kind or version.
    """

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
                    f"{TOPIC}-{partition.partition}: its end was not reached within {round(timeout_s, 2):g} s"
                )
    return StoredOffsets(partition.partition, offsets, group, unknown)
