"""OffsetFetch (key 9): read committed offsets; from version 8 on, of many groups at once (KIP-709).

`topics` None requests all topics with commits.
"""

from __future__ import annotations

from typing import ClassVar

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, array, boolean, int16, int32, int64, string, structure


@structure
class OffsetFetchResponsePartition:
    """An offset, up to version 7; `committed_offset` -1 means none."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1, ignorable=True)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


@structure
class OffsetFetchResponseTopic:
    """One topic, up to version 7."""

    name: str = string()
    partitions: tuple[OffsetFetchResponsePartition, ...] = array(OffsetFetchResponsePartition)


@structure
class OffsetFetchResponsePartitions:
    """An offset, from version 8 on; `committed_offset` -1 means none."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


@structure
class OffsetFetchResponseTopics:
    """One topic, from version 8 on."""

    name: str = string()
    partitions: tuple[OffsetFetchResponsePartitions, ...] = array(OffsetFetchResponsePartitions)


@structure
class OffsetFetchResponseGroup:
    """One group, from version 8 on."""

    group_id: str = string()
    topics: tuple[OffsetFetchResponseTopics, ...] = array(OffsetFetchResponseTopics)
    error_code: int = int16(default=0)


@structure
class OffsetFetchResponse(Response):
    """`topics` and `error_code` up to version 7, `groups` after."""

    API_KEY: ClassVar[int] = 9
    MIN_VERSION: ClassVar[int] = 1
    MAX_VERSION: ClassVar[int] = 9
    FLEXIBLE_FROM: ClassVar[int | None] = 6
    BYTES_MAX: ClassVar[int] = 32 * 1024 * 1024

    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    topics: tuple[OffsetFetchResponseTopic, ...] = array(OffsetFetchResponseTopic, until=7, default=())
    error_code: int = int16(since=2, until=7, default=0, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = array(OffsetFetchResponseGroup, since=8, default=())


@structure
class OffsetFetchRequestTopic:
    """One topic of the request, up to version 7."""

    name: str = string()
    partition_indexes: tuple[int, ...] = array(INT32)


@structure
class OffsetFetchRequestTopics:
    """One topic of the request, from version 8 on."""

    name: str = string()
    partition_indexes: tuple[int, ...] = array(INT32)


@structure
class OffsetFetchRequestGroup:
    """One group of the request, from version 8 on."""

    group_id: str = string()
    member_id: str | None = string(since=9, default=None, nullable_since=9, ignorable=True)
    member_epoch: int = int32(since=9, default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = array(OffsetFetchRequestTopics, nullable_since=0)


@structure
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """`group_id`, `topics` up to version 7, then `groups`. `require_stable` waits for open transactions (KIP-447)."""

    RESPONSE: ClassVar[type[Response]] = OffsetFetchResponse

    group_id: str = string(until=7, default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = array(
        OffsetFetchRequestTopic, until=7, default=(), nullable_since=2
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = array(OffsetFetchRequestGroup, since=8, default=())
    require_stable: bool = boolean(since=7, default=False)
