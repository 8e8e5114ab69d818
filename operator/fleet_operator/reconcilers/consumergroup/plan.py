"""The plan of a reconcile: the decisions of all concerns in a fixed order, each on what those before it decided. Pure.

Retries come first, whose problems hold up a revision; then the upgrade, which chooses the wanted revision; the number
of workers; the fleet at that number; and the offsets of a group whose workers are known then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fleet_consumer.contract.joins import JoinStep
from fleet_operator.observe.interests import GroupInterest
from fleet_operator.planning.fleet.blocking import find_blocking_problem
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, Part, PartPlan
from fleet_operator.planning.offsets.expiry import ExpiryDecision, ExpiryMemory
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.plan import RetryPlan, used_revisions
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.rollout import advanced_upgrade
from fleet_operator.reconcilers.consumergroup.fleet import (
    FleetPlan,
    Revisions,
    decide_fleet,
    read_revisions,
    revisions_of,
)
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.offsets import decide_offsets, offsets_after
from fleet_operator.reconcilers.consumergroup.retries import decide_retries, retries_after, retry_parts
from fleet_operator.reconcilers.consumergroup.session import Findings, Memory
from fleet_operator.reconcilers.consumergroup.sizing import Sizing, count_before, decide_sizing
from fleet_operator.reconcilers.consumergroup.upgrading import UpgradePlan, decide_upgrade
from fleet_operator.reconcilers.consumergroup.views import Views, interest_of, view_kafka


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a reconcile is going to do.

    - `retry`: None for a group that has no retries and never had.
    - `upgrade`: what the fleet takes over now, the workers' image, and the wanted revision.
    - `parts`: the wanted workers, in the order in which they are applied.
    - `state`: what the operator remembers from now on; it is written before anything is done.
    - `facts`: input of the status, with the view that actions rest on.
    - `interest`: what the group's observer is to look at.
    """

    views: Views
    retry: RetryPlan | None
    upgrade: UpgradePlan
    sizing: Sizing
    fleet: FleetPlan
    parts: tuple[PartPlan, ...]
    expiry: ExpiryDecision
    state: GroupState
    facts: ConsumerGroupFacts
    interest: GroupInterest
    memory: Memory = field(default_factory=Memory)

    @property
    def requeue_after(self) -> float | None:
        """Seconds until the next plan if nothing changes before."""
        retries, topics = self.retry.requeue_after if self.retry else None, self.views.view.topics
        sizing = self.sizing.decision.requeue_after
        wishes = (self.fleet.decision.requeue_after, retries, topics.requeue_after, sizing)
        return min((wish for wish in wishes if wish is not None), default=None)

    @property
    def visits(self) -> dict[Part, ExpiryMemory]:
        """Memory of visits to the Kafka groups of both parts."""
        return {MAIN: self.expiry.memory, RETRY: self.expiry.retry_memory}

    @property
    def join_step(self) -> JoinStep | None:
        """The workers that the last step added to a living group: they join together."""
        memory = self.sizing.decision.memory
        growth = memory.growth if memory is not None else None
        return None if growth is None or growth.before == 0 else JoinStep(growth.before, growth.after, growth.at)


def make_plan(
    gathered: Gathered,
    now: float,
    *,
    image: str,
    memory: Memory | None = None,
    findings: Findings | None = None,
    tick: float = 0.0,
) -> Plan:
    """The plan for what was gathered.

    `image` is the operator's default worker image; `memory` comes from the plan before, and `findings` from the work
    in the background. `now` is in epoch seconds, `tick` in seconds of the operator's steady clock.
    """
    memory, findings = memory or Memory(), findings or Findings()
    views = view_kafka(gathered)
    retry = decide_retries(gathered, views, memory.retry, now)
    problem = _blocking_problem(gathered, retry)
    upgrade = decide_upgrade(gathered, problem, default=image)
    count = count_before(gathered)
    revisions = read_revisions(gathered, upgrade.revision, problem, count, memory.watched, tick)
    sizing = decide_sizing(gathered, views, revisions.facts, memory, now)
    used = used_revisions(retry, revisions_of(gathered.parts[RETRY]), revisions.records.values())
    fleet = decide_fleet(gathered, revisions, sizing.decision, used, now)
    parts = (fleet.part, *retry_parts(gathered, views, retry, fleet))
    expiry = decide_offsets(gathered, views.shown, parts, findings.visits, now)
    state = GroupState(
        fleet=fleet.state,
        upgrade=upgrade.state,
        sizing=sizing.decision.memory or SizingState(),
        retries=retries_after(gathered, retry, views.shown),
        offsets=offsets_after(gathered, views.shown, expiry, now),
    )
    facts = _facts(gathered, views, retry, upgrade, sizing, fleet, state, findings)
    facts = replace(facts, hold=gathered.hold, expiry=expiry)
    if not gathered.group.paused:
        facts = replace(facts, topic_problem=views.shown.topics.problem or findings.topic_refusal)
        facts = replace(facts, upgrade=advanced_upgrade(facts))
        state = replace(state, upgrade=replace(state.upgrade, last=facts.upgrade))
    return Plan(
        views=views,
        retry=retry,
        upgrade=upgrade,
        sizing=sizing,
        fleet=fleet,
        parts=parts,
        expiry=expiry,
        state=state,
        facts=facts,
        interest=interest_of(gathered, views.intent, asleep=sizing.facts is not None and sizing.decision.replicas == 0),
        memory=_memory(retry, revisions, sizing),
    )


def _facts(
    gathered: Gathered,
    views: Views,
    retry: RetryPlan | None,
    upgrade: UpgradePlan,
    sizing: Sizing,
    fleet: FleetPlan,
    state: GroupState,
    findings: Findings,
) -> ConsumerGroupFacts:
    return ConsumerGroupFacts(
        group=gathered.group,
        cluster=gathered.cluster,
        view=views.view,
        rollout=fleet.decision,
        scale=sizing.decision,
        image=upgrade.image,
        turn=upgrade.turn,
        upgrade=state.upgrade.last,
        connection=state.upgrade.connection,
        kept=fleet.wanted is not None and fleet.wanted.kept,
        parts=gathered.parts if retry is not None else {**gathered.parts, RETRY: FleetPart(part=RETRY)},
        workers=gathered.worker_reports,
        revision=fleet.wanted.hash if fleet.wanted is not None else None,
        refusal=findings.child_refusal,
        retry=views.intent,
        redriven=state.retries.redriven,
    )


def _memory(retry: RetryPlan | None, revisions: Revisions, sizing: Sizing) -> Memory:
    """Times and loads for the next plan."""
    kept = retry.memory if retry is not None else RetryMemory()
    return Memory(retry=kept, watched=revisions.facts.watched, trail=sizing.trail, scale=sizing.decision)


def _blocking_problem(gathered: Gathered, retry: RetryPlan | None) -> Problem | None:
    return find_blocking_problem(
        gathered.group,
        gathered.cluster,
        older=gathered.older,
        handler_files=gathered.handler_files,
        observation=gathered.observation,
        retry_problem=retry.problem if retry and gathered.group.spec.retry else None,
    )
