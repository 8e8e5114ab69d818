"""Requests for the administration of topics and settings.

- CreateTopics (key 19): creates topics, or only validates the request.
- DeleteTopics (20): deletes topics by name; from version 6 on also by id.
- CreatePartitions (37): increases the number of partitions of topics; a decrease is impossible.
- DescribeConfigs (32): returns settings of brokers and topics, with the source of each value.
- IncrementalAlterConfigs (44): changes individual settings of a resource; other settings are unchanged (KIP-339).
"""

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
    """Manually placed replicas of one partition."""

    partition_index: int = int32()
    broker_ids: tuple[int, ...] = array(INT32)


class CreatableTopicConfig(Structure):
    name: str = string()
    value: str | None = string(nullable_since=0)


class CreatableTopic(Structure):
    """A topic to create; -1 partitions or replicas means the broker's default (KIP-464)."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: tuple[CreatableReplicaAssignment, ...] = array(CreatableReplicaAssignment)
    configs: tuple[CreatableTopicConfig, ...] = array(CreatableTopicConfig)


class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """`timeout_ms` limits the broker's wait for the controller."""

    topics: tuple[CreatableTopic, ...] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(default=False)


class DeletableTopicResult(Structure):
    """The result for one topic. `name` is None if the request identified the topic by an unknown id."""

    name: str | None = string(nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)


class DeleteTopicsResponse(Response, api_key=20, versions=(1, 6), flexible_from=4):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = array(DeletableTopicResult)


class DeleteTopicState(Structure):
    """A topic to delete, from version 6 on: either its name, or its id with `name` None."""

    name: str | None = string(since=6, default=None, nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID)


class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    """Versions up to 5 use `topic_names`; versions from 6 on (Kafka 2.8) use `topics`."""

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
    """Manually placed replicas of one new partition."""

    broker_ids: tuple[int, ...] = array(INT32)


class CreatePartitionsTopic(Structure):
    """A topic and its new number of partitions. If `assignments` is None, the brokers place the new replicas."""

    name: str = string()
    count: int = int32()
    assignments: tuple[CreatePartitionsAssignment, ...] | None = array(
        CreatePartitionsAssignment, default=None, nullable_since=0
    )


class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    """`timeout_ms` limits the broker's wait for the controller."""

    topics: tuple[CreatePartitionsTopic, ...] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean(default=False)


TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
"""Values of `resource_type` (Kafka's ConfigResource.Type)."""


class DescribeConfigsSynonym(Structure):
    """One source of a setting's value. Sources are listed in order of precedence."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    source: int = int8()


class DescribeConfigsResourceResult(Structure):
    """One setting of a resource; `value` is None for a sensitive setting."""

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
    """A resource to describe. If `configuration_keys` is None, all its settings are requested."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: tuple[str, ...] | None = array(STRING, nullable_since=0)


class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    resources: tuple[DescribeConfigsResource, ...] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(default=False)
    include_documentation: bool = boolean(since=3, default=False)


SET: Final = 0
DELETE: Final = 1
"""Values of `config_operation` (Kafka's AlterConfigOp.OpType), without the operations for list settings."""


class AlterConfigsResourceResponse(Structure):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Response, api_key=44, versions=(0, 1), flexible_from=1):
    throttle_time_ms: int = int32()
    responses: tuple[AlterConfigsResourceResponse, ...] = array(AlterConfigsResourceResponse)


class AlterableConfig(Structure):
    """A change to one setting. `value` is None for DELETE, which restores the default."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0)


class AlterConfigsResource(Structure):
    """The changes to one resource; `resource_type` has the same values as in DescribeConfigs."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[AlterableConfig, ...] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse]):
    """Each resource is changed atomically."""

    resources: tuple[AlterConfigsResource, ...] = array(AlterConfigsResource)
    validate_only: bool = boolean(default=False)


def set_topics(settings: Mapping[str, Mapping[str, str]]) -> IncrementalAlterConfigsRequest:
    """Build the request that changes topic settings. `settings` has the new values, keyed by topic, then by setting."""
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
