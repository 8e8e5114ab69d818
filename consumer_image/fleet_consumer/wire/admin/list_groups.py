"""ListGroups (key 16): the groups coordinated by one broker."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, int16, int32, string, structure


@structure
class ListedGroup:
    """One group; `group_state` and `group_type` are empty where the version lacks them."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, default="", ignorable=True)
    group_type: str = string(since=5, default="", ignorable=True)


@structure
class ListGroupsResponse(Response, api_key=16, versions=(0, 5), flexible_from=3, bytes_max=32 * 1024 * 1024):
    """The groups of this broker only."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()
    groups: tuple[ListedGroup, ...] = array(ListedGroup)


@structure
class ListGroupsRequest(Request[ListGroupsResponse]):
    """Empty filters match every group."""

    states_filter: tuple[str, ...] = array(STRING, since=4, default=())
    types_filter: tuple[str, ...] = array(STRING, since=5, default=())
