"""OffsetForLeaderEpoch (key 23): the end of a leader epoch in a partition's log (KIP-320).

A consumer whose offset lies beyond the end of its epoch has read records that are no longer in the log.
"""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, int16, int32, int64, string, structure


@structure
class EpochEndOffset:
    """The largest epoch up to the requested one, and its end; both -1 if the log has no such epoch."""

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@structure
class OffsetForLeaderTopicResult:
    topic: str = string()
    partitions: tuple[EpochEndOffset, ...] = array(EpochEndOffset)


@structure
class OffsetForLeaderEpochResponse(Response, api_key=23, versions=(2, 4), flexible_from=4):
    throttle_time_ms: int = int32(default=0, ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = array(OffsetForLeaderTopicResult)


@structure
class OffsetForLeaderPartition:
    """The epoch requested; `current_leader_epoch`, if not -1, must be the leader's own, or the request fails."""

    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, ignorable=True)
    leader_epoch: int = int32()


@structure
class OffsetForLeaderTopic:
    topic: str = string()
    partitions: tuple[OffsetForLeaderPartition, ...] = array(OffsetForLeaderPartition)


@structure
class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse]):
    """`replica_id` -1 marks a consumer."""

    replica_id: int = int32(since=3, default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = array(OffsetForLeaderTopic)
