"""OffsetFetch (key 9): read committed offsets; from version 8 on, of many groups at once (KIP-709).

`topics` None requests all topics with commits.
"""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, array, boolean, int16, int32, int64, string, structure


@structure
class OffsetFetchResponsePartitions:
    """An offset; `committed_offset` -1 means none."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1, ignorable=True)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


@structure
class OffsetFetchResponseTopics:
    name: str = string()
    partitions: tuple[OffsetFetchResponsePartitions, ...] = array(OffsetFetchResponsePartitions)


@structure
class OffsetFetchResponseGroup:
    """One group, from version 8 on."""

    group_id: str = string()
    topics: tuple[OffsetFetchResponseTopics, ...] = array(OffsetFetchResponseTopics)
    error_code: int = int16(default=0)


@structure
class OffsetFetchResponse(Response, api_key=9, versions=(1, 9), flexible_from=6, bytes_max=32 * 1024 * 1024):
    """`topics` and `error_code` up to version 7, `groups` after."""

    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    topics: tuple[OffsetFetchResponseTopics, ...] = array(OffsetFetchResponseTopics, until=7, default=())
    error_code: int = int16(since=2, until=7, default=0, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = array(OffsetFetchResponseGroup, since=8, default=())


@structure
class OffsetFetchRequestTopics:
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

    group_id: str = string(until=7, default="")
    topics: tuple[OffsetFetchRequestTopics, ...] | None = array(
        OffsetFetchRequestTopics, until=7, default=(), nullable_since=2
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = array(OffsetFetchRequestGroup, since=8, default=())
    require_stable: bool = boolean(since=7, default=False)
