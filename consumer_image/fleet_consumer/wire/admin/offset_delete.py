"""OffsetDelete (key 47): delete a group's committed offsets of topics it no longer subscribes to (KIP-496)."""

from __future__ import annotations

from typing import ClassVar

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, int16, int32, string, structure


@structure
class OffsetDeleteResponsePartition:
    """GROUP_SUBSCRIBED_TO_TOPIC: the group still consumes this topic."""

    partition_index: int = int32()
    error_code: int = int16()


@structure
class OffsetDeleteResponseTopic:
    """One topic's results."""

    name: str = string()
    partitions: tuple[OffsetDeleteResponsePartition, ...] = array(OffsetDeleteResponsePartition)


@structure
class OffsetDeleteResponse(Response):
    """One result per partition."""

    API_KEY: ClassVar[int] = 47
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0

    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: tuple[OffsetDeleteResponseTopic, ...] = array(OffsetDeleteResponseTopic)


@structure
class OffsetDeleteRequestPartition:
    """One partition whose offset is deleted."""

    partition_index: int = int32()


@structure
class OffsetDeleteRequestTopic:
    """One topic whose offsets are deleted."""

    name: str = string()
    partitions: tuple[OffsetDeleteRequestPartition, ...] = array(OffsetDeleteRequestPartition)


@structure
class OffsetDeleteRequest(Request[OffsetDeleteResponse]):
    """The offsets to delete."""

    RESPONSE: ClassVar[type[Response]] = OffsetDeleteResponse

    group_id: str = string()
    topics: tuple[OffsetDeleteRequestTopic, ...] = array(OffsetDeleteRequestTopic)
