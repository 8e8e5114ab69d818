"""Scaling of the main workers: facts of the decision, what holds it, and decisions between reconciles.

Those are made at each observation, so that a reconcile follows only a new one: rates need every sample, and a full
reconcile for each would be most of the operator's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.fleet import rollout
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import RolloutFacts
from fleet_operator.planning.lag import GroupLag
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry.topics import GroupView
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.decision import ScaleDecision, decide_fixed, decide_stopped, fixed_count, is_kept
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.policy import ROLLING_TEXT, decide
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.status.members import Roster, sort_members
from fleet_operator.planning.status.scaling import entry_of, is_moved
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.runtime.cache import Key

ROLLING: Final = frozenset({RolloutPhase.APPLYING, RolloutPhase.WAITING})
"""Phases in which workers of a revision are on their way: it is good once all of them are ready, and a fleet whose size
changes all the time never gets there. A check is one pod next to the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The decision's surroundings, apart from what was gathered.

    `view` is the Kafka side that actions rest on, `shown` the one in which a failed observation or two do not show.
    `resetting`: offsets are being reset. `breaker_open` is None while unknown, which matters where the policy's breaker
    `may_pause`.
    """

    view: GroupView
    shown: GroupView
    resetting: bool = False
    breaker_open: bool | None = False
    may_pause: bool = False

    @property
    def doubted(self) -> bool:
        """True if the load is unknown for a moment only."""
        lag, shown = self.view.lag, self.shown.lag
        return (lag is None or not lag.complete) and shown is not None and shown.complete


@dataclass(frozen=True, slots=True)
class ScalingBefore:
    """The trail and the decision of the plan before."""

    trail: Trail
    decision: ScaleDecision | None


@dataclass(frozen=True, slots=True)
class Scaled:
    """The decision, the rollout at its number of workers, and what the next decisions rest on."""

    decision: ScaleDecision
    rollout: RolloutDecision
    facts: ScalingFacts | None
    trail: Trail


def count_before(gathered: Gathered, *, resetting: bool) -> int:
    """The number of workers before anything is decided about it."""
    group = gathered.group
    if decide_stopped(group, stopped=gathered.stopped, resetting=resetting) is not None:
        return 0
    return current_count(gathered)


def scale_fleet(
    gathered: Gathered, around: Surroundings, at_before: RolloutFacts, before: ScalingBefore, now: float
) -> Scaled:
    """Decide the number of workers, and the rollout with it; `at_before` has the number before."""
    group, at_present = gathered.group, rollout.decide(at_before, now)
    scaling = group.spec.scaling
    memory = gathered.state.sizing
    kept = memory if memory.count is not None else None
    stopped = decide_stopped(group, stopped=gathered.stopped, resetting=around.resetting, memory=kept)
    if stopped is not None:
        return Scaled(stopped, at_present, None, before.trail.forgotten())
    if scaling is None:
        fixed = decide_fixed(group, around.shown.partition_counts, found=_found(gathered), memory=memory, now=now)
        return Scaled(fixed, at_present, None, before.trail)
    facts = scaling_facts(gathered, around, at_present.phase)
    last = before.decision
    if last is not None and last.inputs is not None and (around.doubted or facts.awaits_rates):
        decision = replace(last, replicas=facts.current, memory=facts.memory)
        # Rates are awaited after a gap, too, and nothing that was wanted before it proves anything now.
        trail = before.trail if around.doubted else before.trail.forgotten()
    else:
        decision, trail = decide_load(facts, before.trail, now)
    decision = replace(decision, memory=_noted(group, memory, decision))
    if decision.replicas != at_before.wanted_replicas:
        at_present = rollout.decide(replace(at_before, wanted_replicas=decision.replicas), now)
    return Scaled(decision, at_present, facts, trail)


def decide_load(facts: ScalingFacts, trail: Trail, now: float) -> tuple[ScaleDecision, Trail]:
    """The decision by load; that of a dry run proposes, and changes nothing."""
    decision, trail = decide(facts, trail, now)
    if facts.spec.dry_run:
        decision = replace(decision, replicas=facts.current, proposed=decision.replicas)
    return decision, trail


def _noted(group: ConsumerGroup, before: SizingState, decision: ScaleDecision) -> SizingState | None:
    """The part of a decision that is remembered; a dry run changes nothing but the capacity."""
    noted = decision.memory or before
    if group.spec.scaling is not None and group.spec.scaling.dry_run:
        kept = before if is_kept(group, before) else SizingState()
        if kept.count is None and noted.capacity is None:
            return None
        noted = replace(kept, capacity=noted.capacity)
    return replace(noted, replicas=group.spec.replicas)


def scaling_facts(gathered: Gathered, around: Surroundings, phase: RolloutPhase) -> ScalingFacts:
    """The facts for a fleet with `spec.scaling`; `phase` is that of the rollout at the present number of workers."""
    group, main = gathered.group, gathered.parts[MAIN]
    assert group.spec.scaling is not None, "a fleet that is scaled"
    view = around.view
    observed = view.observed
    roster = None
    if observed is not None:
        roster = sort_members(group, observed.members, gathered.worker_reports, main.workers)
    hold = _find_hold(roster, around)
    if phase is RolloutPhase.APPLYING or (phase in ROLLING and hold is not None and hold.reason == limits.UNKNOWN):
        hold = Problem(limits.ROLLOUT, ROLLING_TEXT)
    return ScalingFacts(
        spec=group.spec.scaling,
        current=current_count(gathered),
        found=_found(gathered),
        ready=sum(pod.ready and not pod.deleting for pod in main.workers),
        commit_interval_s=float(group.spec.consumer.commit_interval_seconds),
        from_start=group.spec.consumer.auto_offset_reset == "Earliest",
        assignor=(observed.assignor if observed is not None else "") or group.spec.consumer.classic.assignors[0],
        partition_counts=view.known_counts or None,
        observed=observed,
        lag=view.lag,
        members=roster.ours if roster is not None else (),
        hold=hold,
        rolling=phase is RolloutPhase.WAITING,
        revision=main.fleet.revision if main.fleet is not None and phase not in ROLLING else None,
        reported_stuck=frozenset(
            (stuck.topic, stuck.partition) for worker in gathered.worker_reports for stuck in worker.stuck
        ),
        memory=gathered.state.sizing,
    )


def _found(gathered: Gathered) -> int | None:
    """The StatefulSet's number of workers; None without one."""
    fleet = gathered.parts[MAIN].fleet
    return fleet.replicas if fleet is not None else None


def current_count(gathered: Gathered) -> int:
    """The number that was decided last; to begin with the one that is found, or `spec.replicas`.

    A dry run decides for the fleet that there is.
    """
    spec, memory = gathered.group.spec, gathered.state.sizing
    if spec.scaling is None or spec.scaling.dry_run:
        return fixed_count(gathered.group, memory)
    return memory.count if memory.count is not None else _found(gathered) or spec.replicas


def _find_hold(roster: Roster | None, around: Surroundings) -> Problem | None:
    """The reason why nothing may be decided, with a limit's word."""
    if around.breaker_open:
        return Problem(limits.BREAKER_OPEN, "a breaker is open, so that lag says nothing about load")
    if around.breaker_open is None and around.may_pause:
        message = "the state of the workers' breakers is unknown: the operator has to reach their status pages"
        return Problem(limits.UNKNOWN, message)
    if roster is not None and roster.foreign:
        named = name_some([member.instance_id or member.client_id or member.member_id for member in roster.foreign])
        message = f"members of other programs are in the Kafka group, and what they can do is unknown: {named}"
        return Problem(limits.GROUP_SHARED, message)
    return None


@dataclass(slots=True)
class _Followed:
    """The last reconcile's facts and decision, the entry in the status, and the trail up to now."""

    facts: ScalingFacts
    decision: ScaleDecision
    newest: ScaleDecision
    shown: Mapping[str, Any]
    trail: Trail


@dataclass(slots=True)
class ScalingWatch:
    """All scaled groups that were observed when they were reconciled last. Used on the event loop only."""

    clock: Clock
    _followed: dict[Key, _Followed] = field(default_factory=dict)

    def follow(
        self, key: Key, facts: ScalingFacts | None, decision: ScaleDecision, trail: Trail, shown: Mapping[str, Any]
    ) -> None:
        """Take in a reconcile's decision; `facts` are None for a fleet that is not scaled now."""
        if facts is None:
            self._followed.pop(key, None)
        else:
            self._followed[key] = _Followed(facts, decision, decision, shown, trail)

    def forget(self, key: Key) -> None:
        self._followed.pop(key, None)

    def trail(self, key: Key) -> Trail | None:
        """The trail of a group that is followed."""
        found = self._followed.get(key)
        return found.trail if found is not None else None

    def newest(self, key: Key) -> ScaleDecision | None:
        """The decision on the newest observation, which a reconcile may still have to carry out."""
        found = self._followed.get(key)
        return found.newest if found is not None else None

    def has_news(self, key: Key, observed: GroupObservation, lag: GroupLag) -> bool:
        """Decide on an observation in which no more than offsets has changed; True if the group has to be
        reconciled."""
        found = self._followed.get(key)
        if found is None:
            return False
        facts = replace(found.facts, observed=observed, lag=lag)
        if facts.awaits_rates:
            found.trail = found.trail.forgotten()
            return False
        decision, found.trail = decide_load(facts, found.trail, self.clock.wall())
        found.newest = decision
        before = found.decision
        if (decision.replicas, decision.limit) != (before.replicas, before.limit):
            return True
        noted, learnt = before.memory, decision.memory.capacity if decision.memory is not None else None
        if noted and learnt and noted.with_capacity(learnt.rate, learnt.revision) != noted:
            return True
        return decision.inputs is not None and is_moved(found.shown, entry_of(decision))
