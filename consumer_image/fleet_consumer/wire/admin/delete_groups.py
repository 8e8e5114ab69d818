"""DeleteGroups (key 42): delete empty groups with their committed offsets; sent to their coordinator."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, int16, int32, string, structure


@structure
class DeletableGroupResult:
    """The result for one group; NON_EMPTY_GROUP while it has members."""

    group_id: str = string()
    error_code: int = int16()


@structure
class DeleteGroupsResponse(Response, api_key=42, versions=(0, 2), flexible_from=2):
    throttle_time_ms: int = int32()
    results: tuple[DeletableGroupResult, ...] = array(DeletableGroupResult)


@structure
class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    """Groups of one coordinator, by id."""

    groups_names: tuple[str, ...] = array(STRING)
