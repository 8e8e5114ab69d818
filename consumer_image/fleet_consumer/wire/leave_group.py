"""LeaveGroup (key 13): remove members from a group; from version 3 on several, also by instance id (KIP-345)."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, int16, int32, string, structure


@structure
class LeaveGroupResponseMember:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0)
    error_code: int = int16()


@structure
class LeaveGroupResponse(Response, api_key=13, versions=(0, 5), flexible_from=4, bytes_max=1024 * 1024):
    """`error_code` concerns the whole request; each member has its own."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()
    members: tuple[LeaveGroupResponseMember, ...] = array(LeaveGroupResponseMember, since=3, default=())


@structure
class LeaveGroupRequestMember:
    """A member by id, or a static one by instance id and an empty `member_id`."""

    member_id: str = string()
    group_instance_id: str | None = string(default=None, nullable_since=0)
    reason: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)


@structure
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    """`member_id` up to version 2, `members` from version 3 on."""

    group_id: str = string()
    member_id: str = string(until=2, default="")
    members: tuple[LeaveGroupRequestMember, ...] = array(LeaveGroupRequestMember, since=3, default=())
