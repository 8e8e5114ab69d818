"""Records of `__consumer_offsets`: committed offsets and group metadata.

One partition of that topic holds all data of the groups that hash to it, as versioned keys and values; a key without
a value is a tombstone. Formats after Kafka's message definitions (`OffsetCommitKey`, `OffsetCommitValue`,
`GroupMetadataKey`, `GroupMetadataValue`). Unknown versions (such as the keys of KIP-848's groups) are kept as they are:
records of a newer broker must not make a reader fail.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.message import Message
from fleet_consumer.wire.schema import Structure, array, blob, int32, int64, string

TOPIC = "__consumer_offsets"

_VERSION = struct.Struct(">h")


class OffsetCommitKey(Message, versions=(0, 1)):
    """Group, topic and partition of a committed offset: key versions 0 and 1."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible_from=4):
    """A committed offset; times in milliseconds since the epoch, -1 where the version has none."""

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1, ignorable=True)


class GroupMetadataKey(Message, versions=(2, 2)):
    """A group's id: key version 2."""

    group: str = string()


class GroupMetadataMember(Structure):
    """One member with the bytes of its subscription and assignment (`wire.consumer_protocol` reads them)."""

    member_id: str = string()
    group_instance_id: str | None = string(since=3, default=None, nullable_since=3, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=0, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = blob()
    assignment: bytes = blob()


class GroupMetadataValue(Message, versions=(0, 4), flexible_from=4):
    """A group after a rebalance, or empty; `current_state_timestamp` in milliseconds, -1 before version 2."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_since=0)
    leader: str | None = string(nullable_since=0)
    current_state_timestamp: int = int64(since=2, default=-1, ignorable=True)
    members: tuple[GroupMetadataMember, ...] = array(GroupMetadataMember)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's offset of one partition; `value` None: removed or expired."""

    group: str
    partition: TopicPartition
    value: OffsetCommitValue | None


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group's members and generation; `value` None: the group was removed."""

    group: str
    value: GroupMetadataValue | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of another kind or version, as it was written; `why` says what was not recognised."""

    key: bytes | None
    value: bytes | None
    why: str


Entry = CommittedOffset | StoredGroup | Unknown


def decode(key: bytes | None, value: bytes | None) -> Entry:
    """Read one record of the topic. Never raises: an unreadable record is `Unknown`."""
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
