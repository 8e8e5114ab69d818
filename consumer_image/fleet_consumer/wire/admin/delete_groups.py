"""DeleteGroups (key 42): delete groups that have no members, with their committed offsets; asks their coordinator."""

from __future__ import annotations

from typing import ClassVar

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, int16, int32, string, structure


@structure
class DeletableGroupResult:
    """Whether one group was deleted; NON_EMPTY_GROUP while it has members."""

    group_id: str = string()
    error_code: int = int16()


@structure
class DeleteGroupsResponse(Response):
    """Every group has its own result."""

    API_KEY: ClassVar[int] = 42
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 2
    FLEXIBLE_FROM: ClassVar[int | None] = 2

    throttle_time_ms: int = int32()
    results: tuple[DeletableGroupResult, ...] = array(DeletableGroupResult)


@structure
class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    """Groups of one coordinator, by id."""

    RESPONSE: ClassVar[type[Response]] = DeleteGroupsResponse

    groups_names: tuple[str, ...] = array(STRING)
