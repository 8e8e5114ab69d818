"""Requests about topics, their partitions and logs.

Metadata (key 3): returns the brokers, and topics with their partitions. If `topics` is None, all topics are requested.
From version 1 on, an empty `topics` requests no topics.

ListOffsets (2): returns a partition's log start offset or log end offset, or the offset of the first record at or after
a timestamp. Versions from 9 on only add special timestamps for tiered storage and a timeout for remote lookups.

OffsetForLeaderEpoch (23): returns the end offset of a leader epoch in a partition's log (KIP-320). A consumer whose
offset is beyond this end offset has read records that are no longer in the log.

Fetch (1): returns bytes of a partition's log. Used only to examine unreadable logs, because librdkafka reads the
records. Versions before 10 cannot fetch batches compressed with zstd; later versions only add racks and topic ids.
"""

from typing import Final
from uuid import UUID

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import (
    INT32,
    ZERO_UUID,
    Structure,
    array,
    blob,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class MetadataResponseBroker(Structure):
    """A live broker, with the address that it advertises for the listener of this connection."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, default=None, nullable_since=1, ignorable=True)


class MetadataResponsePartition(Structure):
    """`leader_id` is -1 while the partition has no leader."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = array(INT32)
    isr_nodes: tuple[int, ...] = array(INT32)
    offline_replicas: tuple[int, ...] = array(INT32, since=5, default=(), ignorable=True)


class MetadataResponseTopic(Structure):
    """`error_code` is set if the topic has no partitions."""

    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: UUID = uuid(since=10, default=ZERO_UUID, ignorable=True)
    is_internal: bool = boolean(since=1, default=False, ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=-2147483648)


class MetadataResponse(Response, api_key=3, versions=(0, 12), flexible_from=9, bytes_max=32 * 1024 * 1024):
    """The cluster as this broker sees it."""

    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, default=None, nullable_since=2, ignorable=True)
    controller_id: int = int32(since=1, default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-2147483648)


class MetadataRequestTopic(Structure):
    topic_id: UUID = uuid(since=10, default=ZERO_UUID, ignorable=True)
    name: str | None = string(nullable_since=10)


class MetadataRequest(Request[MetadataResponse]):
    """Requests the brokers, and the given topics by name or, from version 12 on, by id."""

    topics: tuple[MetadataRequestTopic, ...] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = boolean(since=8, default=False)


LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
"""Special timestamps: the end of the log, its start, and the record with the highest timestamp (KIP-734)."""


class ListOffsetsPartitionResponse(Structure):
    """`offset` is -1 if all records are older than the requested timestamp."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(since=4, default=-1)


class ListOffsetsTopicResponse(Structure):
    name: str = string()
    partitions: tuple[ListOffsetsPartitionResponse, ...] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Response, api_key=2, versions=(1, 8), flexible_from=6, bytes_max=32 * 1024 * 1024):
    throttle_time_ms: int = int32(since=2, default=0, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = array(ListOffsetsTopicResponse)


class ListOffsetsPartition(Structure):
    """`timestamp` is in milliseconds since 1970, or one of LATEST, EARLIEST and MAX_TIMESTAMP."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1, ignorable=True)
    timestamp: int = int64()


class ListOffsetsTopic(Structure):
    name: str = string()
    partitions: tuple[ListOffsetsPartition, ...] = array(ListOffsetsPartition)


class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """`replica_id` is -1 for a client. With an `isolation_level` of 1, LATEST returns the last stable offset."""

    replica_id: int = int32()
    isolation_level: int = int8(since=2, default=0)
    topics: tuple[ListOffsetsTopic, ...] = array(ListOffsetsTopic)


class EpochEndOffset(Structure):
    """The largest epoch not above the requested epoch, and its end offset; both are -1 if the log has no such epoch."""

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class OffsetForLeaderTopicResult(Structure):
    topic: str = string()
    partitions: tuple[EpochEndOffset, ...] = array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Response, api_key=23, versions=(2, 4), flexible_from=4):
    throttle_time_ms: int = int32(default=0, ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = array(OffsetForLeaderTopicResult)


class OffsetForLeaderPartition(Structure):
    """`current_leader_epoch` is the partition's leader epoch that the client knows, or -1 for no check. The leader
    refuses the request if its own epoch differs."""

    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, ignorable=True)
    leader_epoch: int = int32()


class OffsetForLeaderTopic(Structure):
    topic: str = string()
    partitions: tuple[OffsetForLeaderPartition, ...] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse]):
    """`replica_id` is -1 for a consumer."""

    replica_id: int = int32(since=3, default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = array(OffsetForLeaderTopic)


class AbortedTransaction(Structure):
    producer_id: int = int64()
    first_offset: int = int64()


class FetchablePartitionResponse(Structure):
    """`records` has whole batches, possibly followed by the beginning of another batch. The first batch is the batch
    with the requested offset. If no batch has this offset, it is the next batch after the offset."""

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(default=-1)
    aborted_transactions: tuple[AbortedTransaction, ...] | None = array(AbortedTransaction, nullable_since=0)
    records: bytes | None = blob(nullable_since=0)


class FetchableTopicResponse(Structure):
    topic: str = string()
    partitions: tuple[FetchablePartitionResponse, ...] = array(FetchablePartitionResponse)


class FetchResponse(Response, api_key=1, versions=(10, 10), flexible_from=12, bytes_max=128 * 1024 * 1024):
    throttle_time_ms: int = int32(default=0, ignorable=True)
    error_code: int = int16(default=0)
    session_id: int = int32(default=0)
    responses: tuple[FetchableTopicResponse, ...] = array(FetchableTopicResponse)


class FetchPartition(Structure):
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, ignorable=True)
    fetch_offset: int = int64()
    log_start_offset: int = int64(default=-1, ignorable=True)
    partition_max_bytes: int = int32()


class FetchTopic(Structure):
    topic: str = string()
    partitions: tuple[FetchPartition, ...] = array(FetchPartition)


class ForgottenTopic(Structure):
    topic: str = string()
    partitions: tuple[int, ...] = array(INT32)


class FetchRequest(Request[FetchResponse]):
    """`replica_id` is -1 for a consumer. A `session_epoch` of -1 requests no fetch session."""

    replica_id: int = int32(default=-1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = int8(default=0)
    session_id: int = int32(default=0, ignorable=True)
    session_epoch: int = int32(default=-1, ignorable=True)
    topics: tuple[FetchTopic, ...] = array(FetchTopic)
    forgotten_topics_data: tuple[ForgottenTopic, ...] = array(ForgottenTopic, default=(), ignorable=True)
