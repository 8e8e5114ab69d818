"""ListOffsets (key 2): a partition's first and next offset, or the first at or after a timestamp.

Versions from 9 on only add special timestamps for tiered storage and a timeout for remote lookups.
"""

from __future__ import annotations

from typing import Final

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, int8, int16, int32, int64, string, structure

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
"""Special timestamps: the end, the start, the record with the highest timestamp (KIP-734)."""


@structure
class ListOffsetsPartitionResponse:
    """The offset found; -1 if all records are older."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(since=4, default=-1)


@structure
class ListOffsetsTopicResponse:
    name: str = string()
    partitions: tuple[ListOffsetsPartitionResponse, ...] = array(ListOffsetsPartitionResponse)


@structure
class ListOffsetsResponse(Response, api_key=2, versions=(1, 8), flexible_from=6, bytes_max=32 * 1024 * 1024):
    throttle_time_ms: int = int32(since=2, default=0, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = array(ListOffsetsTopicResponse)


@structure
class ListOffsetsPartition:
    """`timestamp` in milliseconds, or LATEST, EARLIEST, MAX_TIMESTAMP."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1, ignorable=True)
    timestamp: int = int64()


@structure
class ListOffsetsTopic:
    name: str = string()
    partitions: tuple[ListOffsetsPartition, ...] = array(ListOffsetsPartition)


@structure
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """`replica_id` -1 marks a client; `isolation_level` 1 requests the last stable offset as the end."""

    replica_id: int = int32()
    isolation_level: int = int8(since=2, default=0)
    topics: tuple[ListOffsetsTopic, ...] = array(ListOffsetsTopic)
