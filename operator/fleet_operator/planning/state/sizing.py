"""The sizing section of a group's state: the last decided number of workers, and the history that decisions need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field

HOUR_S: Final = 3600.0
STEPS_MAX: Final = 100
"""Maximum number of stored steps. Fewer steps fit in an hour, because each step includes worker starts and a settling
time."""
RATE_LEAST: Final = 1e-6
RATE_MOST: Final = 1e9
"""Bounds of a stored capacity, in records per second. They are needed because workers may run any image, so their
reports may contain any value."""
CAPACITY_DRIFT: Final = 0.1
"""A measured capacity replaces the stored capacity only if it differs by at least this share. This avoids frequent
writes."""

TRIES_MAX: Final = 1000
"""Maximum of `Bound.tries`. More tries are not counted, because the pause between tries has reached its maximum by
then."""
LEVEL_YOUNG_S: Final = 60.0
"""Minimum age in seconds for a level to be stored."""
RECORD_S: Final = 60.0
"""Minimum seconds between two writes of `known_at`."""
UNWATCHED_S: Final = 180.0
"""Stored levels are used only if `known_at` is at most this many seconds ago. This is RECORD_S plus the duration of a
restart."""

Count = Annotated[int, Field(ge=0, le=1000)]
Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The last scale-up. `commits`: records committed per second before the scale-up; if 0, its effect cannot be
    judged."""

    before: Count
    after: Count
    commits: Rate
    at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A number of workers above which additional workers did not help. `reached`: the commit rate with more workers, in
    records per second. `tries`: the number of consecutive scale-ups that did not help."""

    count: Count
    until: Time
    reached: Rate
    tries: Annotated[int, Field(ge=1, le=TRIES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A scaling step of a running group. `cost`: the share of the group's partitions whose processing the step
    interrupted."""

    at: Time
    cost: Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A number of workers, and the time since which this number has been enough."""

    count: Count
    since: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Records per second that one worker of a revision handles, and the time of the measurement."""

    rate: Annotated[float, Field(ge=RATE_LEAST, le=RATE_MOST)]
    revision: str
    at: Time = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingState:
    """History of one fleet's size. Times are in epoch seconds.

    - `count`: last number of workers computed by load-based scaling. It is kept during a suspension, when the
      StatefulSet has no workers, and after `spec.scaling` is removed, until somebody edits `spec.replicas`.
    - `replicas`: the last `spec.replicas`, or the number used in its place. It applies while the field is absent.
    - `steps`: the steps of a running group in the hour before the last step.
    - `growth`: the last scale-up, until its effect is judged or another step is made.
    - `levels`: for a fleet that is larger than necessary, the numbers of workers that have been enough, ascending. Each
      larger number has been enough for longer. `known_at`: the time at which the levels were last known.
    - `probed`: True if the last step was made to measure a worker's capacity.
    """

    count: Count | None = None
    replicas: Count | None = None
    capacity: Capacity | None = None
    steps: tuple[Step, ...] = ()
    growth: Growth | None = None
    bound: Bound | None = None
    levels: tuple[Level, ...] = ()
    known_at: Time | None = None
    probed: bool = False

    def after_step(self, count: int, now: float, *, cost: float) -> "SizingState":
        """Return the state after a scaling step to `count` workers. The state has no scale-up to judge. A step that
        interrupts no partition is not stored."""
        step = (Step(at=round(now, 1), cost=round(cost, 3)),) if cost > 0.0 else ()
        recent = (*self.steps_within_hour(now), *step)[-STEPS_MAX:]
        return replace(self, count=count, steps=recent, growth=None, probed=False)

    def with_capacity(self, rate: float | None, revision: str | None, now: float) -> "SizingState":
        """Return the state with the last measured capacity. During a rollout, `revision` is None and no capacity is
        stored."""
        kept = self.capacity
        if rate is None or revision is None:
            return self
        rate = min(max(rate, RATE_LEAST), RATE_MOST)
        if kept and kept.revision == revision and abs(rate - kept.rate) <= CAPACITY_DRIFT * kept.rate:
            return self
        return replace(self, capacity=Capacity(rate=round(rate, 6), revision=revision, at=round(now, 1)), probed=False)

    def with_levels(self, levels: Sequence[Level], now: float) -> "SizingState":
        """Return the state with the levels for the next process.

        An obsolete level is removed immediately, so that no fleet shrinks because of this level. A level younger than
        `LEVEL_YOUNG_S` may soon be obsolete, so it is left out to save writes."""
        kept = tuple(each for each in levels if each in self.levels or now - each.since >= LEVEL_YOUNG_S)
        if not kept:
            return replace(self, levels=(), known_at=None)
        fresh = self.known_at is not None and 0.0 <= now - self.known_at < RECORD_S
        return replace(self, levels=kept, known_at=self.known_at if fresh else round(now, 1))

    def levels_at(self, now: float) -> tuple[Level, ...]:
        """Return the levels that an earlier process stored; empty if they were last known more than `UNWATCHED_S`
        ago."""
        known = self.known_at is not None and 0.0 <= now - self.known_at <= UNWATCHED_S
        return self.levels if known else ()

    def steps_within_hour(self, now: float) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if 0.0 <= now - step.at < HOUR_S)

    def bound_at(self, now: float) -> int | None:
        """Return the bound in force, or None. A bound that would last for more than an hour is ignored, because it was
        set by a leader with a fast clock."""
        return self.bound.count if self.bound is not None and 0.0 < self.bound.until - now <= HOUR_S else None
