"""Records of `__consumer_offsets`: committed offsets and group metadata.

Each partition of this topic has all data of the groups whose ids hash to this partition. Keys and values start with a
version. A key without a value is a tombstone. Formats follow Kafka's message definitions (`OffsetCommitKey`,
`OffsetCommitValue`, `GroupMetadataKey`, `GroupMetadataValue`). Records of unknown versions, such as the keys of
KIP-848's groups, are kept undecoded: records of a newer broker must not make a reader fail.
"""

import struct
from dataclasses import dataclass

from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.message import Message
from fleet_consumer.wire.schema import Structure, array, blob, int32, int64, string

TOPIC = "__consumer_offsets"

_VERSION = struct.Struct(">h")


class OffsetCommitKey(Message, versions=(0, 1)):
    """Key versions 0 and 1: group, topic and partition of a committed offset."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible_from=4):
    """A committed offset. Times are in milliseconds since 1970; `expire_timestamp` is -1 if the version lacks it."""

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1, ignorable=True)


class GroupMetadataKey(Message, versions=(2, 2)):
    """Key version 2: a group's id."""

    group: str = string()


class GroupMetadataMember(Structure):
    """A member with its encoded subscription and assignment (see `wire.consumer_protocol`)."""

    member_id: str = string()
    group_instance_id: str | None = string(since=3, default=None, nullable_since=3, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=0, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = blob()
    assignment: bytes = blob()


class GroupMetadataValue(Message, versions=(0, 4), flexible_from=4):
    """A group after a rebalance, or without members. `current_state_timestamp`: ms since 1970, -1 before version 2."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_since=0)
    leader: str | None = string(nullable_since=0)
    current_state_timestamp: int = int64(since=2, default=-1, ignorable=True)
    members: tuple[GroupMetadataMember, ...] = array(GroupMetadataMember)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of one partition; `value` is None if the offset was removed or has expired."""

    group: str
    partition: TopicPartition
    value: OffsetCommitValue | None


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group's members and generation; `value` is None if the group was removed."""

    group: str
    value: GroupMetadataValue | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record that is not decoded, for example because its kind or version is unknown; `why` is the reason as a
    text."""

    key: bytes | None
    value: bytes | None
    why: str


Entry = CommittedOffset | StoredGroup | Unknown


def decode(key: bytes | None, value: bytes | None) -> Entry:
    """Decode one record of the topic. Never raises, because an unreadable record becomes `Unknown`."""
    try:
        return _decode(key, value)
    except MalformedMessage as cause:
        return Unknown(key, value, str(cause))


def _decode(key: bytes | None, value: bytes | None) -> Entry:
    if key is None:
        return Unknown(key, value, "a record without a key")
    version = _version(key)
    body = key[_VERSION.size :]
    if OffsetCommitKey.MIN_VERSION <= version <= OffsetCommitKey.MAX_VERSION:
        named = OffsetCommitKey.decode(version, body)
        partition = TopicPartition(named.topic, named.partition)
        if value is None:
            return CommittedOffset(named.group, partition, None)
        return CommittedOffset(
            named.group, partition, OffsetCommitValue.decode(_version(value), value[_VERSION.size :])
        )
    if version == GroupMetadataKey.MAX_VERSION:
        group = GroupMetadataKey.decode(version, body).group
        if value is None:
            return StoredGroup(group, None)
        return StoredGroup(group, GroupMetadataValue.decode(_version(value), value[_VERSION.size :]))
    return Unknown(key, value, f"keys of version {version}")


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedMessage(f"no version in {len(data)} bytes")
    return int(_VERSION.unpack_from(data)[0])
