"""DescribeConfigs (key 32): settings of brokers and topics, with the source of each value."""

from __future__ import annotations

from typing import Final

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, boolean, int8, int16, int32, string, structure

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
