"""Fetch (key 1): the bytes of a partition's log. Only for logs that cannot be read: records are read by librdkafka.

Earlier versions than 10 are refused zstd, later ones only add racks and topic ids.
"""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, array, blob, int8, int16, int32, int64, string, structure


@structure
class AbortedTransaction:
    producer_id: int = int64()
    first_offset: int = int64()


@structure
class FetchablePartitionResponse:
    """`records` has whole batches and perhaps a part of one; the first batch holds the requested offset or is the next
    one behind it."""

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(default=-1)
    aborted_transactions: tuple[AbortedTransaction, ...] | None = array(AbortedTransaction, nullable_since=0)
    records: bytes | None = blob(nullable_since=0)


@structure
class FetchableTopicResponse:
    topic: str = string()
    partitions: tuple[FetchablePartitionResponse, ...] = array(FetchablePartitionResponse)


@structure
class FetchResponse(Response, api_key=1, versions=(10, 10), flexible_from=12, bytes_max=128 * 1024 * 1024):
    throttle_time_ms: int = int32(default=0, ignorable=True)
    error_code: int = int16(default=0)
    session_id: int = int32(default=0)
    responses: tuple[FetchableTopicResponse, ...] = array(FetchableTopicResponse)


@structure
class FetchPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, ignorable=True)
    fetch_offset: int = int64()
    log_start_offset: int = int64(default=-1, ignorable=True)
    partition_max_bytes: int = int32()


@structure
class FetchTopic:
    topic: str = string()
    partitions: tuple[FetchPartition, ...] = array(FetchPartition)


@structure
class ForgottenTopic:
    topic: str = string()
    partitions: tuple[int, ...] = array(INT32)


@structure
class FetchRequest(Request[FetchResponse]):
    """`replica_id` -1 marks a consumer; `session_epoch` -1 asks for no session."""

    replica_id: int = int32(default=-1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = int8(default=0)
    session_id: int = int32(default=0, ignorable=True)
    session_epoch: int = int32(default=-1, ignorable=True)
    topics: tuple[FetchTopic, ...] = array(FetchTopic)
    forgotten_topics_data: tuple[ForgottenTopic, ...] = array(ForgottenTopic, default=(), ignorable=True)
