"""The rules of scaling, in order: hold, wake, grow, shrink. Pure.

Two numbers of workers are computed. The first is enough for the arriving records, with a reserve for bursts. The second
also processes the backlog in time. A fleet grows in one step when, in each of the last two
observations, the same worker had more work than it could catch up with. The fleet keeps its size while it drains its
backlog. It shrinks when fewer workers have been enough for the whole stabilization window.

A partly known load is a lower bound. Such a load may make a fleet grow or start from zero, but a fleet shrinks only
while the whole load is known.
"""

from dataclasses import dataclass, replace
from typing import Final

from fleet_operator.planning.scaling import brake
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.budget import Budget
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.scaling.facts import RESTING, STABLE, ScalingFacts, span
from fleet_operator.planning.scaling.history import ScalingHistory
from fleet_operator.planning.scaling.load import Load, describe, name_partitions, read_load, two_digits
from fleet_operator.planning.state.sizing import LEVEL_YOUNG_S, Bound, Growth, SizingState

SETTLE_S: Final = 10.0
"""Seconds for which all workers must be in one group generation before the next scaling step. In this time, offsets
are observed with the new owners of the partitions."""
LEARN_S: Final = 60.0
"""If records wait and a worker's capacity is still unknown after this many seconds, the fleet grows by one step to
measure the capacity."""
CAPACITY_MAX_AGE_S: Final = 1800.0
"""Seconds after which a capacity measured by commits under backlog is outdated. The fleet then tries fewer workers,
because an oversized fleet has no backlog and so cannot measure its capacity."""
BROKEN_S: Final = 120.0
"""If no decision was made for this many seconds, for example on a suspended machine, the load in this time counts as
unknown."""
ROLLING_S: Final = 60.0
"""Minimum seconds between two scale-ups during a rollout."""
WINDOW_LEAST_S: Final = 60.0
ROLLING_TEXT: Final = "a rollout is in progress: the number of workers stays, unless the lag grows"


def decide(facts: ScalingFacts, history: ScalingHistory, now: float) -> tuple[ScaleDecision, ScalingHistory]:
    if history.decided_at is None:
        if facts.awaits_rates:
            return _Policy(facts, None, history, now).unknown(), history
        history = ScalingHistory.restored(facts.memory, now)
    elif not 0.0 <= now - history.decided_at <= BROKEN_S:
        history = history.after_gap()
    load, history = read_load(facts, replace(history, decided_at=now), now)
    if load is None:
        return _Policy(facts, None, history, now).unknown(), history
    # While it is unknown how many workers are enough, the present number counts as enough.
    enough = load.enough() if load.every_rate_known else None
    history = history.with_want(max(facts.current, 1) if enough is None else enough, now)
    return _Policy(facts, load, history, now).choose(), history


@dataclass(frozen=True, slots=True)
class _Policy:
    facts: ScalingFacts
    load: Load | None
    history: ScalingHistory
    now: float

    @property
    def least(self) -> int:
        return self.facts.bounds.least

    def within(self, count: int) -> int:
        """Limit the count to the bounds of the spec, even if the result is not a useful count: a user chose these
        bounds."""
        most = self.facts.bounds.most
        return max(count if most is None else min(count, most), self.least)

    def choose(self) -> ScaleDecision:
        load, facts = self.load, self.facts
        assert load is not None, "only called with a known load"
        bounded = self.within(facts.current)
        if bounded != facts.current:
            word = limits.MIN_REPLICAS if bounded > facts.current else limits.MAX_REPLICAS
            return self.step(bounded, word, f"spec.scaling limits the fleet to {bounded} workers")
        if facts.hold is not None:
            if facts.current == 0 and facts.hold.reason == limits.UNKNOWN and (load.total_lag or load.unsettled):
                reason = f"{load.total_lag} records wait, and no worker runs: {facts.hold.message}"
                return self.step(max(1, self.least), limits.UNKNOWN, reason)
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
            return self.stay(limits.STARTING, f"{facts.ready} of {facts.current} workers are ready: {describe(load)}")
        if not load.complete:
            return self.partly_known()
        return self.shrink(load)

    def unknown(self) -> ScaleDecision:
        """Decide while the load is unknown: keep the number of workers, within the bounds."""
        count = self.within(self.facts.current)
        reason = "lag or rates are unknown: the number of workers stays as it is"
        if count != self.facts.current:
            return self.step(count, limits.UNKNOWN, reason)
        return self.stay(limits.UNKNOWN, reason)

    def partly_known(self) -> ScaleDecision:
        """Decide while some of the load is unknown and the known part needs no more workers."""
        assert self.facts.lag is not None, "a load is read only from an observed lag"
        unknown = sorted(key for key, lag in self.facts.lag.partitions.items() if lag is None)
        hanging = list(self.facts.observed.hanging) if self.facts.observed is not None else []
        named = f"the lag of {name_partitions(unknown)}" if unknown else "a topic"
        if hanging and not unknown:
            named = f"the lag behind an open transaction in {name_partitions(hanging)}"
        return self.stay(limits.UNKNOWN, f"{named} is unknown: the fleet may grow, but does not shrink")

    def wake(self, load: Load) -> ScaleDecision:
        if not load.total_lag and load.unsettled:
            named = name_partitions(sorted(load.unsettled))
            reason = (
                f"only a worker can determine the start offset in {named}; until then, the lag there may be unknown"
            )
            return self.step(max(1, self.least), limits.OFFSETS_MISSING, reason)
        if not load.total_lag and not load.complete:
            return self.partly_known()
        if not load.total_lag:
            return self.stay(limits.SCALED_TO_ZERO, "no record waits and none arrives")
        count = max(1, self.least, min(load.wanted() or 0, load.most))
        return self.step(count, limits.NO_LIMIT, f"{load.total_lag} records wait: {describe(load)}")

    def braked(self, load: Load, verdict: brake.Verdict) -> ScaleDecision:
        """Undo a scale-up that did not help. A scale-up that helped is not judged again."""
        growth, bound = verdict.growth, verdict.bound
        if bound is None:
            decision = self.grow(load) if load.behind() else self.shrink(load)
            if decision.replicas != self.facts.current or decision.memory is None:
                return decision
            return replace(decision, memory=replace(decision.memory, growth=None, bound=None))
        reason = (
            f"{growth.after} workers handle {two_digits(verdict.commits)} records/s and {growth.before} handled "
            f"{two_digits(growth.commits)}: a system that the workers depend on is the limit, so more "
            "workers do not help"
        )
        return self.step(self.within(bound.count), limits.DOWNSTREAM, reason, bound=bound)

    def grow(self, load: Load) -> ScaleDecision:
        """Grow to the number of workers that catches up in time, but at least to the next useful number of workers."""
        facts, text = self.facts, describe(load)
        wanted = load.wanted()
        assert wanted is not None, "workers are behind, so their capacity is known"
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
            return self.stay(limits.SETTLING, f"more workers are wanted once the present ones have settled: {text}")
        budget = self.budget
        if not budget.allows_growth(target, is_urgent=load.lag_grows):
            return self.stay(limits.REBALANCE_BUDGET, f"{two_digits(budget.spent)} rebalances within an hour: {text}")
        growth = self.growth_to(target, load)
        short = wanted > target
        return self.step(target, self.limit_at(load, target) if short else limits.NO_LIMIT, text, growth=growth)

    def growth_to(self, target: int, load: Load) -> Growth:
        """Return the scale-up whose effect will be measured.

        If the effect of the previous scale-up has not been measured yet, both scale-ups are measured as one. They are
        then compared with the rate before the previous scale-up, because later rates include a rebalance."""
        facts, last, at = self.facts, self.facts.memory.growth, round(self.now, 1)
        if last is not None and last.after == facts.current and last.commits > 0.0:
            return replace(last, after=target, at=at)
        commits = round(brake.commits_before(load), 3)
        return Growth(before=facts.current, after=target, commits=commits, at=at)

    def bound(self, load: Load) -> int | None:
        """Return the number of workers above which more workers do not help. None if no such bound is known, if the
        bound was lifted, or if `downstreamBrake` is not Enabled."""
        kept, count = self.facts.memory.bound, self.facts.memory.bound_at(self.now)
        if not self.has_brake or kept is None or count is None or brake.is_lifted(kept, load):
            return None
        return count

    def grow_in_rollout(self, load: Load) -> ScaleDecision:
        """Grow during a rollout if the lag grows, because a rollout may wait indefinitely for nodes or images.
        Otherwise keep the number of workers, because a revision becomes good only when all its workers are ready."""
        step = self.facts.memory.growth
        recent = step is not None and 0.0 <= self.now - step.at < ROLLING_S
        if recent or not load.lag_grows or not load.behind():
            return self.stay(limits.ROLLOUT, ROLLING_TEXT)
        return self.grow(load)

    def learn(self, load: Load) -> ScaleDecision:
        """Grow to the next useful number while a worker's capacity is unknown.

        Normally, the capacity is known after two observations of the workers' reports or of a backlog. This rule is for
        a fleet whose capacity is still unknown after `LEARN_S` seconds."""
        facts, text = self.facts, "a worker's capacity is not known yet"
        above = min(load.counts.above(facts.current), load.most)
        waits = self.history.known_since is not None and self.now - self.history.known_since >= LEARN_S
        unwanted = facts.memory.probed or above <= facts.current or not waits or not self.settled
        if unwanted or not self.budget.allows_growth(above):
            return self.stay(limits.LEARNING, f"{text}, and {load.total_lag} records wait")
        return self.step(above, limits.LEARNING, f"{text}: the fleet grows by one step to measure it", probed=True)

    def shrink(self, load: Load) -> ScaleDecision:
        facts, text = self.facts, describe(load)
        fewer = max(self.least, min(self.history.levels[0].count, load.most))
        if load.enough() is None:
            return self.stay(limits.LEARNING, f"a worker's capacity is not known yet: {text}")
        if fewer >= facts.current:
            return self.try_fewer(load)
        window_s = max(float(facts.spec.scale_down_stabilization_seconds), WINDOW_LEAST_S)
        # The smallest number of workers that has been enough for the whole window.
        enough = (level.count for level in self.history.levels if self.now - level.since >= window_s)
        target = max(self.least, next(enough, facts.current))
        if target >= facts.current:
            reason = f"{fewer} workers are enough, but must stay enough for {window_s:.0f} s: {text}"
            return self.stay(limits.COOLDOWN, reason)
        if target > fewer and not self.has_fallen(window_s):
            return self.stay(limits.COOLDOWN, f"{fewer} workers are enough, and {target} were wanted before: {text}")
        if load.drains:
            return self.stay(limits.COOLDOWN, f"{fewer} workers are enough once the backlog is worked off: {text}")
        if target == 0 and load.unsettled:
            target = 1
            if target >= facts.current:
                reason = f"not every partition has a commit, so one worker stays: {text}"
                return self.stay(limits.OFFSETS_MISSING, reason)
        if not self.calm:
            return self.stay(limits.STARTING, f"{facts.ready} of {facts.current} workers are ready: {text}")
        if not self.budget.allows_shrinking(target):
            reason = f"{target} workers are enough, but the rest of maxRebalancesPerHour is kept for growth: {text}"
            return self.stay(limits.COOLDOWN, reason)
        return self.step(target, limits.SCALED_TO_ZERO if target == 0 else limits.NO_LIMIT, text)

    def has_fallen(self, window_s: float) -> bool:
        """True if the fleet may shrink although the number of workers that is enough still falls.

        Normally, the fleet waits until this number stops falling, and then shrinks in one step. It waits for at most
        two stabilization windows. A new operator process also waits for `LEVEL_YOUNG_S`, because it does not know the
        numbers that were enough most recently."""
        known, falling = self.history.known_since, self.history.enough_since(self.facts.current - 1)
        if known is None or falling is None:
            return False
        return self.now - falling >= 2.0 * window_s and self.now - known >= LEVEL_YOUNG_S

    def try_fewer(self, load: Load) -> ScaleDecision:
        """Try the next smaller useful number of workers once if the capacity was last measured `CAPACITY_MAX_AGE_S` or
        longer ago. An oversized fleet has no backlog, so its capacity would not be measured otherwise. A new operator
        process first waits for `CAPACITY_MAX_AGE_S`: it does not know the previous process's measurements, and has no
        workers' reports yet."""
        facts, text = self.facts, describe(load)
        kept, known_since = facts.memory.capacity, self.history.known_since
        learnt_at = max(self.now if known_since is None else known_since, self.history.measured_at)
        old = (
            kept is not None
            and not self.history.busy_samples
            and self.now - max(kept.at, learnt_at) >= CAPACITY_MAX_AGE_S
        )
        fewer = max(load.counts.below(facts.current), self.least, 1)
        unwanted = facts.memory.probed or load.drains or fewer >= facts.current or not load.every_rate_known
        if not old or unwanted or not self.calm or not self.budget.allows_shrinking(fewer):
            return self.stay(self.limit_of(load), text)
        reason = f"a worker's capacity was measured long ago, so fewer workers are tried to measure it again: {text}"
        return self.step(fewer, limits.LEARNING, reason, probed=True)

    @property
    def has_brake(self) -> bool:
        return self.facts.spec.downstream_brake == "Enabled"

    @property
    def budget(self) -> Budget:
        return Budget(self.facts, self.load.dealing if self.load is not None else None, self.now)

    # State of the fleet.

    @property
    def complete(self) -> bool:
        """True if the StatefulSet has the decided number of workers, and all of them are ready and have joined the
        group."""
        facts = self.facts
        there = facts.found == facts.current and facts.ready >= facts.current
        return there and len(facts.members) >= facts.current

    @property
    def calm(self) -> bool:
        """True if the group has been in one generation for `SETTLE_S` seconds, even if some workers have not joined
        yet."""
        observed, since = self.facts.observed, self.facts.stable_since
        return observed is not None and since is not None and observed.observed_at - since >= SETTLE_S

    @property
    def settled(self) -> bool:
        """True if all workers have been in one generation for `SETTLE_S` seconds, and this generation began after the
        last scaling step.

        `calm` alone is not enough, because a cooperative assignor needs two rebalances. An observation between the two
        shows a Stable group with the new members, and this looks the same as a group that has settled."""
        observed, since = self.facts.observed, self.facts.stable_since
        if observed is None or since is None or not self.complete or span(observed.samples) < SETTLE_S:
            return False
        return self.calm and all(since >= step.at for step in self.facts.memory.steps_within_hour(self.now))

    def limit_of(self, load: Load) -> str:
        """Return the rule (a limit of `decision`) that keeps the fleet smaller or larger than its load requires."""
        if load.behind():
            return self.limit_at(load, self.facts.current)
        if load.stuck:
            return limits.STUCK_PARTITION
        if load.hot:
            return limits.HOT_PARTITION
        bounded = self.history.levels[0].count < self.facts.current == self.least
        return limits.MIN_REPLICAS if bounded else limits.NO_LIMIT

    def limit_at(self, load: Load, count: int) -> str:
        """Return the rule that limits a fleet to `count` workers, although this number is too small to catch up."""
        behind = load.behind()
        if behind and 2 * len(behind) <= len(load.dealing.owned) and all(map(load.is_alone, behind)):
            return limits.HOT_PARTITION
        if count >= load.counts.most:
            return limits.PARTITIONS
        return limits.MAX_REPLICAS if count >= load.most else limits.LAGGING

    # Construction of the decision.

    @property
    def memory(self) -> SizingState:
        """The state to store, with the capacity, bound and levels of this decision."""
        load, facts, memory = self.load, self.facts, self.facts.memory
        if load is None:  # a new process keeps the levels until it knows rates
            return memory if facts.awaits_rates else memory.with_levels((), self.now)
        memory = memory.with_capacity(self.history.capacity(self.now), facts.revision, self.now)
        if memory.bound is not None and brake.is_lifted(memory.bound, load):
            memory = replace(memory, bound=None)
        smaller = [level for level in self.history.levels if max(level.count, self.least) < facts.current]
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
        memory = self.memory.after_step(count, self.now, cost=cost)
        memory = replace(memory, growth=growth, bound=bound or memory.bound, probed=probed)
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
