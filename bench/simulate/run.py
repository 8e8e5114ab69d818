"""One simulation of one rule over a curve, and its figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from bench.simulate.model import Group, World
from bench.simulate.rules import Rule


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
    series: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Second, arrival, lag, workers."""

    @property
    def reversals(self) -> int:
        """Changes of direction from one step to the next."""
        signs = [step.after > step.before for step in self.steps]
        return sum(one != other for one, other in pairwise(signs))


POINT_S = 5.0


def simulate(rule: Rule, world: World, *, seconds: float, start: int, acceptable_s: float) -> Figures:
    """Run a rule from `start` workers on. `acceptable_s` is the lag in seconds of arrival that is not late."""
    group, figures = Group(world), Figures(rule.name)
    group.scale(start)
    group.pods = [0.0] * start
    while group.now < seconds:
        group.advance()
        before = len(group.pods)
        count, reason = rule.choose(group)
        if count != before:
            figures.steps.append(Step(group.now, before, count, reason))
            group.scale(count)
        lag, arrival = group.lag, world.arrivals(group.now)
        figures.lag_seconds += lag
        figures.pod_seconds += len(group.pods)
        figures.late_seconds += lag > acceptable_s * max(arrival, 1.0)
        figures.most_lag = max(figures.most_lag, lag)
        figures.most_pods = max(figures.most_pods, len(group.pods))
        if group.now % POINT_S == 0.0:
            figures.series.append((group.now, arrival, lag, len(group.pods)))
    figures.rebalances, figures.last_lag = group.rebalances, group.lag
    return figures
