"""The rules of scaling, in order: what holds, what wakes, what grows, what shrinks. Pure.

One step goes to the final number, because each stops the group for a rebalance. Growth is quick, shrinking waits until
fewer workers have been enough for the whole stabilization window. What is known of a load is the least that it can be:
a fleet grows and wakes by it, and shrinks only while all is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.capacity import Measurement
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.scaling.facts import RESTING, STABLE, ScalingFacts, span
from fleet_operator.planning.scaling.load import (
    SETTLED_S,
    STEADY_S,
    Load,
    describe,
    name_partitions,
    read_load,
    two_digits,
)
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.state.sizing import HOUR_S, Bound, Growth, SizingState

RISING_S: Final = 60.0
"""Time for which growth waits for a rate that still rises, and the length of samples that the first growth needs: what
producers send after an outage is no rate."""
SETTLE_S: Final = 45.0
"""Time in one generation, with all workers, before the next growth."""
OVERDUE_S: Final = 180.0
"""Time after which a lag that grows asks for workers beyond the budget of rebalances: no rebalance costs as much."""
BROKEN_S: Final = 120.0
"""Time without a decision after which nothing is known of what was between: a suspended machine, a slow operator."""

BRAKE_S: Final = 900.0
"""Time within which a growth is judged; after that other things have changed, too."""
GAIN_LEAST: Final = 0.25
"""Least part of the expected rise: below it the growth did not help. Flink's autoscaler asks for a tenth; a database at
its limit still gains that much from more connections."""
ROLLING_TEXT: Final = "workers of a revision are on their way: their number stays, unless a lag grows"


def decide(facts: ScalingFacts, trail: Trail, now: float) -> tuple[ScaleDecision, Trail]:
    """The decision, and the trail for the next one; `now` in epoch seconds."""
    if trail.decided_at is not None and not 0.0 <= now - trail.decided_at <= BROKEN_S:
        trail = trail.forgotten()
    load, trail = read_load(facts, replace(trail, decided_at=now))
    policy = _Policy(facts, load, now)
    if load is None:
        return policy.unknown(), trail
    trail = policy.remember(trail)
    return policy.choose(trail)


@dataclass(frozen=True, slots=True)
class _Policy:
    facts: ScalingFacts
    load: Load | None
    now: float

    # The numbers that the load asks for.

    @property
    def least(self) -> int:
        return self.facts.spec.min_replicas

    def within(self, count: int) -> int:
        """The count within the bounds of the spec; useful or not, a person wanted it."""
        most = self.facts.spec.max_replicas
        return max(count if most is None else min(count, most), self.least)

    def growth_counts(self, load: Load) -> tuple[int, int] | None:
        """The useful numbers by the shortest window and by the next, for a load that exceeds the fleet over both; None
        where the fleet carries it, or cannot grow."""
        demands, current = (load.growth, load.steady), self.facts.current
        if any(demand is None or load.counts.carries(current, demand.growth) for demand in demands):
            return None
        fast, steady = (
            max(self.least, min(load.counts.snap(demand.wanted), load.most)) for demand in demands if demand is not None
        )
        return (fast, steady) if min(fast, steady) > current else None

    def calm_count(self, load: Load) -> int:
        """The useful number that carries the load with reserve; the present one while that is unknown."""
        if load.calm is None or not load.every_rate_known:
            return max(self.facts.current, 1)
        count = max(self.least, min(load.counts.snap(load.calm.floor), load.most))
        return count if load.idle else max(count, 1)

    def remember(self, trail: Trail) -> Trail:
        """The trail with what this load asks for."""
        load, at = self.load, self.now
        assert load is not None, "an unknown load leaves no trail"
        window_s = float(self.facts.spec.scale_down_stabilization_seconds)
        current, observed = self.facts.current, self.facts.observed
        assert observed is not None, "an observed load"
        trail = trail.with_want(self.calm_count(load), at, window_s, current=current, idle=load.idle)
        numbers = self.growth_counts(load)
        return trail.with_excess(None if numbers is None else numbers[0], observed.observed_at)

    # The decision.

    def choose(self, trail: Trail) -> tuple[ScaleDecision, Trail]:
        load, facts = self.load, self.facts
        assert load is not None, "decided by its load"
        bounded = self.within(facts.current)
        if bounded != facts.current:
            word = limits.MIN_REPLICAS if bounded > facts.current else limits.MAX_REPLICAS
            return self.step(bounded, word, f"spec.scaling bounds the fleet to {bounded} workers"), trail
        if facts.hold is not None:
            return self.stay(facts.hold.reason, facts.hold.message), trail
        if facts.current == 0:
            return self.wake(load), trail
        if facts.observed is not None and facts.observed.state not in (STABLE, *RESTING):
            return self.stay(limits.REBALANCING, f"the group is {facts.observed.state}"), trail
        numbers = self.growth_counts(load)
        if facts.rolling:
            return self.grow_in_rollout(load, trail, numbers), trail
        braked, trail = self.brake(load, trail)
        if braked is not None:
            return braked, trail
        if numbers is not None:
            return self.grow(load, trail, *numbers), trail
        if load.growth is None and _waits_long(load, facts):
            return self.probe(load, trail), trail
        if not load.complete:
            return self.partly_known(), trail
        return self.shrink(load, trail), trail

    def unknown(self) -> ScaleDecision:
        """Nothing is known of the load: the count stays, whatever the reason."""
        facts = self.facts
        count = self.within(facts.current)
        reason = "lag or rates are unknown: the number of workers stays as it is"
        if count != facts.current:
            return self.step(count, limits.UNKNOWN, reason)
        return self.stay(limits.UNKNOWN, reason)

    def partly_known(self) -> ScaleDecision:
        """Some of the load is unknown, and what is known asks for no more workers."""
        assert self.facts.lag is not None, "a part of the load"
        unknown = sorted(key for key, lag in self.facts.lag.partitions.items() if lag is None)
        hanging = list(self.facts.observed.hanging) if self.facts.observed is not None else []
        named = f"the lag of {name_partitions(unknown)}" if unknown else "a topic"
        if hanging and not unknown:
            named = f"what waits behind an open transaction in {name_partitions(hanging)}"
        reason = f"{named} is unknown: the fleet grows by what is known, and does not shrink"
        return self.stay(limits.UNKNOWN, reason)

    def wake(self, load: Load) -> ScaleDecision:
        if not load.total_lag and not load.complete:
            return self.partly_known()
        if not load.total_lag:
            return self.stay(limits.SCALED_TO_ZERO, "nothing waits and nothing arrives")
        wanted = load.calm.wanted if load.calm is not None else 0.0
        count = max(1, self.least, min(load.counts.snap(wanted), load.most))
        return self.step(count, limits.NO_LIMIT, f"{load.total_lag} records wait: {describe(load)}")

    def brake(self, load: Load, trail: Trail) -> tuple[ScaleDecision | None, Trail]:
        """Take back growth that did not raise the rate of commits, once."""
        growth, newest = self.facts.memory.growth, trail.newest
        if growth is None or newest is None or trail.judged == growth.at or not self.settled(trail):
            return None, trail
        if not load.complete:
            return None, trail  # what is unknown may be handled, too
        if growth.after != self.facts.current or self.now - growth.at > BRAKE_S or not can_judge(growth, newest):
            return None, trail
        back = count_without_effect(growth, newest, load)
        if back is None:
            return None, replace(trail, judged=growth.at)
        # Not judged before the step is carried out: it may be decided first between reconciles, where nothing is done.
        reason = (
            f"{growth.after} workers handle {two_digits(newest.commits)} records/s and {growth.before} handled "
            f"{two_digits(growth.commits)}: something that they depend on is the limit, and more of them do not help"
        )
        bound = Bound(count=back, until=round(self.now + HOUR_S, 1))
        return self.step(back, limits.DOWNSTREAM, reason, bound=bound), trail

    def settled(self, trail: Trail) -> bool:
        """True if all workers have been in one generation for a while, and were measured there.

        The generation of the last step's rebalance, or a later one. A look between the two rebalances of a cooperative
        assignor sees a Stable group with the new members, which seems to have been Stable since before the step.
        """
        observed, since = self.facts.observed, self.facts.stable_since
        if observed is None or since is None or not self.complete:
            return False
        if any(since < at for at in self.steps):
            return False
        return trail.newest is not None and observed.observed_at - since >= SETTLED_S + SETTLE_S

    @property
    def complete(self) -> bool:
        """True if the workers of the last step are there."""
        facts = self.facts
        there = facts.found == facts.current and facts.ready >= facts.current
        return there and len(facts.members) >= facts.current

    def grow(self, load: Load, trail: Trail, fast: int, steady: int) -> ScaleDecision:
        """Grow to what both windows ask for, once that has stopped rising: one step later saves several now."""
        facts, observed = self.facts, self.facts.observed
        assert observed is not None, "an observed load"
        target, text = min(fast, steady), describe(load)
        bound = facts.memory.bound_at(self.now)
        if bound is not None and target > bound:
            target = max(bound, facts.current)
            if target == facts.current:
                return self.stay(limits.DOWNSTREAM, f"more workers did not help before: {text}")
        if not (self.complete or facts.rolling) or observed.state != STABLE:
            return self.stay(limits.STARTING, f"{facts.ready} of {facts.current} workers are ready: {text}")
        first = not facts.memory.steps and facts.memory.growth is None
        settled = first or facts.rolling or self.settled(trail)
        if span(observed.samples) < RISING_S or not settled:
            return self.stay(limits.SETTLING, f"more workers are wanted, and what there is has to settle: {text}")
        assert trail.exceeded_since is not None, "the load exceeds the fleet"
        rises = trail.still_rises or fast > steady
        if rises and self.now - trail.exceeded_since < RISING_S:
            return self.stay(limits.SETTLING, f"the rate is still rising: {text}")
        if self.budget_spent and not self.overdue(load, trail):
            return self.stay(limits.REBALANCE_BUDGET, f"{len(self.steps)} steps within an hour: {text}")
        commits = sum(load.slow.commits.values()) if trail.newest is None else trail.newest.commits
        growth = Growth(before=facts.current, after=target, commits=commits, at=round(self.now, 1))
        return self.step(target, self.bound_of(load, target), text, growth=growth)

    def grow_in_rollout(self, load: Load, trail: Trail, numbers: tuple[int, int] | None) -> ScaleDecision:
        """Grow while workers of a revision are on their way, for a lag that has grown for a while: they may wait for
        nodes or images without end. Nothing else changes, as a revision is good once all its workers are ready."""
        since, step = trail.exceeded_since, self.facts.memory.growth
        recent = step is not None and 0.0 <= self.now - step.at < RISING_S + SETTLE_S
        if numbers is None or since is None or self.now - since < RISING_S or recent or not load.lag_grows:
            return self.stay(limits.ROLLOUT, ROLLING_TEXT)
        return self.grow(load, trail, *numbers)

    def probe(self, load: Load, trail: Trail) -> ScaleDecision:
        """One useful step up without knowledge of a worker's capacity, which a backlog normally teaches within one
        window: here nothing was committed for so long."""
        facts, text = self.facts, "a worker's capacity is not known yet"
        above = min(load.counts.above(facts.current), load.most)
        waits = trail.known_since is not None and self.now - trail.known_since >= RISING_S + SETTLE_S
        if facts.memory.probed or above <= facts.current or not waits:
            return self.stay(limits.LEARNING, f"{text}, and {load.total_lag} records wait")
        if not self.settled(trail) or self.budget_spent:
            return self.stay(limits.LEARNING, f"{text}, and {load.total_lag} records wait")
        return self.step(above, limits.LEARNING, f"{text}: one more step shows it", probed=True)

    def shrink(self, load: Load, trail: Trail) -> ScaleDecision:
        facts, text = self.facts, describe(load)
        limit = self.bound_of(load, facts.current)
        peak = trail.peak
        assert peak is not None, "the present load is in the window"
        target = max(self.least, peak)
        if target >= facts.current:
            return self.stay(limit, text)
        fewer = self.calm_count(load)
        if not load.idle and load.calm is None:
            return self.stay(limits.LEARNING, f"a worker's capacity is not known yet: {text}")
        window_s = max(float(facts.spec.scale_down_stabilization_seconds), RISING_S)
        since = trail.idle_since if target == 0 else trail.known_since
        left = window_s - (self.now - since) if since is not None else window_s
        if left > 0.0:
            reason = f"{fewer} workers are enough, and have to be for {window_s:.0f} s: {text}"
            return self.stay(limits.COOLDOWN, reason)
        assert trail.falling_since is not None, "fewer were wanted all the time"
        if target > max(fewer, self.least) and self.now - trail.falling_since < window_s:
            # One step instead of several on the way down, as one number after the other leaves the window.
            return self.stay(limits.COOLDOWN, f"{fewer} workers are enough, and {target} were wanted before: {text}")
        if target == 0 and not load.safe_to_sleep:
            target, limit = 1, limits.OFFSETS_MISSING
            if target >= facts.current:
                return self.stay(limit, f"not every partition has a commit, so one worker stays: {text}")
        if facts.observed is None or facts.observed.state != STABLE:
            return self.stay(limits.STARTING, f"{facts.ready} of {facts.current} workers are ready: {text}")
        if target > 0 and len(self.steps) >= self.shrinks_most:
            reason = f"{fewer} workers are enough, and what is left of maxRebalancesPerHour is kept for growth: {text}"
            return self.stay(limits.COOLDOWN, reason)
        word = limits.SCALED_TO_ZERO if target == 0 else limits.NO_LIMIT
        return self.step(target, word, text)

    @property
    def steps(self) -> tuple[float, ...]:
        return self.facts.memory.steps_within_hour(self.now)

    @property
    def budget_spent(self) -> bool:
        return len(self.steps) >= self.facts.spec.max_rebalances_per_hour

    @property
    def shrinks_most(self) -> int:
        """Steps within an hour up to which a fleet shrinks: a third is kept for growth."""
        most = self.facts.spec.max_rebalances_per_hour
        return max(1, most - -(-most // 3))

    def overdue(self, load: Load, trail: Trail) -> bool:
        """True if growth is due whatever the budget: the lag has grown for minutes, and the last step is as old."""
        since = max(trail.exceeded_since or self.now, *self.steps[-1:])
        return load.lag_grows and self.now - since >= OVERDUE_S

    def bound_of(self, load: Load, count: int) -> str:
        """The rule that keeps a fleet of this size smaller than its load asks for, or larger."""
        demand = load.calm or load.growth
        if demand is None:
            return limits.NO_LIMIT
        short = not load.counts.carries(count, demand.growth)
        if short and count >= load.counts.most:
            return limits.PARTITIONS
        if short and count >= load.most:
            return limits.MAX_REPLICAS
        if demand.stuck:
            return limits.STUCK_PARTITION
        if demand.hot and load.capacity is not None:
            return limits.HOT_PARTITION
        if demand.capped and count >= load.counts.most:
            return limits.PARTITIONS
        carried = max(load.counts.snap(demand.floor), 0 if load.idle else 1)
        return limits.MIN_REPLICAS if carried < count == self.least else limits.NO_LIMIT

    # Forms of a decision.

    @property
    def memory(self) -> SizingState:
        """The memory with what was learnt since."""
        load, facts = self.load, self.facts
        return facts.memory if load is None else facts.memory.with_capacity(load.capacity, facts.revision)

    def inputs(self) -> ScaleInputs:
        load = self.load
        if load is None:
            return ScaleInputs()
        demand = load.shown
        return ScaleInputs(
            arrival=load.arrival,
            capacity=load.capacity,
            raw=demand.wanted if demand is not None else None,
            useful=self.calm_count(load) if demand is not None else None,
        )

    def stay(self, limit: str, reason: str) -> ScaleDecision:
        facts, memory = self.facts, self.memory
        return ScaleDecision(
            replicas=facts.current,
            current=facts.current,
            limit=limit,
            reason=reason,
            inputs=self.inputs(),
            memory=memory if memory.count is not None else replace(memory, count=facts.current),
        )

    def step(
        self,
        count: int,
        limit: str,
        reason: str,
        *,
        growth: Growth | None = None,
        bound: Bound | None = None,
        probed: bool = False,
    ) -> ScaleDecision:
        if growth is None and count > self.facts.current:
            growth = Growth(before=self.facts.current, after=count, commits=0.0, at=round(self.now, 1))
        living = count > 0 and self.facts.current > 0
        memory = self.memory.after_step(count, self.now, living=living, growth=growth, bound=bound, probed=probed)
        return ScaleDecision(
            replicas=count,
            current=self.facts.current,
            limit=limit,
            reason=reason,
            inputs=self.inputs(),
            memory=memory,
        )


def _waits_long(load: Load, facts: ScalingFacts) -> bool:
    """True if more waits than a commit interval explains."""
    waiting = sum(lag for key, lag in load.lags.items() if key not in load.stuck)
    return waiting > sum(load.fast.arrival.values()) * (facts.commit_interval_s + STEADY_S)


def can_judge(growth: Growth, measured: Measurement) -> bool:
    """True if a measurement says something about a growth: its workers are busy, so that the arrival is not what limits
    the rate. What limits them may feed some and starve others, so half of them are enough."""
    return measured.mostly_busy and growth.before > 0 and growth.commits > 0.0


def count_without_effect(growth: Growth, measured: Measurement, load: Load) -> int | None:
    """The number to go back to after a growth without effect: the smallest that handles what was reached. None where
    the growth helped, and where the topics are gone since."""
    counts = load.counts
    if not counts.partitions:
        return None
    expected = growth.commits * (counts.load(growth.before) / counts.load(growth.after) - 1.0)
    if measured.commits - growth.commits >= GAIN_LEAST * expected:
        return None
    enough = counts.snap(measured.commits / load.capacity) if load.capacity else growth.before
    back = max(growth.before, enough)
    return back if back < growth.after else None
