"""CreateTopics (key 19): create topics, or only validate that they could be created."""

from __future__ import annotations

from uuid import UUID

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, ZERO_UUID, array, boolean, int8, int16, int32, string, structure, uuid


@structure
class CreatableTopicConfigs:
    """One setting of the created topic."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


@structure
class CreatableTopicResult:
    name: str = string()
    topic_id: UUID = uuid(since=7, default=ZERO_UUID, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    topic_config_error_code: int = int16(since=5, default=0, tag=0, ignorable=True)
    num_partitions: int = int32(since=5, default=-1, ignorable=True)
    replication_factor: int = int16(since=5, default=-1, ignorable=True)
    configs: tuple[CreatableTopicConfigs, ...] | None = array(
        CreatableTopicConfigs, since=5, default=(), nullable_since=5, ignorable=True
    )


@structure
class CreateTopicsResponse(Response, api_key=19, versions=(2, 7), flexible_from=5):
    throttle_time_ms: int = int32()
    topics: tuple[CreatableTopicResult, ...] = array(CreatableTopicResult)


@structure
class CreatableReplicaAssignment:
    """The replicas of one partition, placed by hand."""

    partition_index: int = int32()
    broker_ids: tuple[int, ...] = array(INT32)


@structure
class CreatableTopicConfig:
    name: str = string()
    value: str | None = string(nullable_since=0)


@structure
class CreatableTopic:
    """One topic; -1 partitions or replicas take the broker's default (KIP-464)."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: tuple[CreatableReplicaAssignment, ...] = array(CreatableReplicaAssignment)
    configs: tuple[CreatableTopicConfig, ...] = array(CreatableTopicConfig)


@structure
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """`timeout_ms`: how long the broker may wait for the controller."""

    topics: tuple[CreatableTopic, ...] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(default=False)
