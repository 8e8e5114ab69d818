"""Requests of consumer groups: coordinator, membership and administration.

- FindCoordinator (key 10): returns a group's coordinator; from version 4 on, the coordinators of several groups
  (KIP-699).
- JoinGroup (11): joins a group, or the group's next rebalance; the broker answers once all members have joined.
- SyncGroup (14): the leader sends the assignment, and each member receives its own part.
- Heartbeat (12): keeps a session alive; the response announces rebalances.
- LeaveGroup (13): removes a member; from version 3 on, several members, also by instance id (KIP-345).
- DescribeGroups (15): returns state, members and assignment of groups of the classic protocol.
- ListGroups (16): returns the groups that one broker coordinates.
- DeleteGroups (42): deletes empty groups with their committed offsets; the request goes to the groups' coordinator.
"""

from typing import Final

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, Structure, array, blob, boolean, int8, int16, int32, string

GROUP_KEY_TYPE: Final = 0
"""The `key_type` of consumer groups."""


class FindCoordinatorResponseCoordinator(Structure):
    """The coordinator of one key (group id), or an error code."""

    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)


class FindCoordinatorResponse(Response, api_key=10, versions=(0, 6), flexible_from=3):
    """Versions up to 3 describe one coordinator in the top-level fields; versions from 4 on use `coordinators`."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16(until=3, default=0)
    error_message: str | None = string(since=1, until=3, default="", nullable_since=1, ignorable=True)
    node_id: int = int32(until=3, default=0)
    host: str = string(until=3, default="")
    port: int = int32(until=3, default=0)
    coordinators: tuple[FindCoordinatorResponseCoordinator, ...] = array(
        FindCoordinatorResponseCoordinator, since=4, default=()
    )


class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """Versions up to 3 use `key`; versions from 4 on use `coordinator_keys`. `key_type` is 0 for groups, 1 for
    transactions."""

    key: str = string(until=3, default="")
    key_type: int = int8(since=1, default=0)
    coordinator_keys: tuple[str, ...] = array(STRING, since=4, default=())


class JoinGroupResponseMember(Structure):
    member_id: str = string()
    group_instance_id: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    metadata: bytes = blob()


class JoinGroupResponse(Response, api_key=11, versions=(0, 9), flexible_from=6, bytes_max=64 * 1024 * 1024):
    """The new generation; only the leader receives `members`. `skip_assignment` is True if the leader is a static
    member that has restarted; the previous assignment then stays valid (KIP-814)."""

    throttle_time_ms: int = int32(since=2, default=0, ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, default=None, nullable_since=7, ignorable=True)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9, default=False)
    member_id: str = string()
    members: tuple[JoinGroupResponseMember, ...] = array(JoinGroupResponseMember)


class JoinGroupRequestProtocol(Structure):
    """An assignor's name and the subscription encoded for it."""

    name: str = string()
    metadata: bytes = blob()


class JoinGroupRequest(Request[JoinGroupResponse]):
    """A member's request to join, with its protocols in order of preference. `reason` is for the broker's log
    (KIP-800)."""

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, default=None, nullable_since=5)
    protocol_type: str = string()
    protocols: tuple[JoinGroupRequestProtocol, ...] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, default=None, nullable_since=8, ignorable=True)


class SyncGroupResponse(Response, api_key=14, versions=(0, 5), flexible_from=4, bytes_max=64 * 1024 * 1024):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    protocol_name: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    assignment: bytes = blob()


class SyncGroupRequestAssignment(Structure):
    member_id: str = string()
    assignment: bytes = blob()


class SyncGroupRequest(Request[SyncGroupResponse]):
    """`assignments` is empty unless the sender is the leader."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, default=None, nullable_since=3)
    protocol_type: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    protocol_name: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    assignments: tuple[SyncGroupRequestAssignment, ...] = array(SyncGroupRequestAssignment)


class HeartbeatResponse(Response, api_key=12, versions=(0, 4), flexible_from=4, bytes_max=64 * 1024):
    """The error REBALANCE_IN_PROGRESS means that the member must join again."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()


class HeartbeatRequest(Request[HeartbeatResponse]):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, default=None, nullable_since=3)


class LeaveGroupResponseMember(Structure):
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0)
    error_code: int = int16()


class LeaveGroupResponse(Response, api_key=13, versions=(0, 5), flexible_from=4, bytes_max=1024 * 1024):
    """`error_code` concerns the whole request; each entry of `members` has its own error code."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()
    members: tuple[LeaveGroupResponseMember, ...] = array(LeaveGroupResponseMember, since=3, default=())


class LeaveGroupRequestMember(Structure):
    """A member identified by member id, or a static member identified by instance id, with an empty `member_id`."""

    member_id: str = string()
    group_instance_id: str | None = string(default=None, nullable_since=0)
    reason: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)


class LeaveGroupRequest(Request[LeaveGroupResponse]):
    """Versions up to 2 use `member_id`; versions from 3 on use `members`."""

    group_id: str = string()
    member_id: str = string(until=2, default="")
    members: tuple[LeaveGroupRequestMember, ...] = array(LeaveGroupRequestMember, since=3, default=())


class DescribedGroupMember(Structure):
    """A member with its encoded subscription and assignment."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, default=None, nullable_since=4, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = blob()
    member_assignment: bytes = blob()


class DescribedGroup(Structure):
    """One group. An unknown group has state Dead and no error. (Version 6 of DescribeGroups, which reports an error, is
    not used.)"""

    error_code: int = int16()
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: tuple[DescribedGroupMember, ...] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-2147483648)


class DescribeGroupsResponse(Response, api_key=15, versions=(0, 5), flexible_from=5, bytes_max=64 * 1024 * 1024):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    groups: tuple[DescribedGroup, ...] = array(DescribedGroup)


class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    """Must be sent to the coordinator of all these groups."""

    groups: tuple[str, ...] = array(STRING)
    include_authorized_operations: bool = boolean(since=3, default=False)


class ListedGroup(Structure):
    """One group. `group_state` and `group_type` are empty if the version lacks these fields."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, default="", ignorable=True)
    group_type: str = string(since=5, default="", ignorable=True)


class ListGroupsResponse(Response, api_key=16, versions=(0, 5), flexible_from=3, bytes_max=32 * 1024 * 1024):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()
    groups: tuple[ListedGroup, ...] = array(ListedGroup)


class ListGroupsRequest(Request[ListGroupsResponse]):
    """Empty filters match every group."""

    states_filter: tuple[str, ...] = array(STRING, since=4, default=())
    types_filter: tuple[str, ...] = array(STRING, since=5, default=())


class DeletableGroupResult(Structure):
    """The result for one group: NON_EMPTY_GROUP if the group still has members."""

    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Response, api_key=42, versions=(0, 2), flexible_from=2):
    throttle_time_ms: int = int32()
    results: tuple[DeletableGroupResult, ...] = array(DeletableGroupResult)


class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    """Must be sent to the coordinator of all these groups."""

    groups_names: tuple[str, ...] = array(STRING)
