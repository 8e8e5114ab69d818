"""SyncGroup (key 14): the leader sends the assignment, each member receives its own."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, blob, int16, int32, string, structure


@structure
class SyncGroupResponse(Response, api_key=14, versions=(0, 5), flexible_from=4, bytes_max=64 * 1024 * 1024):
    """The receiver's own assignment."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    protocol_name: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    assignment: bytes = blob()


@structure
class SyncGroupRequestAssignment:
    """One member's assignment."""

    member_id: str = string()
    assignment: bytes = blob()


@structure
class SyncGroupRequest(Request[SyncGroupResponse]):
    """`assignments` is empty unless the sender leads."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, default=None, nullable_since=3)
    protocol_type: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    protocol_name: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    assignments: tuple[SyncGroupRequestAssignment, ...] = array(SyncGroupRequestAssignment)
