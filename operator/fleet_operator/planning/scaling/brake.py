"""The brake: a scale-up that did not raise the commit rate is undone, because something other than the workers is the
limit.

For example, if a database is at its limit, more workers make each worker slower. Only workers that had a backlog before
and after the scale-up prove such a limit: without a backlog, the arrival rate limits the commit rate. A scale-up is
undone if at least half of the workers are busy and the rate gained less than a quarter of the expected rise. The fleet
then keeps the smallest number of workers that reaches the same rate.

This bound is lifted once the smaller fleet handles clearly more records than the larger fleet did. Otherwise another
scale-up is tried after 2 minutes, and after twice the time for each further failure.
"""

from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.scaling.capacity import SETTLED_S, measure_fleet
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.load import Load
from fleet_operator.planning.state.sizing import HOUR_S, TRIES_MAX, Bound, Growth

JUDGE_S: Final = 30.0
JUDGE_RECORDS: Final = 20.0
"""A scale-up is judged after all workers have run for `JUDGE_S` seconds. If one worker needs longer than that for
`JUDGE_RECORDS` records, the scale-up is judged after this longer time."""
JUDGED_WITHIN_S: Final = 900.0
"""A scale-up that has not been judged this many seconds after the first opportunity is never judged, because the rate
may since have changed for other reasons."""
MANY: Final = 0.5
"""If at least this share of the workers has a backlog, the arrival rate does not limit the commit rate. The share is
not 1, because a downstream system at its limit may slow some workers down and not others."""
GAIN_LEAST: Final = 0.25
GAIN_EXPECTED_MOST: Final = 3.0
"""A scale-up did not help if it gained less than `GAIN_LEAST` of the expected rise. The expected rise is at most
`GAIN_EXPECTED_MOST` times the rate before the scale-up. Flink's autoscaler requires only a tenth, but a database at its
limit still gains that much from more connections."""
ROUNDING: Final = 0.05
"""Relative error of a rate that is measured over half a minute. Committed offsets advance in steps, so the rate is
inexact."""
LIFT_GAIN: Final = 1.25
RETRY_S: Final = 60.0
"""A scale-up that did not help is tried again after 2 * `RETRY_S` seconds. Each further failure doubles the wait, up
to one hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The effect of a scale-up. `commits`: records committed per second after the scale-up. `bound`: the number of
    workers that the next scale-ups must not exceed; None if the scale-up helped."""

    growth: Growth
    commits: float
    bound: Bound | None


def commits_before(load: Load) -> float:
    """Return the commit rate in records per second before a scale-up. Return 0 if less than the share
    `MANY` of the workers is behind (`Load.behind`); the scale-up is then not judged."""
    owners = sum(bool(owned) for owned in load.dealing.owned)
    if len(load.behind()) < MANY * max(owners, 1):
        return 0.0
    found = load.measured
    return found.commits if found is not None else sum(load.slow.commits.values())


def judge(facts: ScalingFacts, load: Load, now: float) -> Verdict | None:
    """Return the verdict on the last scale-up. None while the effect is unknown, or if there is no scale-up to judge.
    Also None while the load is partly unknown, because workers may also handle records of the unknown partitions."""
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
    back = enough_for(found.commits, growth, load)
    helped = not found.mostly_busy or found.commits - growth.commits >= GAIN_LEAST * expected
    if helped or back >= growth.after:
        return Verdict(growth=growth, commits=found.commits, bound=None)
    last = facts.memory.bound
    tries = min(1 + (last.tries if last is not None and now - last.until < HOUR_S else 0), TRIES_MAX)
    wait_s = min(RETRY_S * 2.0**tries, HOUR_S)
    bound = Bound(count=back, until=round(now + wait_s, 1), reached=found.commits, tries=tries)
    return Verdict(growth=growth, commits=found.commits, bound=bound)


def enough_for(reached: float, growth: Growth, load: Load) -> int:
    """Return the smallest useful number of workers that can handle `reached` records per second. Each worker is assumed
    to be as fast as before the scale-up."""
    least = growth.before * max(reached / growth.commits, 1.0)
    return next((count for count in load.counts.counts if count >= least * (1.0 - ROUNDING)), growth.after)


def is_lifted(bound: Bound, load: Load) -> bool:
    """True if the limit no longer exists: busy workers now handle clearly more records than the larger fleet did."""
    found = load.measured
    return found is not None and found.mostly_busy and found.commits >= LIFT_GAIN * bound.reached
