"""JoinGroup (key 11): enter a group or take part in its next rebalance; answered when all members have joined."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, blob, boolean, int16, int32, string, structure


@structure
class JoinGroupResponseMember:
    """One member and its subscription."""

    member_id: str = string()
    group_instance_id: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)
    metadata: bytes = blob()


@structure
class JoinGroupResponse(Response, api_key=11, versions=(0, 9), flexible_from=6, bytes_max=64 * 1024 * 1024):
    """The new generation; only the leader receives `members`.

    `skip_assignment`: a returning static leader keeps the previous assignment (KIP-814).
    """

    throttle_time_ms: int = int32(since=2, default=0, ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, default=None, nullable_since=7, ignorable=True)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9, default=False)
    member_id: str = string()
    members: tuple[JoinGroupResponseMember, ...] = array(JoinGroupResponseMember)


@structure
class JoinGroupRequestProtocol:
    """An assignor's name and the subscription encoded for it."""

    name: str = string()
    metadata: bytes = blob()


@structure
class JoinGroupRequest(Request[JoinGroupResponse]):
    """A member's protocols in order of preference; `reason` is for the broker's log (KIP-800)."""

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, default=None, nullable_since=5)
    protocol_type: str = string()
    protocols: tuple[JoinGroupRequestProtocol, ...] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, default=None, nullable_since=8, ignorable=True)
