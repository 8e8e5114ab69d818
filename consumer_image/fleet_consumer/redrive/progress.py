"""How far a run has come in one partition of the failed topic: what stands beside its offset in the run's own group.

Offsets say what was read; the metadata says up to where the run goes, and what it has counted. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 1


@dataclass(slots=True)
class Progress:
    """One partition: the run ends before offset `end`, which was the partition's end at the run's first start."""

    end: int
    selected: int = 0
    moved: int = 0
    guarded: int = 0

    def metadata(self) -> str:
        """The text of an OffsetCommit."""
        counts = {"selected": self.selected, "moved": self.moved, "guarded": self.guarded}
        return json.dumps({"v": VERSION, "end": self.end, **counts}, separators=(",", ":"))


def parse_metadata(text: str) -> Progress | None:
    """What an earlier start of the run has committed; None for text of anybody else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("v") != VERSION:
        return None
    numbers = [found.get(name) for name in ("end", "selected", "moved", "guarded")]
    if not all(_is_count(number) for number in numbers):
        return None
    end, selected, moved, guarded = numbers
    return Progress(end, selected, moved, guarded)  # type: ignore[arg-type]  # checked just above


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Pace:
    """Spreads records evenly over time: at most `per_second` of them, None: as fast as it goes.

    Time that was not used is not made up for, or a pause would end in a burst.
    """

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._free_at = float("-inf")

    def wait_s(self, count: int, now: float) -> float:
        """How long to wait, from the monotonic time `now` on, before `count` records may go."""
        if self._per_second is None:
            return 0.0
        at = max(self._free_at, now)
        self._free_at = at + count / self._per_second
        return at - now
