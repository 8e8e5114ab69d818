"""Committed offsets of groups.

OffsetCommit (key 8) stores them. Topics are named up to version 9 and identified by id from version 10 on (KIP-848,
Kafka 4.1). An offset committed by id cannot end up in another topic of the same name; the broker refuses it with
UNKNOWN_TOPIC_ID.

OffsetFetch (9) reads them; from version 8 on, of many groups at once (KIP-709). `topics` None requests all topics with
commits.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, ZERO_UUID, Structure, array, boolean, int16, int32, int64, string, uuid

LAST_BY_NAME: Final = 9
"""The last version that identifies topics by name."""


class OffsetCommitResponsePartition(Structure):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Structure):
    """One topic's results, by name or id as in the request."""

    name: str = string(until=LAST_BY_NAME, default="", ignorable=True)
    topic_id: UUID = uuid(since=LAST_BY_NAME + 1, default=ZERO_UUID, ignorable=True)
    partitions: tuple[OffsetCommitResponsePartition, ...] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, api_key=8, versions=(2, 10), flexible_from=8, bytes_max=32 * 1024 * 1024):
    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)


class OffsetCommitRequestPartition(Structure):
    """The next offset to read, with the leader epoch of the last record read (-1: unknown)."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable_since=0)


class OffsetCommitRequestTopic(Structure):
    """One topic's offsets. With both name and id it fits every version."""

    name: str = string(until=LAST_BY_NAME, default="", ignorable=True)
    topic_id: UUID = uuid(since=LAST_BY_NAME + 1, default=ZERO_UUID, ignorable=True)
    partitions: tuple[OffsetCommitRequestPartition, ...] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request[OffsetCommitResponse]):
    """A member's commit; with generation -1 an administrative commit, which requires an empty group."""

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=7, default=None, nullable_since=7)
    retention_time_ms: int = int64(until=4, default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = array(OffsetCommitRequestTopic)

    @property
    def version_max(self) -> int:
        """The newest version, or the last one with names if some topic id is unknown."""
        by_id = all(topic.topic_id != ZERO_UUID for topic in self.topics)
        return self.MAX_VERSION if by_id else LAST_BY_NAME


class OffsetFetchResponsePartitions(Structure):
    """An offset; `committed_offset` -1 means none."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1, ignorable=True)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


class OffsetFetchResponseTopics(Structure):
    name: str = string()
    partitions: tuple[OffsetFetchResponsePartitions, ...] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Structure):
    """One group, from version 8 on."""

    group_id: str = string()
    topics: tuple[OffsetFetchResponseTopics, ...] = array(OffsetFetchResponseTopics)
    error_code: int = int16(default=0)


class OffsetFetchResponse(Response, api_key=9, versions=(1, 9), flexible_from=6, bytes_max=32 * 1024 * 1024):
    """`topics` and `error_code` up to version 7, `groups` after."""

    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    topics: tuple[OffsetFetchResponseTopics, ...] = array(OffsetFetchResponseTopics, until=7, default=())
    error_code: int = int16(since=2, until=7, default=0, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = array(OffsetFetchResponseGroup, since=8, default=())


class OffsetFetchRequestTopics(Structure):
    name: str = string()
    partition_indexes: tuple[int, ...] = array(INT32)


class OffsetFetchRequestGroup(Structure):
    """One group of the request, from version 8 on."""

    group_id: str = string()
    member_id: str | None = string(since=9, default=None, nullable_since=9, ignorable=True)
    member_epoch: int = int32(since=9, default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = array(OffsetFetchRequestTopics, nullable_since=0)


class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """`group_id`, `topics` up to version 7, then `groups`. `require_stable` waits for open transactions (KIP-447)."""

    group_id: str = string(until=7, default="")
    topics: tuple[OffsetFetchRequestTopics, ...] | None = array(
        OffsetFetchRequestTopics, until=7, default=(), nullable_since=2
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = array(OffsetFetchRequestGroup, since=8, default=())
    require_stable: bool = boolean(since=7, default=False)
