"""OffsetCommit (key 8): store a group's positions. Version 10, with topic ids, is not spoken."""

from __future__ import annotations

from typing import ClassVar

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, int16, int32, int64, string, structure


@structure
class OffsetCommitResponsePartition:
    """Whether one position was stored."""

    partition_index: int = int32()
    error_code: int = int16()


@structure
class OffsetCommitResponseTopic:
    """One topic's results."""

    name: str = string()
    partitions: tuple[OffsetCommitResponsePartition, ...] = array(OffsetCommitResponsePartition)


@structure
class OffsetCommitResponse(Response):
    """Every partition has its own result."""

    API_KEY: ClassVar[int] = 8
    MIN_VERSION: ClassVar[int] = 2
    MAX_VERSION: ClassVar[int] = 9
    FLEXIBLE_FROM: ClassVar[int | None] = 8

    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)


@structure
class OffsetCommitRequestPartition:
    """The next offset to read, with the leader epoch of the last record read (-1: unknown)."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable_since=0)


@structure
class OffsetCommitRequestTopic:
    """One topic's positions."""

    name: str = string()
    partitions: tuple[OffsetCommitRequestPartition, ...] = array(OffsetCommitRequestPartition)


@structure
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    """Commits as a member; generation -1 commits from outside, into an empty group only."""

    RESPONSE: ClassVar[type[Response]] = OffsetCommitResponse

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=7, default=None, nullable_since=7)
    retention_time_ms: int = int64(until=4, default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = array(OffsetCommitRequestTopic)
