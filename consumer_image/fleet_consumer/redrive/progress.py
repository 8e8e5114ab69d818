"""Progress of a run in one partition of the failed topic: the metadata of its offset in the run's own group.

The offset is the read position; the metadata holds the run's end and its counts. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract.redrive_config import COUNTS

VERSION: Final = 1
COUNTED_LATER: Final = frozenset({"movedBefore", "failedAgain"})
"""Counts that earlier versions do not have."""
LOG_COUNTS: Final = {"start": "start", "putBack": "put_back"}
"""Numbers about the log itself, by their names in metadata; earlier versions do not have them."""


@dataclass(slots=True)
class RedriveProgress:
    """One partition: the run ends before offset `end`, which was the partition's end at the run's first start.

    `start` was the log start then. `put_back` counts the examined records that are in the ledger, whatever the filter.
    """

    end: int
    selected: int = 0
    moved: int = 0
    guarded: int = 0
    moved_before: int = 0
    failed_again: int = 0
    start: int = 0
    put_back: int = 0

    def redriven_to(self, first: int) -> int:
        """A lower bound of "log start plus records put back", now and at any later time.

        `first` is the log start now. Retention may since have removed as many of the counted records as the log start
        has moved, and no more. So at most `end - redriven_to` records of the partition were not put back.
        """
        return max(first, self.start + self.put_back)

    def metadata(self) -> str:
        counts = {name: getattr(self, field) for name, field in (COUNTS | LOG_COUNTS).items()}
        return json.dumps({"v": VERSION, "end": self.end, **counts}, separators=(",", ":"))


def parse_metadata(text: str) -> RedriveProgress | None:
    """Read the metadata of an earlier start; None if it is not ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("v") != VERSION:
        return None
    later = COUNTED_LATER | LOG_COUNTS.keys()
    counts = {field: found.get(name, 0 if name in later else None) for name, field in (COUNTS | LOG_COUNTS).items()}
    if not all(map(_is_count, (found.get("end"), *counts.values()))):
        return None
    return RedriveProgress(found["end"], **counts)  # type: ignore[arg-type]  # checked just above


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class RateLimit:
    """Even spacing of records: at most `per_second` of them, None: no limit.

    Unused time is not made up for, or a pause would end in a burst.
    """

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._free_at = float("-inf")

    def wait_s(self, count: int, now: float) -> float:
        """The seconds to wait, from the monotonic time `now` on, before `count` records may go."""
        if self._per_second is None:
            return 0.0
        at = max(self._free_at, now)
        self._free_at = at + count / self._per_second
        return at - now
