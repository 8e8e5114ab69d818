"""DescribeGroups (key 15): state, members and assignment of groups of the classic protocol."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, blob, boolean, int16, int32, string, structure


@structure
class DescribedGroupMember:
    """One member with the bytes of its subscription and assignment."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, default=None, nullable_since=4, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = blob()
    member_assignment: bytes = blob()


@structure
class DescribedGroup:
    """One group; an unknown one has the state Dead and no error.

    Version 6 refuses an unknown group with an error, and then does not say what may be done with it.
    """

    error_code: int = int16()
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: tuple[DescribedGroupMember, ...] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-2147483648)


@structure
class DescribeGroupsResponse(Response, api_key=15, versions=(0, 5), flexible_from=5, bytes_max=64 * 1024 * 1024):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    groups: tuple[DescribedGroup, ...] = array(DescribedGroup)


@structure
class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    """Must be sent to the coordinator of all the groups it names."""

    groups: tuple[str, ...] = array(STRING)
    include_authorized_operations: bool = boolean(since=3, default=False)
