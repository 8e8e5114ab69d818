"""Requests that administer topics and settings.

CreateTopics (key 19): creates topics, or only validates that they could be created. DeleteTopics (20): deletes topics
with their records, by name; from version 6 on by id as well. CreatePartitions (37): increases the partitions of topics;
they cannot be decreased. DescribeConfigs (32): settings of brokers and topics, with the source of each value.
IncrementalAlterConfigs (44): changes some settings of a resource, leaving the others (KIP-339).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import (
    INT32,
    STRING,
    ZERO_UUID,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    structure,
    uuid,
)


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


@structure
class DeletableTopicResult:
    """The result for one topic; `name` is None if the request gave only an unknown id."""

    name: str | None = string(nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)


@structure
class DeleteTopicsResponse(Response, api_key=20, versions=(1, 6), flexible_from=4):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = array(DeletableTopicResult)


@structure
class DeleteTopicState:
    """A topic, from version 6 on: its name, or its id with the name None."""

    name: str | None = string(since=6, default=None, nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID)


@structure
class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    """`topic_names` up to version 5, then `topics`, which all brokers since Kafka 2.8 understand."""

    topics: tuple[DeleteTopicState, ...] = array(DeleteTopicState, since=6, default=())
    topic_names: tuple[str, ...] = array(STRING, until=5, default=(), ignorable=True)
    timeout_ms: int = int32()


@structure
class CreatePartitionsTopicResult:
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)


@structure
class CreatePartitionsResponse(Response, api_key=37, versions=(0, 3), flexible_from=2):
    throttle_time_ms: int = int32()
    results: tuple[CreatePartitionsTopicResult, ...] = array(CreatePartitionsTopicResult)


@structure
class CreatePartitionsAssignment:
    """The replicas of one new partition, placed by hand."""

    broker_ids: tuple[int, ...] = array(INT32)


@structure
class CreatePartitionsTopic:
    """One topic and its new number of partitions; `assignments` None lets the brokers place them."""

    name: str = string()
    count: int = int32()
    assignments: tuple[CreatePartitionsAssignment, ...] | None = array(
        CreatePartitionsAssignment, default=None, nullable_since=0
    )


@structure
class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    """`timeout_ms`: how long the broker may wait for the controller."""

    topics: tuple[CreatePartitionsTopic, ...] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean(default=False)


TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
"""Values of `resource_type` (Kafka's ConfigResource.Type)."""


@structure
class DescribeConfigsSynonym:
    """Another source of the value, in order of precedence."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    source: int = int8()


@structure
class DescribeConfigsResourceResult:
    """One setting; `value` is None when it is sensitive."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: tuple[DescribeConfigsSynonym, ...] = array(DescribeConfigsSynonym)
    config_type: int = int8(since=3, default=0, ignorable=True)
    documentation: str | None = string(since=3, default="", nullable_since=0, ignorable=True)


@structure
class DescribeConfigsResult:
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[DescribeConfigsResourceResult, ...] = array(DescribeConfigsResourceResult)


@structure
class DescribeConfigsResponse(Response, api_key=32, versions=(1, 4), flexible_from=4):
    throttle_time_ms: int = int32()
    results: tuple[DescribeConfigsResult, ...] = array(DescribeConfigsResult)


@structure
class DescribeConfigsResource:
    """One resource; `configuration_keys` None requests all its settings."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: tuple[str, ...] | None = array(STRING, nullable_since=0)


@structure
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    """Requests settings of resources."""

    resources: tuple[DescribeConfigsResource, ...] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(default=False)
    include_documentation: bool = boolean(since=3, default=False)


SET: Final = 0
DELETE: Final = 1
"""Values of `config_operation` (Kafka's AlterConfigOp.OpType); the others are for settings that are lists."""


@structure
class AlterConfigsResourceResponse:
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()


@structure
class IncrementalAlterConfigsResponse(Response, api_key=44, versions=(0, 1), flexible_from=1):
    throttle_time_ms: int = int32()
    responses: tuple[AlterConfigsResourceResponse, ...] = array(AlterConfigsResourceResponse)


@structure
class AlterableConfig:
    """One change; `value` is None with DELETE, which restores the default."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0)


@structure
class AlterConfigsResource:
    """The changes of one resource (resource types as in DescribeConfigs)."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[AlterableConfig, ...] = array(AlterableConfig)


@structure
class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse]):
    """Changes of any number of resources; each resource is changed atomically."""

    resources: tuple[AlterConfigsResource, ...] = array(AlterConfigsResource)
    validate_only: bool = boolean(default=False)


def set_topics(settings: Mapping[str, Mapping[str, str]]) -> IncrementalAlterConfigsRequest:
    """The request that sets these values on topics, by topic and setting."""
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=topic,
                configs=tuple(
                    AlterableConfig(name=name, config_operation=SET, value=value) for name, value in changes.items()
                ),
            )
            for topic, changes in settings.items()
        )
    )
