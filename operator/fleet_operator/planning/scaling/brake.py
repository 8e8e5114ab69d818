"""The brake: growth that did not raise the rate of commits is taken back, since something else is the limit.

A database at its limit makes each of more workers slower. Only workers with a backlog before and after a growth say
that: otherwise the arrival is what limits the rate. The bound lifts as soon as the fleet handles clearly more than it
reached then, and is tried again after 2, 4, 8 ... minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.scaling.capacity import SETTLED_S, measure_fleet
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.load import Load
from fleet_operator.planning.state.sizing import HOUR_S, Bound, Growth

JUDGE_S: Final = 30.0
JUDGE_RECORDS: Final = 20.0
"""Least length of the stretch with all workers over which a growth is judged, in seconds and in records of a worker."""
JUDGED_WITHIN_S: Final = 900.0
"""Time within which a growth is judged, besides that stretch; after that other things have changed, too."""
MANY: Final = 0.5
"""Share of the workers that have a backlog from which the arrival is not what limits them. What limits them may feed
some and starve others."""
GAIN_LEAST: Final = 0.25
GAIN_EXPECTED_MOST: Final = 3.0
"""Least part of the expected rise: below it the growth did not help. Flink's autoscaler asks for a tenth; a database at
its limit still gains that much from more connections. More than this rise is expected of no growth."""
ROUNDING: Final = 0.05
"""Part by which a rate over half a minute is uncertain: commits come in steps."""
LIFT_GAIN: Final = 1.25
RETRY_S: Final = 60.0
"""The first retry comes after twice this time, each further one after twice the time of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The effect of a growth: `commits` are the records per second with more workers; `bound` is None if it helped."""

    growth: Growth
    commits: float
    bound: Bound | None


def commits_before(load: Load) -> float:
    """Records per second that all workers commit before they become more; 0, which judges nothing, where few of them
    have a backlog."""
    owners = sum(bool(owned) for owned in load.dealing.owned)
    if len(load.behind()) < MANY * max(owners, 1):
        return 0.0
    found = load.measured
    return found.commits if found is not None else sum(load.slow.commits.values())


def judge(facts: ScalingFacts, load: Load, now: float) -> Verdict | None:
    """The verdict on the last growth; None while it cannot be told, and where there is nothing to judge.

    Nothing is told while a part of the load is unknown, which may be handled, too.
    """
    growth, since = facts.memory.growth, facts.stable_since
    if growth is None or growth.after != facts.current or since is None or not load.complete:
        return None
    seconds = max(JUDGE_S, JUDGE_RECORDS / load.capacity if load.capacity else 0.0)
    if now - growth.at > JUDGED_WITHIN_S + seconds or since < growth.at or growth.before == 0 or growth.commits <= 0.0:
        return None
    found = measure_fleet(facts, seconds - SETTLED_S)
    if found is None or facts.observed is None or facts.observed.observed_at - since < seconds:
        return None
    expected = growth.commits * min(growth.after / growth.before - 1.0, GAIN_EXPECTED_MOST)
    if not found.mostly_busy or found.commits - growth.commits >= GAIN_LEAST * expected:
        return Verdict(growth=growth, commits=found.commits, bound=None)
    back = enough_for(found.commits, growth, load)
    if back >= growth.after:
        return Verdict(growth=growth, commits=found.commits, bound=None)
    last = facts.memory.bound
    tries = 1 + (last.tries if last is not None and now - last.until < HOUR_S else 0)
    wait_s = min(RETRY_S * 2.0**tries, HOUR_S)
    bound = Bound(count=back, until=round(now + wait_s, 1), reached=found.commits, tries=tries)
    return Verdict(growth=growth, commits=found.commits, bound=bound)


def enough_for(reached: float, growth: Growth, load: Load) -> int:
    """The smallest number that handles what was reached, if each worker does what it did before."""
    least = growth.before * max(reached / growth.commits, 1.0)
    return next((count for count in load.counts.counts if count >= least * (1.0 - ROUNDING)), growth.after)


def is_lifted(bound: Bound, load: Load) -> bool:
    """True if workers with a backlog handle clearly more than a larger fleet of them reached: the limit is gone."""
    found = load.measured
    return found is not None and found.mostly_busy and found.commits >= LIFT_GAIN * bound.reached
