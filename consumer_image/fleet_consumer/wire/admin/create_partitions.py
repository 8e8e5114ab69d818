"""CreatePartitions (key 37): increase the partitions of topics; they cannot be decreased."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import INT32, array, boolean, int16, int32, string, structure


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
