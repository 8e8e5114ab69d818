"""IncrementalAlterConfigs (key 44): change some settings of a resource, leaving the others (KIP-339)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleet_consumer.wire.admin.describe_configs import TOPIC_RESOURCE
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, boolean, int8, int16, int32, string, structure

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
