"""One simulation of one rule over a curve, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Final

from bench.simulate.model import Group
from bench.simulate.rules import Choice, Rule
from bench.simulate.sight import Sight
from bench.simulate.world import World

POINT_S: Final = 5.0
TAIL_SHARE: Final = 0.25
"""The last part of a run, in which lag rises or does not."""
RISES: Final = 0.01
"""The part of the arrivals from which lag counts as rising: less is noise."""
RISES_RECORDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """A change of the number of workers."""

    at: float
    before: int
    after: int
    reason: str


@dataclass(slots=True)
class Figures:
    """Figures of a run. `lag_seconds` and `pod_seconds` are sums over the seconds of the run; `late_seconds` counts the
    seconds in which more lag waited than arrives within the objective; `series` has a point every few seconds."""

    rule: str
    steps: list[Step] = field(default_factory=list)
    rebalances: int = 0
    lag_seconds: float = 0.0
    pod_seconds: float = 0.0
    late_seconds: float = 0.0
    most_lag: float = 0.0
    most_pods: int = 0
    last_lag: float = 0.0
    arrived: float = 0.0
    handled: float = 0.0
    series: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Second, arrival, lag, workers."""

    @property
    def reversals(self) -> int:
        """Changes of direction from one step to the next."""
        signs = [step.after > step.before for step in self.steps]
        return sum(one != other for one, other in pairwise(signs))

    @property
    def rises(self) -> bool:
        """True if lag rises at the end: from third to third of the last quarter, by more than noise."""
        tail = self.series[-max(3, round(len(self.series) * TAIL_SHARE)) :]
        third = len(tail) // 3
        if not third:
            return False
        first, second, last = (
            fmean(lag for _, _, lag, _ in tail[place * third : (place + 1) * third]) for place in range(3)
        )
        arrived = fmean(arrival for _, arrival, _, _ in tail) * 2 * third * POINT_S
        return first < second < last and last - first > max(RISES_RECORDS, RISES * arrived)


def simulate(rule: Rule, world: World, *, seconds: float, start: int, acceptable_s: float) -> Figures:
    """Run a rule from `start` workers on. `acceptable_s` is the lag in seconds of arrival that is not late."""
    return drive(
        lambda group: rule.choose(Sight(group)),
        Group(world),
        Figures(rule.name),
        seconds=seconds,
        start=start,
        acceptable_s=acceptable_s,
    )


def drive(
    choose: Callable[[Group], Choice],
    group: Group,
    figures: Figures,
    *,
    seconds: float,
    start: int,
    acceptable_s: float,
) -> Figures:
    """Run a group whose number of workers somebody chooses who may know all of it."""
    group.pods = [0.0] * start
    while group.now < seconds:
        group.advance()
        before = len(group.pods)
        choice = choose(group)
        if choice.workers != before:
            figures.steps.append(Step(group.now, before, choice.workers, choice.reason))
            group.scale(choice.workers)
        lag, arrival = group.lag, group.world.arrivals(group.now)
        figures.lag_seconds += lag
        figures.pod_seconds += len(group.pods)
        figures.late_seconds += lag > acceptable_s * max(arrival, 1.0)
        figures.most_lag = max(figures.most_lag, lag)
        figures.most_pods = max(figures.most_pods, len(group.pods))
        if group.now % POINT_S == 0.0:
            figures.series.append((group.now, arrival, lag, len(group.pods)))
    figures.rebalances, figures.last_lag = group.rebalances, group.lag
    figures.arrived, figures.handled = sum(group.work.ends), sum(group.work.handled)
    return figures
