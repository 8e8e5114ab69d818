"""The past of a scaled fleet, in an annotation of its StatefulSet, where a restarted operator finds it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_operator.planning.foreign_json import read_object

HOUR_S: Final = 3600.0
STEPS_MAX: Final = 100
"""Steps that are remembered. Each takes its workers' start and a settling time, so an hour has fewer."""
COUNT_MAX: Final = 1000
CAPACITY_LEAST: Final = 1e-6
CAPACITY_MOST: Final = 1e9
"""Bounds of the records per second of one worker: other numbers were not written by an operator."""
CAPACITY_DRIFT: Final = 0.1
"""Part of the kept capacity by which the present one may differ from it: each change is a write."""


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
class Capacity:
    """Records per second of one worker of a revision."""

    rate: float
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """The past of one scaled fleet; times in epoch seconds.

    - `count`: the number of workers that was decided last. It outlives a suspended fleet, whose StatefulSet has none.
    - `replicas`: `spec.replicas` at that time: `count` outlives `spec.scaling`, too, until somebody edits it.
    - `capacity`: of one worker, as decisions use it.
    - `steps`: times of the steps of a living group within an hour before the last one.
    - `growth`: the last growth, until the next step; `bound` is what growth without effect has left.
    - `probed`: a step up was made without knowledge of a worker's capacity.
    """

    count: int | None = None
    replicas: int | None = None
    capacity: Capacity | None = None
    steps: tuple[float, ...] = ()
    growth: Growth | None = None
    bound: Bound | None = None
    probed: bool = False

    def after_step(
        self,
        count: int,
        now: float,
        *,
        living: bool = True,
        growth: Growth | None = None,
        bound: Bound | None = None,
        probed: bool = False,
    ) -> ScaleMemory:
        """The memory with one more step, which counts if the group was `living` before it and is after it; a bound
        stays until its time."""
        recent = (*(at for at in self.steps if now - at < HOUR_S), *([round(now, 1)] if living else ()))[-STEPS_MAX:]
        kept = bound or (self.bound if self.bound_at(now) is not None else None)
        return replace(self, count=count, steps=recent, growth=growth, bound=kept, probed=probed)

    def with_capacity(self, rate: float | None, revision: str | None) -> ScaleMemory:
        """The memory with the capacity that is used now; `revision` is None while one replaces another."""
        kept = self.capacity
        if rate is None or revision is None:
            return self
        if kept and kept.revision == revision and abs(rate - kept.rate) <= CAPACITY_DRIFT * kept.rate:
            return self
        return replace(self, capacity=Capacity(rate=round(rate, 6), revision=revision))

    def steps_within_hour(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.steps if 0.0 <= now - at < HOUR_S)

    def bound_at(self, now: float) -> int | None:
        """The count beyond which no growth is tried now. A bound that would last for longer than an hour was made by a
        clock that was ahead."""
        return self.bound.count if self.bound is not None and 0.0 < self.bound.until - now <= HOUR_S else None

    def to_text(self) -> str:
        """The annotation."""
        document: dict[str, Any] = {"count": self.count, "steps": list(self.steps), "probed": self.probed}
        if self.replicas is not None:
            document["replicas"] = self.replicas
        if self.capacity is not None:
            document["capacity"] = {"rate": self.capacity.rate, "revision": self.capacity.revision}
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
        growth, bound, capacity = (document.get(name) for name in ("growth", "bound", "capacity"))
        replicas = document.get("replicas")
        return ScaleMemory(
            count=None if document["count"] is None else _count(document["count"]),
            replicas=None if replicas is None else _count(replicas),
            capacity=None if capacity is None else _capacity(capacity),
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


def _capacity(value: Any) -> Capacity:
    rate, revision = float(value["rate"]), value["revision"]
    if not CAPACITY_LEAST <= rate <= CAPACITY_MOST or not isinstance(revision, str):
        raise ValueError(f"{value} is not a capacity")
    return Capacity(rate=rate, revision=revision)


def _time(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0.0:
        raise ValueError(f"{number} is no time")
    return number
