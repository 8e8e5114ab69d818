"""The sizing part of a group's state: the number of workers decided last, and the past that later decisions need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field

HOUR_S: Final = 3600.0
STEPS_MAX: Final = 100
"""Steps that are remembered. Each takes its workers' start and a settling time, so an hour has fewer."""
CAPACITY_DRIFT: Final = 0.1
"""Part of the kept capacity by which the present one may differ from it: each change is a write."""

LEVEL_YOUNG_S: Final = 60.0
"""Age from which a level is remembered beyond the process."""
LOOK_NOTED_S: Final = 60.0
"""Interval in which it is noted that the levels still hold."""
UNWATCHED_S: Final = 180.0
"""Time without a look after which nothing is known of what was between: an interval of notes, and a restart."""

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
    """A count beyond which more workers did not help, until a time: `reached` is the rate of commits with more of them
    (records per second), and `tries` how often growth has not helped in a row."""

    count: Count
    until: Time
    reached: Rate
    tries: Annotated[int, Field(ge=1, le=1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a living group, and the part of the group that it stopped."""

    at: Time
    cost: Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A number of workers that has been enough since a time."""

    count: Count
    since: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Records per second of one worker of a revision, and when it was learnt."""

    rate: Annotated[float, Field(ge=1e-6, le=1e9)]
    revision: str
    at: Time = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingState:
    """The past of one fleet's size; times in epoch seconds.

    - `count`: the number of workers that a load gave last. It outlives a suspended fleet, whose StatefulSet has none.
    - `replicas`: the last `spec.replicas`, or what stood for it: it stays in force while the field is absent, and
      `count` outlives `spec.scaling`, too, until somebody edits it.
    - `capacity`: of one worker, as decisions use it.
    - `steps`: of a living group within an hour before the last one.
    - `growth`: the last growth, until its effect is judged or the next step is made; `bound` is what growth without
      effect has left.
    - `levels`: of a fleet that is larger than it has to be: the numbers that have been enough, ascending; each larger
      one for longer. `looked_at`: when that was last known.
    - `probed`: a step was made to learn a worker's capacity.
    """

    count: Count | None = None
    replicas: Count | None = None
    capacity: Capacity | None = None
    steps: tuple[Step, ...] = ()
    growth: Growth | None = None
    bound: Bound | None = None
    levels: tuple[Level, ...] = ()
    looked_at: Time | None = None
    probed: bool = False

    def after_step(
        self,
        count: int,
        now: float,
        *,
        cost: float,
        growth: Growth | None = None,
        bound: Bound | None = None,
        probed: bool = False,
    ) -> SizingState:
        """The memory with one more step, which counts if it stopped anything."""
        step = (Step(at=round(now, 1), cost=round(cost, 3)),) if cost > 0.0 else ()
        recent = (*self.steps_within_hour(now), *step)[-STEPS_MAX:]
        return replace(self, count=count, steps=recent, growth=growth, bound=bound or self.bound, probed=probed)

    def with_capacity(self, rate: float | None, revision: str | None, now: float) -> SizingState:
        """The memory with the capacity that was learnt last; `revision` is None while one replaces another."""
        kept = self.capacity
        if rate is None or revision is None:
            return self
        if kept and kept.revision == revision and abs(rate - kept.rate) <= CAPACITY_DRIFT * kept.rate:
            return self
        return replace(self, capacity=Capacity(rate=round(rate, 6), revision=revision, at=round(now, 1)), probed=False)

    def with_levels(self, levels: Sequence[Level], now: float) -> SizingState:
        """The memory with the levels that a later process goes on with, in few writes.

        A level that is no longer one leaves at once, for a fleet must not shrink by it. One that is young is left out,
        since it may be gone with the next look.
        """
        kept = tuple(each for each in levels if each in self.levels or now - each.since >= LEVEL_YOUNG_S)
        if not kept:
            return replace(self, levels=(), looked_at=None)
        fresh = self.looked_at is not None and 0.0 <= now - self.looked_at < LOOK_NOTED_S
        return replace(self, levels=kept, looked_at=self.looked_at if fresh else round(now, 1))

    def levels_at(self, now: float) -> tuple[Level, ...]:
        """The levels of a former process; none if nobody has looked for too long."""
        known = self.looked_at is not None and 0.0 <= now - self.looked_at <= UNWATCHED_S
        return self.levels if known else ()

    def steps_within_hour(self, now: float) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if 0.0 <= now - step.at < HOUR_S)

    def bound_at(self, now: float) -> int | None:
        """The count beyond which no growth is tried now. A bound that would last for longer than an hour was made by a
        clock that was ahead."""
        return self.bound.count if self.bound is not None and 0.0 < self.bound.until - now <= HOUR_S else None
