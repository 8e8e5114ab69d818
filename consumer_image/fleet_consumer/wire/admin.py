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
    Structure,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    uuid,
)


class CreatableTopicConfigs(Structure):
    """One setting of the created topic."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Structure):
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


class CreateTopicsResponse(Response, api_key=19, versions=(2, 7), flexible_from=5):
    throttle_time_ms: int = int32()
    topics: tuple[CreatableTopicResult, ...] = array(CreatableTopicResult)


class CreatableReplicaAssignment(Structure):
    """The replicas of one partition, placed by hand."""

    partition_index: int = int32()
    broker_ids: tuple[int, ...] = array(INT32)


class CreatableTopicConfig(Structure):
    name: str = string()
    value: str | None = string(nullable_since=0)


class CreatableTopic(Structure):
    """One topic; -1 partitions or replicas take the broker's default (KIP-464)."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: tuple[CreatableReplicaAssignment, ...] = array(CreatableReplicaAssignment)
    configs: tuple[CreatableTopicConfig, ...] = array(CreatableTopicConfig)


class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """`timeout_ms`: how long the broker may wait for the controller."""

    topics: tuple[CreatableTopic, ...] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(default=False)


class DeletableTopicResult(Structure):
    """The result for one topic; `name` is None if the request gave only an unknown id."""

    name: str | None = string(nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)


class DeleteTopicsResponse(Response, api_key=20, versions=(1, 6), flexible_from=4):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = array(DeletableTopicResult)


class DeleteTopicState(Structure):
    """A topic, from version 6 on: its name, or its id with the name None."""

    name: str | None = string(since=6, default=None, nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID)


class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    """`topic_names` up to version 5, then `topics`, which all brokers since Kafka 2.8 understand."""

    topics: tuple[DeleteTopicState, ...] = array(DeleteTopicState, since=6, default=())
    topic_names: tuple[str, ...] = array(STRING, until=5, default=(), ignorable=True)
    timeout_ms: int = int32()


class CreatePartitionsTopicResult(Structure):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(default=None, nullable_since=0)


class CreatePartitionsResponse(Response, api_key=37, versions=(0, 3), flexible_from=2):
    throttle_time_ms: int = int32()
    results: tuple[CreatePartitionsTopicResult, ...] = array(CreatePartitionsTopicResult)


class CreatePartitionsAssignment(Structure):
    """The replicas of one new partition, placed by hand."""

    broker_ids: tuple[int, ...] = array(INT32)


class CreatePartitionsTopic(Structure):
    """One topic and its new number of partitions; `assignments` None lets the brokers place them."""

    name: str = string()
    count: int = int32()
    assignments: tuple[CreatePartitionsAssignment, ...] | None = array(
        CreatePartitionsAssignment, default=None, nullable_since=0
    )


class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    """`timeout_ms`: how long the broker may wait for the controller."""

    topics: tuple[CreatePartitionsTopic, ...] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean(default=False)


TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
"""Values of `resource_type` (Kafka's ConfigResource.Type)."""


class DescribeConfigsSynonym(Structure):
    """Another source of the value, in order of precedence."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    source: int = int8()


class DescribeConfigsResourceResult(Structure):
    """One setting; `value` is None when it is sensitive."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: tuple[DescribeConfigsSynonym, ...] = array(DescribeConfigsSynonym)
    config_type: int = int8(since=3, default=0, ignorable=True)
    documentation: str | None = string(since=3, default="", nullable_since=0, ignorable=True)


class DescribeConfigsResult(Structure):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[DescribeConfigsResourceResult, ...] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Response, api_key=32, versions=(1, 4), flexible_from=4):
    throttle_time_ms: int = int32()
    results: tuple[DescribeConfigsResult, ...] = array(DescribeConfigsResult)


class DescribeConfigsResource(Structure):
    """One resource; `configuration_keys` None requests all its settings."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: tuple[str, ...] | None = array(STRING, nullable_since=0)


class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    """Requests settings of resources."""

    resources: tuple[DescribeConfigsResource, ...] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(default=False)
    include_documentation: bool = boolean(since=3, default=False)


SET: Final = 0
DELETE: Final = 1
"""Values of `config_operation` (Kafka's AlterConfigOp.OpType); the others are for settings that are lists."""


class AlterConfigsResourceResponse(Structure):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Response, api_key=44, versions=(0, 1), flexible_from=1):
    throttle_time_ms: int = int32()
    responses: tuple[AlterConfigsResourceResponse, ...] = array(AlterConfigsResourceResponse)


class AlterableConfig(Structure):
    """One change; `value` is None with DELETE, which restores the default."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0)


class AlterConfigsResource(Structure):
    """The changes of one resource (resource types as in DescribeConfigs)."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[AlterableConfig, ...] = array(AlterableConfig)


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
