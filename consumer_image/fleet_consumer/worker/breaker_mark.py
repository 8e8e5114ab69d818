"""How a group's main workers tell its retry workers that the retry budget is used up: in their commits' metadata.

Retry workers read nothing but what failed before, so their own counts cannot tell poison from an outage; they follow
the main workers, which can. A commit reaches them without a topic, a port or a leader of its own. Pure.
"""

from __future__ import annotations

import re
from typing import Final

OPEN_LIMIT_S: Final = 3660.0
"""For how long a mark counts at most: the longest cooldown, and a minute. A worker whose clock is wrong, and that died,
must not stop retries for ever."""

_MARK: Final = re.compile(r"fleet-breaker=open;until=([0-9]{1,15})")


def breaker_mark(until_ms: int) -> str:
    """The metadata of a commit while the breaker is open; it counts until `until_ms` (wall clock, milliseconds)."""
    return f"fleet-breaker=open;until={until_ms}"


def read_mark(metadata: str) -> int | None:
    """Until when the breaker is open (wall clock, milliseconds), or None where a commit's metadata says no such thing.

    Metadata is anybody's who may commit for the group, so it is read strictly; `OPEN_LIMIT_S` is its reader's to keep.
    """
    found = _MARK.fullmatch(metadata)
    return None if found is None else int(found[1])
