"""The rules of scaling, in order: what holds, what wakes, what grows, what shrinks. Pure.

Two numbers are wanted: the one that carries what arrives, with something for bursts, and the one that works off a
backlog in time. A fleet grows in one step as soon as a worker had more than it can catch up with at the last two
observations, and keeps its size while it drains. It shrinks once fewer workers have been enough for the whole
stabilization window. What is known of a load is the least that it can be: a fleet grows and wakes by it, and shrinks
only while all is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fleet_operator.planning.scaling import brake
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.budget import Budget
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.scaling.facts import RESTING, STABLE, ScalingFacts, span
from fleet_operator.planning.scaling.load import Load, describe, name_partitions, read_load, two_digits
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.state.sizing import LEVEL_YOUNG_S, Bound, Growth, SizingState

SETTLE_S: Final = 10.0
"""Time in one generation, with all workers, before the next step: what each owns is new, and so are its samples."""
LEARN_S: Final = 60.0
"""Time without a known capacity, with records that wait, after which one step up is to show it."""
BELIEF_S: Final = 1800.0
"""Age of a capacity by commits under backlog from which it is tried whether fewer workers are enough: an oversized
fleet has no backlog that would correct it."""
BROKEN_S: Final = 120.0
"""Time without a decision after which nothing is known of what was between: a suspended machine, a slow operator."""
ROLLING_S: Final = 60.0
"""Least interval of growth while workers of a revision are on their way."""
WINDOW_LEAST_S: Final = 60.0
ROLLING_TEXT: Final = "workers of a revision are on their way: their number stays, unless a lag grows"


def decide(facts: ScalingFacts, trail: Trail, now: float) -> tuple[ScaleDecision, Trail]:
    """The decision, and the trail for the next one; `now` in epoch seconds."""
    if trail.decided_at is None:
        if facts.awaits_rates:
            return _Policy(facts, None, trail, now).unknown(), trail
        trail = Trail.of(facts.memory, now)
    elif not 0.0 <= now - trail.decided_at <= BROKEN_S:
        trail = trail.forgotten()
    load, trail = read_load(facts, replace(trail, decided_at=now), now)
    if load is None:
        return _Policy(facts, None, trail, now).unknown(), trail
    trail = _with_want(facts, load, trail, now)
    return _Policy(facts, load, trail, now).choose(), trail


def _with_want(facts: ScalingFacts, load: Load, trail: Trail, now: float) -> Trail:
    """The trail with the number that is enough; while that is unknown, none smaller than the present one is."""
    enough = load.enough()
    if enough is None or not load.every_rate_known:
        return trail.with_want(max(facts.current, 1), now)
    return trail.with_want(enough, now)


@dataclass(frozen=True, slots=True)
class _Policy:
    facts: ScalingFacts
    load: Load | None
    trail: Trail
    now: float

    @property
    def least(self) -> int:
        return self.facts.bounds.least

    def within(self, count: int) -> int:
        """The count within the bounds of the spec; useful or not, a person wanted it."""
        most = self.facts.bounds.most
        return max(count if most is None else min(count, most), self.least)

    def choose(self) -> ScaleDecision:
        load, facts = self.load, self.facts
        assert load is not None, "decided by its load"
        bounded = self.within(facts.current)
        if bounded != facts.current:
            word = limits.MIN_REPLICAS if bounded > facts.current else limits.MAX_REPLICAS
            return self.step(bounded, word, f"spec.scaling bounds the fleet to {bounded} workers")
        if facts.hold is not None:
            return self.stay(facts.hold.reason, facts.hold.message)
        if facts.current == 0:
            return self.wake(load)
        if facts.observed is not None and facts.observed.state not in (STABLE, *RESTING):
            return self.stay(limits.REBALANCING, f"the group is {facts.observed.state}")
        if facts.rolling:
            return self.grow_in_rollout(load)
        verdict = brake.judge(facts, load, self.now) if self.has_brake else None
        if verdict is not None:
            return self.braked(load, verdict)
        if load.behind():
            return self.grow(load)
        if load.capacity is None and load.drains:
            return self.learn(load)
        if load.drains and not self.complete:
            text = f"{facts.ready} of {facts.current} workers are ready: {describe(load)}"
            return self.stay(limits.STARTING, text)
        if not load.complete:
            return self.partly_known()
        return self.shrink(load)

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
        count = max(1, self.least, min(load.wanted() or 0, load.most))
        return self.step(count, limits.NO_LIMIT, f"{load.total_lag} records wait: {describe(load)}")

    def braked(self, load: Load, verdict: brake.Verdict) -> ScaleDecision:
        """Take back growth that did not help; growth that did is judged once."""
        growth, bound = verdict.growth, verdict.bound
        if bound is None:
            decision = self.grow(load) if load.behind() else self.shrink(load)
            return decision if decision.replicas != self.facts.current else self.noted(decision)
        reason = (
            f"{growth.after} workers handle {two_digits(verdict.commits)} records/s and {growth.before} handled "
            f"{two_digits(growth.commits)}: something that they depend on is the limit, and more of them do not help"
        )
        return self.step(self.within(bound.count), limits.DOWNSTREAM, reason, bound=bound)

    def noted(self, decision: ScaleDecision) -> ScaleDecision:
        """The decision with the note that the last growth has been judged, and has helped."""
        assert decision.memory is not None, "a decision by load"
        return replace(decision, memory=replace(decision.memory, growth=None, bound=None))

    def grow(self, load: Load) -> ScaleDecision:
        """Grow to the number that catches up in time; the next useful one at least, since this one does not."""
        facts, text = self.facts, describe(load)
        wanted = load.wanted()
        assert wanted is not None, "workers are behind what they can do"
        target = wanted if wanted > facts.current else load.counts.above(facts.current)
        target = max(facts.current, min(target, load.most))
        if all(load.is_alone(worker) for worker in load.behind()):
            target = facts.current
        bound = self.bound(load)
        if bound is not None and target > bound:
            target = max(bound, facts.current)
            if target == facts.current:
                return self.stay(limits.DOWNSTREAM, f"more workers did not help before: {text}")
        if target == facts.current:
            return self.stay(self.limit_of(load), f"workers are behind and cannot catch up: {text}")
        if not (self.complete or facts.rolling) or facts.observed is None or facts.observed.state != STABLE:
            return self.stay(limits.STARTING, f"{facts.ready} of {facts.current} workers are ready: {text}")
        if not (facts.rolling or self.settled):
            return self.stay(limits.SETTLING, f"more workers are wanted, and what there is has to settle: {text}")
        budget = self.budget
        if not budget.allows_growth(target, is_urgent=load.lag_grows):
            return self.stay(limits.REBALANCE_BUDGET, f"{two_digits(budget.spent)} rebalances within an hour: {text}")
        growth = self.growth_to(target, load)
        short = wanted > target
        return self.step(target, self.limit_at(load, target) if short else limits.NO_LIMIT, text, growth=growth)

    def growth_to(self, target: int, load: Load) -> Growth:
        """The growth to be judged. One on top of another that has not been judged yet counts from before that: the
        rate since then has the rebalance in it."""
        facts, last, at = self.facts, self.facts.memory.growth, round(self.now, 1)
        if last is not None and last.after == facts.current and last.commits > 0.0:
            return replace(last, after=target, at=at)
        commits = round(brake.commits_before(load), 3)
        return Growth(before=facts.current, after=target, commits=commits, at=at)

    def bound(self, load: Load) -> int | None:
        """The number beyond which more workers do not help, unless the limit is gone."""
        kept, count = self.facts.memory.bound, self.facts.memory.bound_at(self.now)
        if not self.has_brake or kept is None or count is None or brake.is_lifted(kept, load):
            return None
        return count

    def grow_in_rollout(self, load: Load) -> ScaleDecision:
        """Grow while workers of a revision are on their way, for a lag that grows: they may wait for nodes or images
        without end. Nothing else changes, as a revision is good once all its workers are ready."""
        step = self.facts.memory.growth
        recent = step is not None and 0.0 <= self.now - step.at < ROLLING_S
        if recent or not load.lag_grows or not load.behind():
            return self.stay(limits.ROLLOUT, ROLLING_TEXT)
        return self.grow(load)

    def learn(self, load: Load) -> ScaleDecision:
        """One useful step up without knowledge of a worker's capacity, which reports or a backlog normally teach within
        two observations: here nothing was completed for so long."""
        facts, text = self.facts, "a worker's capacity is not known yet"
        above = min(load.counts.above(facts.current), load.most)
        waits = self.trail.known_since is not None and self.now - self.trail.known_since >= LEARN_S
        if facts.memory.probed or above <= facts.current or not waits or not self.settled:
            return self.stay(limits.LEARNING, f"{text}, and {load.total_lag} records wait")
        if not self.budget.allows_growth(above):
            return self.stay(limits.LEARNING, f"{text}, and {load.total_lag} records wait")
        return self.step(above, limits.LEARNING, f"{text}: one more step shows it", probed=True)

    def shrink(self, load: Load) -> ScaleDecision:
        facts, text = self.facts, describe(load)
        limit = self.limit_of(load)
        fewer = max(self.least, min(self.trail.levels[0].count, load.most))
        if load.enough() is None:
            return self.stay(limits.LEARNING, f"a worker's capacity is not known yet: {text}")
        if fewer >= facts.current:
            return self.try_fewer(load, limit)
        window_s = max(float(facts.spec.scale_down_stabilization_seconds), WINDOW_LEAST_S)
        target = self.enough_for(window_s)
        if target >= facts.current:
            reason = f"{fewer} workers are enough, and have to be for {window_s:.0f} s: {text}"
            return self.stay(limits.COOLDOWN, reason)
        if target > fewer and not self.has_fallen(window_s):
            return self.stay(limits.COOLDOWN, f"{fewer} workers are enough, and {target} were wanted before: {text}")
        if load.drains:
            return self.stay(limits.COOLDOWN, f"{fewer} workers are enough once the backlog is worked off: {text}")
        if target == 0 and not load.safe_to_sleep:
            target, limit = 1, limits.OFFSETS_MISSING
            if target >= facts.current:
                return self.stay(limit, f"not every partition has a commit, so one worker stays: {text}")
        return self.shrink_to(load, target, limits.SCALED_TO_ZERO if target == 0 else limits.NO_LIMIT, text)

    def shrink_to(self, load: Load, target: int, word: str, text: str) -> ScaleDecision:
        facts = self.facts
        if not self.calm:
            return self.stay(limits.STARTING, f"{facts.ready} of {facts.current} workers are ready: {text}")
        if not self.budget.allows_shrinking(target):
            reason = f"{target} workers are enough, and what is left of maxRebalancesPerHour is kept for growth: {text}"
            return self.stay(limits.COOLDOWN, reason)
        return self.step(target, word, text)

    def has_fallen(self, window_s: float) -> bool:
        """True if the fleet may shrink to a number that is still falling: one step instead of several on the way down,
        as one number after the other leaves the window. A process that has just begun does not know the youngest."""
        known, falling = self.trail.known_since, self.trail.enough_since(self.facts.current - 1)
        if known is None or falling is None:
            return False
        return self.now - falling >= 2.0 * window_s and self.now - known >= LEVEL_YOUNG_S

    def enough_for(self, window_s: float) -> int:
        """The least number that has been enough for the whole window."""
        for level in self.trail.levels:
            if self.now - level.since >= window_s:
                return max(self.least, level.count)
        return self.facts.current

    def try_fewer(self, load: Load, limit: str) -> ScaleDecision:
        """The next smaller number, once, where the capacity is an old belief: a fleet that is too large has no backlog
        that would correct it. A process that has just begun has to watch for as long: it does not know what the one
        before has measured, and workers have not reported yet."""
        facts, text = self.facts, describe(load)
        kept, known_since = facts.memory.capacity, self.trail.known_since
        learnt_at = max(self.now if known_since is None else known_since, self.trail.measured_at)
        old = kept is not None and not self.trail.readings and self.now - max(kept.at, learnt_at) >= BELIEF_S
        fewer = max(load.counts.below(facts.current), self.least, 1)
        if not old or facts.memory.probed or load.drains or fewer >= facts.current or not load.every_rate_known:
            return self.stay(limit, text)
        reason = f"a worker's capacity was last measured long ago, and fewer of them show it: {text}"
        if not self.calm or not self.budget.allows_shrinking(fewer):
            return self.stay(limit, text)
        return self.step(fewer, limits.LEARNING, reason, probed=True)

    @property
    def has_brake(self) -> bool:
        return self.facts.spec.downstream_brake == "Enabled"

    @property
    def budget(self) -> Budget:
        return Budget(self.facts, self.load.dealing if self.load is not None else None, self.now)

    # What a fleet is.

    @property
    def complete(self) -> bool:
        """True if the workers of the last step are there."""
        facts = self.facts
        there = facts.found == facts.current and facts.ready >= facts.current
        return there and len(facts.members) >= facts.current

    @property
    def calm(self) -> bool:
        """True if the group has been in one generation for a while, be all workers of the last step there or not."""
        observed, since = self.facts.observed, self.facts.stable_since
        return observed is not None and since is not None and observed.observed_at - since >= SETTLE_S

    @property
    def settled(self) -> bool:
        """True if all workers have been in one generation for a while: that of the last step's rebalance, or a later
        one. An observation between the two rebalances of a cooperative assignor shows a Stable group with the new
        members, which seems to have been Stable since before the step."""
        facts, observed, since = self.facts, self.facts.observed, self.facts.stable_since
        if observed is None or since is None or not self.complete or span(observed.samples) < SETTLE_S:
            return False
        return self.calm and all(since >= step.at for step in facts.memory.steps_within_hour(self.now))

    def limit_of(self, load: Load) -> str:
        """The rule that keeps the fleet smaller than its load asks for, or larger."""
        facts = self.facts
        behind = load.behind()
        if behind:
            return self.limit_at(load, facts.current)
        if load.stuck:
            return limits.STUCK_PARTITION
        if load.hot:
            return limits.HOT_PARTITION
        enough = self.trail.levels[0].count if self.trail.levels else facts.current
        return limits.MIN_REPLICAS if enough < facts.current == self.least else limits.NO_LIMIT

    def limit_at(self, load: Load, count: int) -> str:
        """The rule that keeps a fleet of this number from one that catches up."""
        behind = load.behind()
        if behind and 2 * len(behind) <= len(load.dealing.owned) and all(map(load.is_alone, behind)):
            return limits.HOT_PARTITION
        if count >= load.counts.most:
            return limits.PARTITIONS
        return limits.MAX_REPLICAS if count >= load.most else limits.LAGGING

    # Forms of a decision.

    @property
    def memory(self) -> SizingState:
        """The memory with what was learnt since."""
        load, facts, memory = self.load, self.facts, self.facts.memory
        if load is None:  # a process that has just begun knows no rates yet, and forgets nothing for that
            return memory if facts.awaits_rates else memory.with_levels((), self.now)
        memory = memory.with_capacity(self.trail.capacity(self.now), facts.revision, self.now)
        if memory.bound is not None and brake.is_lifted(memory.bound, load):
            memory = replace(memory, bound=None)
        smaller = [level for level in self.trail.levels if max(level.count, self.least) < facts.current]
        return memory.with_levels(smaller, self.now)

    def inputs(self) -> ScaleInputs:
        load = self.load
        if load is None:
            return ScaleInputs()
        known = load.workers is not None
        return ScaleInputs(
            arrival=load.arrival,
            capacity=load.capacity,
            raw=load.workers,
            useful=max(self.least, min(load.enough() or 0, load.most)) if known else None,
        )

    def stay(self, limit: str, reason: str) -> ScaleDecision:
        count, memory = self.facts.current, self.memory
        return self._decided(count, limit, reason, memory if memory.count is not None else replace(memory, count=count))

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
        cost = self.budget.cost_of(count)
        memory = self.memory.after_step(count, self.now, cost=cost, growth=growth, bound=bound, probed=probed)
        return self._decided(count, limit, reason, memory)

    def _decided(self, count: int, limit: str, reason: str, memory: SizingState) -> ScaleDecision:
        return ScaleDecision(
            replicas=count,
            current=self.facts.current,
            limit=limit,
            reason=self.facts.bounds.explain(limit, reason),
            inputs=self.inputs(),
            memory=memory,
        )
