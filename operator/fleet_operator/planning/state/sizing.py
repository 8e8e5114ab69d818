"""The sizing part of a group's state: the number of workers decided last, and the past that later decisions need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field

HOUR_S: Final = 3600.0
STEPS_MAX: Final = 100
"""Steps that are remembered. Each takes its workers' start and a settling time, so an hour has fewer."""
CAPACITY_DRIFT: Final = 0.1
"""Part of the kept capacity by which the present one may differ from it: each change is a write."""

Count = Annotated[int, Field(ge=0, le=1000)]
Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The last growth: its counts, the rate of commits before it (records per second), and its time. A rate of 0 judges
    nothing."""

    before: Count
    after: Count
    commits: Rate
    at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A count beyond which more workers did not help, until a time."""

    count: Count
    until: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Records per second of one worker of a revision."""

    rate: Annotated[float, Field(ge=1e-6, le=1e9)]
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingState:
    """The past of one fleet's size; times in epoch seconds.

    - `count`: the number of workers that a load gave last. It outlives a suspended fleet, whose StatefulSet has none.
    - `replicas`: the last `spec.replicas`, or what stood for it: it stays in force while the field is absent, and
      `count` outlives `spec.scaling`, too, until somebody edits it.
    - `capacity`: of one worker, as decisions use it.
    - `steps`: times of the steps of a living group within an hour before the last one.
    - `growth`: the last growth, until the next step; `bound` is what growth without effect has left.
    - `probed`: a step up was made without knowledge of a worker's capacity.
    """

    count: Count | None = None
    replicas: Count | None = None
    capacity: Capacity | None = None
    steps: tuple[Time, ...] = ()
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
    ) -> SizingState:
        """The memory with one more step, which counts if the group was `living` before it and is after it; a bound
        stays until its time."""
        recent = (*(at for at in self.steps if now - at < HOUR_S), *([round(now, 1)] if living else ()))[-STEPS_MAX:]
        kept = bound or (self.bound if self.bound_at(now) is not None else None)
        return replace(self, count=count, steps=recent, growth=growth, bound=kept, probed=probed)

    def with_capacity(self, rate: float | None, revision: str | None) -> SizingState:
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
