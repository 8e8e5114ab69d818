"""The concern of sizing: the number of main workers, in a reconcile and at each observation between two of them. Pure.

Rates need every sample, and a full reconcile for each would be most of the operator's work: one follows only when the
decision between reconciles is a new one.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.fleet import rollout
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import RolloutFacts
from fleet_operator.planning.lag import GroupLag
from fleet_operator.planning.observation import GroupObservation, WorkerObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.decision import (
    ScaleDecision,
    as_asked,
    asked_count,
    decide_fixed,
    decide_stopped,
    kept_count,
)
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.policy import ROLLING_TEXT, decide
from fleet_operator.planning.scaling.schedules import bounds_at
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.status.members import Roster, sort_members
from fleet_operator.planning.status.scaling import entry_of, is_moved
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.retries import breaker_open
from fleet_operator.reconcilers.consumergroup.session import GroupSession, Memory
from fleet_operator.reconcilers.consumergroup.views import Views

ROLLING: Final = frozenset({RolloutPhase.APPLYING, RolloutPhase.WAITING})
"""Phases in which workers of a revision are on their way: it is good once all of them are ready, and a fleet whose size
changes all the time never gets there. A check is one pod next to the fleet."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The decision, what it was made from (None for a fleet of a fixed size), and the trail that it leaves."""

    decision: ScaleDecision
    facts: ScalingFacts | None
    trail: Trail


def count_before(gathered: Gathered) -> int:
    """The number of workers before anything is decided about it."""
    if decide_stopped(gathered.group, stopped=gathered.stopped, resetting=gathered.hold is not None) is not None:
        return 0
    return current_count(gathered)


def decide_sizing(gathered: Gathered, views: Views, rolled: RolloutFacts, memory: Memory, now: float) -> Sizing:
    """Decide the number of main workers.

    `rolled` are the facts of the rollout at the number before, whose phase may hold the fleet at it.
    """
    group, state, trail = gathered.group, gathered.state.sizing, memory.trail
    asked = asked_count(group, state, _found(gathered))
    kept = replace(state, replicas=asked) if _is_sized(group) else as_asked(asked, state, paused=_is_paused(group))
    stopped = decide_stopped(group, stopped=gathered.stopped, resetting=gathered.hold is not None, memory=kept)
    if stopped is not None:
        return Sizing(stopped, None, trail.forgotten())
    if group.spec.scaling is None:
        counts = views.shown.partition_counts
        return Sizing(decide_fixed(group, counts, found=_found(gathered), memory=state, now=now), None, trail)
    phase = rollout.decide(rolled, now).phase
    facts = scaling_facts(gathered, views, phase, now)
    last = memory.scale
    if last is not None and last.inputs is not None and (views.in_doubt or facts.awaits_rates):
        decision = replace(last, replicas=facts.current, memory=facts.memory)
        # Rates are awaited after a gap, too, and nothing that was wanted before it proves anything now.
        trail = trail if views.in_doubt else trail.forgotten()
    else:
        decision, trail = decide_load(facts, trail, now)
    until = facts.bounds.until
    decision = replace(decision, requeue_after=until - now if until is not None else None)
    return Sizing(replace(decision, memory=_noted(group, kept, decision)), facts, trail)


def decide_load(facts: ScalingFacts, trail: Trail, now: float) -> tuple[ScaleDecision, Trail]:
    """The decision by load; that of a dry run or of a paused fleet proposes, and changes nothing."""
    decision, trail = decide(facts, trail, now)
    if not facts.spec.acts:
        decision = replace(decision, replicas=facts.current, proposed=decision.replicas)
    if facts.spec.paused:
        reason = f"spec.scaling.paused is true; without it {decision.proposed} workers: {decision.reason}"
        decision = replace(decision, limit=limits.PAUSED, reason=reason)
    return decision, trail


def _is_sized(group: ConsumerGroup) -> bool:
    """True for a fleet whose size follows its load."""
    return group.spec.scaling is not None and group.spec.scaling.acts


def _is_paused(group: ConsumerGroup) -> bool:
    return group.spec.scaling is not None and group.spec.scaling.paused


def _noted(group: ConsumerGroup, kept: SizingState, decision: ScaleDecision) -> SizingState:
    """The part of a decision that is remembered; one that is only shown changes nothing but the capacity."""
    noted = decision.memory or kept
    return replace(noted if _is_sized(group) else replace(kept, capacity=noted.capacity), replicas=kept.replicas)


def scaling_facts(gathered: Gathered, views: Views, phase: RolloutPhase, now: float) -> ScalingFacts:
    """The facts for a fleet with `spec.scaling`; `phase` is that of the rollout at the present number of workers."""
    group, main = gathered.group, gathered.parts[MAIN]
    assert group.spec.scaling is not None, "a fleet that is scaled"
    view = views.view
    observed = view.observed
    roster = None
    if observed is not None:
        roster = sort_members(group, observed.members, gathered.worker_reports, main.workers)
    hold = _find_hold(gathered, roster, views.intent)
    if phase is RolloutPhase.APPLYING or (phase in ROLLING and hold is not None and hold.reason == limits.UNKNOWN):
        hold = Problem(limits.ROLLOUT, ROLLING_TEXT)
    return ScalingFacts(
        spec=group.spec.scaling,
        bounds=bounds_at(group.spec.scaling, now),
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
        reports=_of_work(gathered.worker_reports, {pod.name for pod in main.workers}),
        timeout_s=float(group.spec.handler.timeout_seconds),
        reported_stuck=frozenset(
            (stuck.topic, stuck.partition) for worker in gathered.worker_reports for stuck in worker.stuck
        ),
        memory=gathered.state.sizing,
    )


def _of_work(reports: Sequence[WorkerObservation], pods: Set[str]) -> tuple[WorkerObservation, ...]:
    """The reports of the workers in these pods that say how busy they are. One with an error may be busy with waiting,
    as for a sidecar that does not listen."""
    return tuple(each for each in reports if each.work is not None and not each.error_reason and each.pod in pods)


def _found(gathered: Gathered) -> int | None:
    """The StatefulSet's number of workers; None without one."""
    fleet = gathered.parts[MAIN].fleet
    return fleet.replicas if fleet is not None else None


def current_count(gathered: Gathered) -> int:
    """The number that was decided last; to begin with the one that is found, or that the spec asks for.

    A dry run, or a paused fleet, decides for the fleet that there is.
    """
    memory, found = gathered.state.sizing, _found(gathered)
    asked = asked_count(gathered.group, memory, found)
    if _is_sized(gathered.group):
        return memory.count if memory.count is not None else found or asked
    kept = kept_count(asked, memory, paused=_is_paused(gathered.group))
    return asked if kept is None else kept


def _find_hold(gathered: Gathered, roster: Roster | None, intent: RetryIntent | None) -> Problem | None:
    """The reason why nothing may be decided, with a limit's word."""
    is_open = breaker_open(gathered)
    if is_open:
        return Problem(limits.BREAKER_OPEN, "a breaker is open, so that lag says nothing about load")
    if is_open is None and intent is not None and intent.may_pause:
        message = "the state of the workers' breakers is unknown: the operator has to reach their status pages"
        return Problem(limits.UNKNOWN, message)
    if roster is not None and roster.foreign:
        named = name_some([member.instance_id or member.client_id or member.member_id for member in roster.foreign])
        message = f"members of other programs are in the Kafka group, and what they can do is unknown: {named}"
        return Problem(limits.GROUP_SHARED, message)
    return None


def has_news(
    session: GroupSession, observed: GroupObservation, lag: GroupLag, reports: Sequence[WorkerObservation], now: float
) -> bool:
    """Decide on an observation in which no more than offsets has changed; True if the group has to be reconciled."""
    load, before = session.load, session.memory.scale
    if load is None or before is None:
        return False
    until = load.facts.bounds.until
    if until is not None and now >= until:
        return True
    known = {report.pod for report in load.facts.reports}  # a new worker's first report is a reconcile of its own
    facts = replace(load.facts, observed=observed, lag=lag, reports=_of_work(reports, known))
    trail = session.memory.trail
    if facts.awaits_rates:
        session.memory = replace(session.memory, trail=trail.forgotten())
        return False
    decision, trail = decide_load(facts, trail, now)
    session.memory = replace(session.memory, trail=trail)
    session.load = replace(load, newest=decision)
    if (decision.replicas, decision.limit) != (before.replicas, before.limit):
        return True
    if not facts.spec.dry_run and decision.memory not in (None, facts.memory):
        return True  # a later process has to know it
    return decision.inputs is not None and is_moved(load.shown, entry_of(decision))
