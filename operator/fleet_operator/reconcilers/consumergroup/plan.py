"""The plan of a reconcile: decisions in a fixed order, each based on the earlier ones. Pure.

The order: retries, because a problem with them blocks a new revision; the upgrade, which chooses the wanted revision;
the number of main workers; the rollout for that number; offsets, because they depend on the wanted workers.
"""

from dataclasses import dataclass, field, replace

from fleet_consumer.contract.joins import JoinStep
from fleet_operator.observe.subscriptions import GroupSubscription
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
from fleet_operator.planning.times import soonest
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
from fleet_operator.reconcilers.consumergroup.views import Views, subscription_of, view_kafka


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a reconcile will do.

    - `retry`: the plan for retries; None for a group that has no retries and never had any.
    - `parts`: the wanted workers, in the order in which they are applied.
    - `state`: the state, which is stored before any action.
    - `facts`: the facts from which the status is computed. They contain the view of the Kafka state on which actions
      are based (`views.view`). The reconciler replaces it with `views.shown` before it computes the status.
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
    subscription: GroupSubscription
    memory: Memory = field(default_factory=Memory)

    @property
    def requeue_after(self) -> float | None:
        """Seconds until the next plan, if no change causes an earlier plan; None if only a change causes the next
        plan."""
        retries, topics = self.retry.requeue_after if self.retry else None, self.views.view.topics
        sizing = self.sizing.decision.requeue_after
        return soonest(self.fleet.decision.requeue_after, retries, topics.requeue_after, sizing)

    @property
    def visits(self) -> dict[Part, ExpiryMemory]:
        return {MAIN: self.expiry.memory, RETRY: self.expiry.retry_memory}

    @property
    def join_step(self) -> JoinStep | None:
        """The last scaling step, if it added workers to a running fleet; otherwise None. New workers read the step, so
        that they all join the group at the same time."""
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
    """Plan one reconcile.

    `image`: the operator's default worker image; `memory`: the memory of the previous plan; `findings`: outcomes of
    background work; `now`: epoch seconds; `tick`: monotonic seconds.
    """
    memory, findings = memory or Memory(), findings or Findings()
    views = view_kafka(gathered)
    retry = decide_retries(gathered, views, memory.retry, now)
    problem = _blocking_problem(gathered, retry)
    upgrade = decide_upgrade(gathered, problem, default=image)
    revisions = read_revisions(gathered, upgrade.revision, problem, count_before(gathered), memory.watched, tick)
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
    facts = ConsumerGroupFacts(
        group=gathered.group,
        cluster=gathered.cluster,
        view=views.view,
        rollout=fleet.decision,
        scale=sizing.decision,
        image=upgrade.image,
        slot=upgrade.slot,
        upgrade=state.upgrade.last,
        connection=state.upgrade.connection,
        kept=fleet.wanted is not None and fleet.wanted.kept,
        parts=gathered.parts if retry is not None else {**gathered.parts, RETRY: FleetPart(part=RETRY)},
        workers=gathered.worker_reports,
        revision=fleet.wanted.hash if fleet.wanted is not None else None,
        refusal=findings.child_refusal,
        retry=views.intent,
        redriven=state.retries.redriven,
        hold=gathered.hold,
        expiry=expiry,
    )
    if not gathered.group.paused:
        facts = replace(facts, topic_problem=views.shown.topics.problem or findings.topic_refusal)
        facts = replace(facts, upgrade=advanced_upgrade(facts))
        state = replace(state, upgrade=replace(state.upgrade, last=facts.upgrade))
    asleep = sizing.facts is not None and sizing.decision.replicas == 0
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
        subscription=subscription_of(gathered, views.intent, asleep=asleep),
        memory=_memory(retry, revisions, sizing),
    )


def _memory(retry: RetryPlan | None, revisions: Revisions, sizing: Sizing) -> Memory:
    kept = retry.memory if retry is not None else RetryMemory()
    return Memory(retry=kept, watched=revisions.facts.watched, history=sizing.history, scale=sizing.decision)


def _blocking_problem(gathered: Gathered, retry: RetryPlan | None) -> Problem | None:
    return find_blocking_problem(
        gathered.group,
        gathered.cluster,
        older=gathered.older,
        handler_files=gathered.handler_files,
        observation=gathered.observation,
        retry_problem=retry.problem if retry and gathered.group.spec.retry else None,
    )
