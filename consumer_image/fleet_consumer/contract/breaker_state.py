"""Breaker states of main workers, published in the metadata of their commits and read by the fleet's retry workers.

Retry workers read only records that have failed before. So their counts of failures distinguish poison records from an
outage less reliably than the counts of main workers. So main workers publish that their breaker is open, or that it is
closed while records succeed. Commit metadata needs no extra topic, port or leader. Pure functions.
"""

import re
from typing import Final, NamedTuple

OPEN_LIMIT_S: Final = 3660.0
"""Maximum validity of an open state in seconds: the longest cooldown plus a minute. The limit prevents a dead
worker with a wrong clock from stopping retries permanently."""

CLOSED_LIMIT_S: Final = 30.0
"""Maximum validity of a closed state in seconds. Short, because a valid closed state hides an outage that has begun in
the meantime."""

_STATE: Final = re.compile(r"fleet-breaker=(open|closed);until=([0-9]{1,15})")


def open_breaker_state(until_ms: int) -> str:
    """Return the state of an open breaker for a commit's metadata, valid until `until_ms` (wall-clock milliseconds)."""
    return f"fleet-breaker=open;until={until_ms}"


def closed_breaker_state(until_ms: int) -> str:
    """Return the state of a closed breaker for a commit's metadata, valid until `until_ms` (wall-clock milliseconds).
    Workers publish this state while records succeed, and make no extra commits for it."""
    return f"fleet-breaker=closed;until={until_ms}"


def read_breaker_state(metadata: str, state: str = "open") -> int | None:
    """Return the wall-clock milliseconds until which `state` is valid; None if the metadata has no such state.

    Anybody who may commit for the group can write metadata, so parsing is strict. Metadata may have other fields,
    separated by spaces. The caller must limit the result by OPEN_LIMIT_S or CLOSED_LIMIT_S.
    """
    found = next((match for field in metadata.split(" ") if (match := _STATE.fullmatch(field))), None)
    return int(found[2]) if found is not None and found[1] == state else None


def read_closed_breaker_state(metadata: str) -> int | None:
    return read_breaker_state(metadata, "closed")


def without_breaker_state(metadata: str) -> str:
    return " ".join(field for field in metadata.split(" ") if _STATE.fullmatch(field) is None)


class Breakers(NamedTuple):
    """The combined breaker states of the main workers: the wall-clock times in seconds until which the open and the
    closed state are valid. A time in the past means that no valid state exists."""

    open_until: float = 0.0
    closed_until: float = 0.0
