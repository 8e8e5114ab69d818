"""Marks of the main workers' breakers in the metadata of their commits, read by the group's retry workers.

Retry workers read only records that failed before, so their own counts cannot tell poison from an outage as well as
the main workers' can. Main workers therefore mark an open breaker, and a closed one while records succeed. A commit
reaches retry workers without a topic, a port or a leader of its own. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

OPEN_LIMIT_S: Final = 3660.0
"""Longest validity of an open mark: the longest cooldown plus a minute. A dead worker whose clock was wrong must not
stop retries for ever."""

CLOSED_LIMIT_S: Final = 30.0
"""Longest validity of a closed mark, which hides an outage that begins after it."""

_MARK: Final = re.compile(r"fleet-breaker=(open|closed);until=([0-9]{1,15})")


def breaker_mark(until_ms: int) -> str:
    """Mark of an open breaker, valid until `until_ms` (wall clock, milliseconds)."""
    return f"fleet-breaker=open;until={until_ms}"


def closed_mark(until_ms: int) -> str:
    """Mark of a closed breaker while records succeed; no reason for a commit by itself."""
    return f"fleet-breaker=closed;until={until_ms}"


def read_mark(metadata: str, state: str = "open") -> int | None:
    """End of the open state in a commit's metadata (wall clock, milliseconds); None without such a mark.

    Anybody who may commit for the group can write metadata, so it is read strictly; the caller applies the limits.
    Other marks may follow, separated by blanks.
    """
    found = next((match for field in metadata.split(" ") if (match := _MARK.fullmatch(field))), None)
    return int(found[2]) if found is not None and found[1] == state else None


def read_closed_mark(metadata: str) -> int | None:
    """End of the closed state in a commit's metadata, as `read_mark`."""
    return read_mark(metadata, "closed")


def without_mark(metadata: str) -> str:
    """A commit's metadata without the breaker's mark."""
    return " ".join(field for field in metadata.split(" ") if _MARK.fullmatch(field) is None)


class Breakers(NamedTuple):
    """The main workers' breakers combined: ends of the open and of the closed state in wall-clock seconds; in the past
    without a mark."""

    open_until: float = 0.0
    closed_until: float = 0.0
