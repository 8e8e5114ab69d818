"""Marks of the main workers' breakers, in the metadata of their commits, for the group's retry workers.

Retry workers read nothing but what failed before, so their own counts cannot tell poison from an outage as well as the
main workers can: those mark an open breaker, and a closed one while records succeed. A commit reaches retry workers
without a topic, a port or a leader of its own. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

OPEN_LIMIT_S: Final = 3660.0
"""For how long a mark counts at most: the longest cooldown, and a minute. A worker whose clock is wrong, and that died,
must not stop retries for ever."""

CLOSED_LIMIT_S: Final = 30.0
"""The same for a closed breaker: an outage that begins after the mark must not be hidden by it for longer."""

_MARK: Final = re.compile(r"fleet-breaker=(open|closed);until=([0-9]{1,15})")


def breaker_mark(until_ms: int) -> str:
    """The metadata of a commit while the breaker is open; it counts until `until_ms` (wall clock, milliseconds)."""
    return f"fleet-breaker=open;until={until_ms}"


def closed_mark(until_ms: int) -> str:
    """The same while the breaker is closed and records succeed. It is worth no commit by itself."""
    return f"fleet-breaker=closed;until={until_ms}"


def read_mark(metadata: str) -> int | None:
    """Until when the breaker is open (wall clock, milliseconds), or None where a commit's metadata says no such thing.

    Metadata is anybody's who may commit for the group, so it is read strictly; the limits are its reader's to keep.
    Other marks may stand in it besides, each behind a blank.
    """
    return _until(metadata, "open")


def read_closed_mark(metadata: str) -> int | None:
    """The same of a breaker that is closed."""
    return _until(metadata, "closed")


def without_mark(metadata: str) -> str:
    """What a commit's metadata says besides of the breaker."""
    return " ".join(field for field in metadata.split(" ") if _MARK.fullmatch(field) is None)


def _until(metadata: str, state: str) -> int | None:
    found = next((match for field in metadata.split(" ") if (match := _MARK.fullmatch(field))), None)
    return int(found[2]) if found is not None and found[1] == state else None


class Breakers(NamedTuple):
    """The main workers' breakers taken together: until when they count as open, and until when as closed; the past
    where nobody says so. Wall-clock seconds."""

    open_until: float = 0.0
    closed_until: float = 0.0
