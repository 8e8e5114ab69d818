"""The past of a scaled fleet, in an annotation of its StatefulSet, where a restarted operator finds it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from fleet_operator.planning.foreign_json import read_object

HOUR_S: Final = 3600.0
STEPS_MAX: Final = 100
"""Steps that are remembered. Each takes its workers' start and a settling time, so an hour has fewer."""
COUNT_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The last growth: its counts, the rate of commits before it (records per second), and its time. A rate of 0 judges
    nothing."""

    before: int
    after: int
    commits: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A count beyond which more workers did not help, until a time."""

    count: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """The past of one scaled fleet; times in epoch seconds.

    - `count`: the number of workers that was decided last. It outlives a suspended fleet, whose StatefulSet has none.
    - `steps`: times of the steps within an hour before the last one.
    - `growth`: the last growth, until the next step; `bound` is what growth without effect has left.
    - `probed`: a step up was made without knowledge of a worker's capacity.
    """

    count: int | None = None
    steps: tuple[float, ...] = ()
    growth: Growth | None = None
    bound: Bound | None = None
    probed: bool = False

    def after_step(
        self, count: int, now: float, *, growth: Growth | None = None, bound: Bound | None = None, probed: bool = False
    ) -> ScaleMemory:
        """The memory with one more step; a bound stays until its time."""
        recent = (*(at for at in self.steps if now - at < HOUR_S), round(now, 1))[-STEPS_MAX:]
        kept = bound or (self.bound if self.bound is not None and now < self.bound.until else None)
        return ScaleMemory(count=count, steps=recent, growth=growth, bound=kept, probed=probed)

    def steps_within_hour(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.steps if 0.0 <= now - at < HOUR_S)

    def bound_at(self, now: float) -> int | None:
        """The count beyond which no growth is tried now."""
        return self.bound.count if self.bound is not None and now < self.bound.until else None

    def to_text(self) -> str:
        """The annotation."""
        document: dict[str, Any] = {"count": self.count, "steps": list(self.steps), "probed": self.probed}
        if self.growth is not None:
            growth = self.growth
            document["growth"] = {
                "before": growth.before,
                "after": growth.after,
                "commits": round(growth.commits, 3),
                "at": growth.at,
            }
        if self.bound is not None:
            document["bound"] = {"count": self.bound.count, "until": self.bound.until}
        return json.dumps(document, sort_keys=True)


NO_MEMORY: Final = ScaleMemory()


def read_memory(text: str | None) -> ScaleMemory:
    """The memory in an annotation; an empty one where that is absent or not ours."""
    document = read_object(text) if text else None
    if document is None:
        return NO_MEMORY
    try:
        growth, bound = document.get("growth"), document.get("bound")
        return ScaleMemory(
            count=None if document["count"] is None else _count(document["count"]),
            steps=tuple(_time(at) for at in document["steps"])[-STEPS_MAX:],
            growth=None
            if growth is None
            else Growth(
                before=_count(growth["before"]),
                after=_count(growth["after"]),
                commits=_time(growth["commits"]),
                at=_time(growth["at"]),
            ),
            bound=None if bound is None else Bound(count=_count(bound["count"]), until=_time(bound["until"])),
            probed=document["probed"] is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return NO_MEMORY


def _count(value: Any) -> int:
    number = int(value)
    if not 0 <= number <= COUNT_MAX:
        raise ValueError(f"{number} is no number of workers")
    return number


def _time(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0.0:
        raise ValueError(f"{number} is no time")
    return number
