"""Heartbeat (key 12): keeps a member's session alive; the response announces rebalances."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import int16, int32, string, structure


@structure
class HeartbeatResponse(Response, api_key=12, versions=(0, 4), flexible_from=4, bytes_max=64 * 1024):
    """REBALANCE_IN_PROGRESS: the member must join again."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16()


@structure
class HeartbeatRequest(Request[HeartbeatResponse]):
    """The member and its current generation."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, default=None, nullable_since=3)
