"""Metadata (key 3): the brokers, and topics with their partitions.

`topics` None requests all topics, empty none (from version 1 on; version 0 cannot request none).
"""

from __future__ import annotations

from uuid import UUID

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, ZERO_UUID, array, boolean, int16, int32, string, structure, uuid


@structure
class MetadataResponseBroker:
    """One live broker, at its advertised address on the listener used."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, default=None, nullable_since=1, ignorable=True)


@structure
class MetadataResponsePartition:
    """One partition; `leader_id` is -1 while it has no leader."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = array(INT32)
    isr_nodes: tuple[int, ...] = array(INT32)
    offline_replicas: tuple[int, ...] = array(INT32, since=5, default=(), ignorable=True)


@structure
class MetadataResponseTopic:
    """One topic; `error_code` is set if it has no partitions."""

    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: UUID = uuid(since=10, default=ZERO_UUID, ignorable=True)
    is_internal: bool = boolean(since=1, default=False, ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=-2147483648)


@structure
class MetadataResponse(Response, api_key=3, versions=(0, 12), flexible_from=9, bytes_max=32 * 1024 * 1024):
    """The cluster as this broker sees it."""

    throttle_time_ms: int = int32(since=3, default=0, ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, default=None, nullable_since=2, ignorable=True)
    controller_id: int = int32(since=1, default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-2147483648)


@structure
class MetadataRequestTopic:
    topic_id: UUID = uuid(since=10, default=ZERO_UUID, ignorable=True)
    name: str | None = string(nullable_since=10)


@structure
class MetadataRequest(Request[MetadataResponse]):
    """Requests brokers, and topics by name or (from version 12 on) by id."""

    topics: tuple[MetadataRequestTopic, ...] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = boolean(since=8, default=False)
