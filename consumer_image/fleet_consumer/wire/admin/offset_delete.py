"""OffsetDelete (key 47): forget committed positions of topics that a group no longer subscribes to (KIP-496)."""

from __future__ import annotations

from typing import ClassVar

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, int16, int32, string, structure


@structure
class OffsetDeleteResponsePartition:
    """GROUP_SUBSCRIBED_TO_TOPIC: the group still reads this topic."""

    partition_index: int = int32()
    error_code: int = int16()


@structure
class OffsetDeleteResponseTopic:
    """One topic's results."""

    name: str = string()
    partitions: tuple[OffsetDeleteResponsePartition, ...] = array(OffsetDeleteResponsePartition)


@structure
class OffsetDeleteResponse(Response):
    """Every partition has its own result."""

    API_KEY: ClassVar[int] = 47
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 0

    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: tuple[OffsetDeleteResponseTopic, ...] = array(OffsetDeleteResponseTopic)


@structure
class OffsetDeleteRequestPartition:
    """One partition to forget the position of."""

    partition_index: int = int32()


@structure
class OffsetDeleteRequestTopic:
    """One topic to forget positions of."""

    name: str = string()
    partitions: tuple[OffsetDeleteRequestPartition, ...] = array(OffsetDeleteRequestPartition)


@structure
class OffsetDeleteRequest(Request[OffsetDeleteResponse]):
    """Names what to forget."""

    RESPONSE: ClassVar[type[Response]] = OffsetDeleteResponse

    group_id: str = string()
    topics: tuple[OffsetDeleteRequestTopic, ...] = array(OffsetDeleteRequestTopic)
