"""Decides the number of main workers, at each reconcile and at each observation between reconciles. Pure.

Rates are measured from every observation, but a full reconcile for each observation would be most of the operator's
work. Therefore an observation causes a reconcile only if it changes the decision.
Decision: docs/decisions/0049-scaling-steps.md.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX, ConsumerGroup
from fleet_operator.planning.fleet import rollout
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import RolloutFacts
from fleet_operator.planning.lag import GroupLag
from fleet_operator.planning.observation import GroupObservation, WorkerObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.scaling import decision as scaling
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.history import ScalingHistory
from fleet_operator.planning.scaling.policy import ROLLING_TEXT, decide
from fleet_operator.planning.scaling.schedules import bounds_at
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.status.members import Roster, sort_members
from fleet_operator.planning.status.scaling import entry_of, is_moved
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.retries import breaker_open
from fleet_operator.reconcilers.consumergroup.session import GroupSession, Memory
from fleet_operator.reconcilers.consumergroup.views import Views

ROLLING: Final = frozenset({RolloutPhase.APPLYING, RolloutPhase.WAITING})
"""Rollout phases in which workers of a new revision start. The fleet keeps its size in these phases: the revision is
good once all workers are ready, which a fleet of changing size may never reach. The phase in which a revision is
checked is left out, because the check runs in a separate pod."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """A decision about the number of workers.

    `facts`: the facts on which the decision is based; None if the number is fixed. `history`: the scaling history after
    the decision.
    """

    decision: ScaleDecision
    facts: ScalingFacts | None
    history: ScalingHistory


def count_before(gathered: Gathered) -> int:
    """The number of workers that applies until this plan decides a new number."""
    if (
        scaling.decide_stopped(gathered.group, stopped=gathered.stopped, resetting=gathered.hold is not None)
        is not None
    ):
        return 0
    return current_count(gathered)


def decide_sizing(gathered: Gathered, views: Views, rolled: RolloutFacts, memory: Memory, now: float) -> Sizing:
    """Decide the number of main workers.

    `rolled`: the facts of the rollout, with the number of workers before this plan. During some phases of the rollout
    (ROLLING), the fleet keeps this number.
    """
    group, state, history = gathered.group, gathered.state.sizing, memory.history
    asked = scaling.asked_count(group, state, _found(gathered))
    kept = (
        replace(state, replicas=asked) if _is_sized(group) else scaling.as_asked(asked, state, paused=_is_paused(group))
    )
    stopped = scaling.decide_stopped(group, stopped=gathered.stopped, resetting=gathered.hold is not None, memory=kept)
    if stopped is not None:
        return Sizing(stopped, None, history.after_gap())
    if group.spec.scaling is None:
        counts = views.shown.partition_counts
        return Sizing(scaling.decide_fixed(group, counts, found=_found(gathered), memory=state, now=now), None, history)
    phase = rollout.decide(rolled, now).phase
    facts = scaling_facts(gathered, views, phase, now)
    last = memory.scale
    if last is not None and last.inputs is not None and (views.briefly_unknown or facts.awaits_rates):
        decision = replace(last, replicas=facts.current, memory=facts.memory)
        # If rates are missing because of a gap in the observations, the demand from before the gap no longer counts.
        history = history if views.briefly_unknown else history.after_gap()
    else:
        decision, history = decide_load(facts, history, now)
    until = facts.bounds.until
    decision = replace(decision, requeue_after=until - now if until is not None else None)
    return Sizing(replace(decision, memory=_state_after(group, kept, decision)), facts, history)


def decide_load(facts: ScalingFacts, history: ScalingHistory, now: float) -> tuple[ScaleDecision, ScalingHistory]:
    """Decide the number of workers from the load. If scaling is paused or a dry run, the number is only proposed."""
    decision, history = decide(facts, history, now)
    if not facts.spec.acts:
        decision = replace(decision, replicas=facts.current, proposed=decision.replicas)
    if facts.spec.paused:
        reason = f"spec.scaling.paused is true; otherwise there would be {decision.proposed} workers: {decision.reason}"
        decision = replace(decision, limit=scaling.PAUSED, reason=reason)
    return decision, history


def _is_sized(group: ConsumerGroup) -> bool:
    """True if the number of workers follows the load: scaling is set, and is neither paused nor a dry run."""
    return group.spec.scaling is not None and group.spec.scaling.acts


def _is_paused(group: ConsumerGroup) -> bool:
    return group.spec.scaling is not None and group.spec.scaling.paused


def _state_after(group: ConsumerGroup, kept: SizingState, decision: ScaleDecision) -> SizingState:
    """The state to store after a decision. If the number of workers was only proposed (dry run or pause), only the
    measured capacity is stored."""
    decided = decision.memory or kept
    return replace(decided if _is_sized(group) else replace(kept, capacity=decided.capacity), replicas=kept.replicas)


def scaling_facts(gathered: Gathered, views: Views, phase: RolloutPhase, now: float) -> ScalingFacts:
    """The facts of a fleet with `spec.scaling`. `phase`: the rollout's phase for the present number of workers."""
    group, main = gathered.group, gathered.parts[MAIN]
    assert group.spec.scaling is not None, "only a fleet with spec.scaling has these facts"
    view = views.view
    observed = view.observed
    roster = None
    if observed is not None:
        roster = sort_members(group, observed.members, gathered.worker_reports, main.workers)
    hold = _find_hold(gathered, roster, views.intent)
    if phase is RolloutPhase.APPLYING or (phase in ROLLING and hold is not None and hold.reason == scaling.UNKNOWN):
        hold = Problem(scaling.ROLLOUT, ROLLING_TEXT)
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
        age_s=_age_of(observed, now),
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


def _age_of(observed: GroupObservation | None, now: float) -> float:
    """Seconds since this group was last observed; 0 if it never was. The cluster's newest observation may be newer than
    the group's."""
    return max(now - observed.observed_at, 0.0) if observed is not None else 0.0


def _of_work(reports: Sequence[WorkerObservation], pods: Set[str]) -> tuple[WorkerObservation, ...]:
    """The reports of these pods that show how busy their workers are. A report with an error is left out, because the
    worker may be idle only because it waits, for example for a sidecar."""
    return tuple(each for each in reports if each.work is not None and not each.error_reason and each.pod in pods)


def _found(gathered: Gathered) -> int | None:
    """The number of replicas in the StatefulSet, or None without a StatefulSet. It is limited to REPLICAS_MAX, because
    other clients may have edited it."""
    fleet = gathered.parts[MAIN].fleet
    return min(fleet.replicas, REPLICAS_MAX) if fleet is not None else None


def current_count(gathered: Gathered) -> int:
    """The number of workers of the last decision or, before the first decision, of the StatefulSet or spec.

    If scaling is paused or a dry run, this is the number that the fleet keeps.
    """
    memory, found = gathered.state.sizing, _found(gathered)
    asked = scaling.asked_count(gathered.group, memory, found)
    if _is_sized(gathered.group):
        return memory.count if memory.count is not None else found or asked
    kept = scaling.kept_count(asked, memory, paused=_is_paused(gathered.group))
    return asked if kept is None else kept


def _find_hold(gathered: Gathered, roster: Roster | None, intent: RetryIntent | None) -> Problem | None:
    """The reason why the load must not change the number of workers now, or None. The status reports the reason as the
    scaling limit."""
    is_open = breaker_open(gathered)
    if is_open:
        return Problem(scaling.BREAKER_OPEN, "a breaker is open, so lag says nothing about load")
    if is_open is None and intent is not None and intent.may_pause:
        message = (
            "the state of the workers' breakers is unknown: the operator must be able to reach all workers by HTTP"
        )
        return Problem(scaling.UNKNOWN, message)
    if roster is not None and roster.foreign:
        named = name_some([member.instance_id or member.client_id or member.member_id for member in roster.foreign])
        message = f"members of other programs are in the Kafka group, and their capacity is unknown: {named}"
        return Problem(scaling.GROUP_SHARED, message)
    return None


def needs_reconcile(
    session: GroupSession, observed: GroupObservation, lag: GroupLag, reports: Sequence[WorkerObservation], now: float
) -> bool:
    """Decide again after an observation that changed only offsets. Returns True if the group must be reconciled."""
    load, before = session.load, session.memory.scale
    if load is None or before is None:
        return False
    until = load.facts.bounds.until
    if until is not None and now >= until:
        return True
    known = {report.pod for report in load.facts.reports}  # a new worker's first report causes a reconcile
    reports = _of_work(reports, known)
    facts = replace(load.facts, observed=observed, age_s=_age_of(observed, now), lag=lag, reports=reports)
    history = session.memory.history
    if facts.awaits_rates:
        session.memory = replace(session.memory, history=history.after_gap())
        return False
    decision, history = decide_load(facts, history, now)
    session.memory = replace(session.memory, history=history)
    session.load = replace(load, newest=decision)
    if (decision.replicas, decision.limit) != (before.replicas, before.limit):
        return True
    if not facts.spec.dry_run and decision.memory not in (None, facts.memory):
        return True  # the new memory must be stored for a later process
    return decision.inputs is not None and is_moved(load.shown, entry_of(decision))
