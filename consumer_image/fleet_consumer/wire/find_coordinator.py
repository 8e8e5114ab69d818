"""FindCoordinator (key 10): the coordinators of groups; from version 4 on, of many groups at once (KIP-699)."""

from __future__ import annotations

from typing import Final

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, int8, int16, int32, string, structure

GROUP_KEY_TYPE: Final = 0
"""The key names a consumer group."""


@structure
class FindCoordinatorResponseCoordinator:
    """The coordinator of one key, or the error code if there is none."""

    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)


@structure
class FindCoordinatorResponse(Response, api_key=10, versions=(0, 6), flexible_from=3):
    """One coordinator up to version 3; `coordinators` from version 4 on."""

    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    error_code: int = int16(until=3, default=0)
    error_message: str | None = string(since=1, until=3, default="", nullable_since=1, ignorable=True)
    node_id: int = int32(until=3, default=0)
    host: str = string(until=3, default="")
    port: int = int32(until=3, default=0)
    coordinators: tuple[FindCoordinatorResponseCoordinator, ...] = array(
        FindCoordinatorResponseCoordinator, since=4, default=()
    )


@structure
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """`key_type` is 0 for groups, 1 for transactions; `key` up to version 3, `coordinator_keys` from version 4 on."""

    key: str = string(until=3, default="")
    key_type: int = int8(since=1, default=0)
    coordinator_keys: tuple[str, ...] = array(STRING, since=4, default=())
