"""Breaker states of main workers, published in the metadata of their commits and read by the fleet's retry workers.

Retry workers read only records that failed before. So their own counts distinguish poison records from an outage less
reliably than the counts of main workers. Main workers therefore publish that their breaker is open, or that it is
closed while records succeed. The states are published in commits, which need no extra topic, port or leader. Pure.
"""

import re
from typing import Final, NamedTuple

OPEN_LIMIT_S: Final = 3660.0
"""Maximum validity of an open state in seconds: the longest cooldown plus a minute. The limit prevents a dead
worker with a wrong clock from stopping retries permanently."""

CLOSED_LIMIT_S: Final = 30.0
"""Maximum validity of a closed state in seconds. It is short, because a valid closed state hides an outage that began
since."""

_STATE: Final = re.compile(r"fleet-breaker=(open|closed);until=([0-9]{1,15})")


def open_breaker_state(until_ms: int) -> str:
    """Return the state of an open breaker for a commit's metadata, valid until `until_ms` (wall-clock milliseconds)."""
    return f"fleet-breaker=open;until={until_ms}"


def closed_breaker_state(until_ms: int) -> str:
    """Like `open_breaker_state`, for a closed breaker while records succeed. No worker commits just for this state."""
    return f"fleet-breaker=closed;until={until_ms}"


def read_breaker_state(metadata: str, state: str = "open") -> int | None:
    """Return the wall-clock milliseconds until which `state` is valid; None if the metadata has no such state.

    Anybody who may commit for the group can write metadata, so it is parsed strictly. It may have other fields,
    separated by spaces. The caller limits the time by OPEN_LIMIT_S or CLOSED_LIMIT_S.
    """
    found = next((match for field in metadata.split(" ") if (match := _STATE.fullmatch(field))), None)
    return int(found[2]) if found is not None and found[1] == state else None


def read_closed_breaker_state(metadata: str) -> int | None:
    return read_breaker_state(metadata, "closed")


def without_breaker_state(metadata: str) -> str:
    return " ".join(field for field in metadata.split(" ") if _STATE.fullmatch(field) is None)


class Breakers(NamedTuple):
    """The combined breaker states of the main workers: the times until which the open and the closed state are valid,
    in wall-clock seconds. A time is in the past if no commit has that state."""

    open_until: float = 0.0
    closed_until: float = 0.0
