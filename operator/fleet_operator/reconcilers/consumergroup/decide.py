"""The plan of a reconcile: calls of the planners, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.joins import JoinStep
from fleet_consumer.contract.pod import WORKER_FILE
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.observe.interests import GroupInterest, retry_interest
from fleet_operator.planning.fleet import manifests, readings, rollout
from fleet_operator.planning.fleet.blocking import find_blocking_problem, find_unproven_connection
from fleet_operator.planning.fleet.deadlines import watch
from fleet_operator.planning.fleet.image import WorkerImage
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, PartPlan
from fleet_operator.planning.fleet.pod_template import CLOSING_S
from fleet_operator.planning.fleet.revision import (
    Inputs,
    Revision,
    inputs_of,
    is_known,
    request_digest,
    with_inputs,
    with_known,
)
from fleet_operator.planning.fleet.rollout_facts import PodFacts, RevisionRecord, RolloutFacts, Watched
from fleet_operator.planning.fleet.waves import Turn
from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.observation import ClusterObservation, believed
from fleet_operator.planning.offsets.reset import Finding, ResetDecision, decide_reset
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.fleet import has_retries, retry_stateful_set
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.plan import (
    RetryFacts,
    RetryPlan,
    last_revision,
    plan_retry,
    retry_target,
    used_revisions,
)
from fleet_operator.planning.retry.publication import plan_intent
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.retry.topics import GroupView, view_group
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.state.fleet import RevisionMark
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.topic_pattern import usable_pattern
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.offset_reset import reset_facts
from fleet_operator.reconcilers.consumergroup.scaling import ScalingBefore, Surroundings, count_before, scale_fleet
from fleet_operator.reconcilers.consumergroup.state import fleet_after, retries_after, revisions_of
from fleet_operator.reconcilers.consumergroup.upgrading import image_after, plan_wanted, upgrade_after, usable_turn

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})


@dataclass(frozen=True, slots=True)
class Memory:
    """Times and loads that a plan leaves for the next one. They are lost with the process, and then begin again."""

    retry: RetryMemory = field(default_factory=RetryMemory)
    watched: Watched = field(default_factory=Watched)
    trail: Trail = field(default_factory=Trail)
    scale: ScaleDecision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a reconcile is going to do.

    - `view`: the Kafka side that actions rest on; `shown` is the one for the status, in which one or two failed
      observations do not show.
    - `intent`, `retry`: None for a group that has no retries and never had.
    - `state`: what the operator remembers from now on; it is written before anything is done.
    - `image`: the workers' image; `turn`: what the fleet takes over now.
    - `revision`: None when the spec cannot become one.
    - `scaling`: what `scale` was decided from, and `trail` what it leaves; None for a fleet of a fixed size.
    - `parts`: the wanted workers, in the order in which they are applied.
    """

    view: GroupView
    shown: GroupView
    intent: RetryIntent | None
    retry: RetryPlan | None
    reset: ResetDecision
    scale: ScaleDecision
    state: GroupState
    image: WorkerImage
    turn: Turn
    revision: Revision | None
    records: dict[str, RevisionRecord]
    decision: rollout.RolloutDecision
    watched: Watched
    scaling: ScalingFacts | None = None
    trail: Trail = field(default_factory=Trail)
    parts: tuple[PartPlan, ...] = ()

    @property
    def memory(self) -> Memory:
        retry = self.retry.memory if self.retry is not None else RetryMemory()
        return Memory(retry, self.watched, self.trail, self.scale)

    @property
    def templates(self) -> dict[str, Mapping[str, Any]]:
        """The pod templates of all known revisions, by hash."""
        known = {record.hash: record.pod_template for record in self.records.values()}
        return known | ({self.revision.hash: self.revision.pod_template} if self.revision else {})

    @property
    def requeue_after(self) -> float | None:
        """Seconds until the next plan if nothing changes before."""
        retries = self.retry.requeue_after if self.retry else None
        wishes = (self.decision.requeue_after, retries, self.reset.requeue_after, self.view.topics.requeue_after)
        return min((wish for wish in wishes if wish is not None), default=None)

    def facts(self, gathered: Gathered) -> ConsumerGroupFacts:
        """Input of the status, with the view that actions rest on."""
        no_retries = {RETRY: FleetPart(part=RETRY)} if self.retry is None else {}
        return ConsumerGroupFacts(
            group=gathered.group,
            cluster=gathered.cluster,
            view=self.view,
            rollout=self.decision,
            scale=self.scale,
            image=self.image,
            turn=self.turn,
            upgrade=self.state.upgrade.last,
            connection=self.state.upgrade.connection,
            kept=self.revision is not None and self.revision.kept,
            parts={**gathered.parts, **no_retries},
            workers=gathered.worker_reports,
            revision=self.revision.hash if self.revision is not None else None,
            retry=self.intent,
            reset=self.reset,
            redriven=self.state.retries.redriven,
        )

    def stateful_set(self, gathered: Gathered, wanted: PartPlan) -> JsonObject:
        """The StatefulSet of a part with a known `target`."""
        assert wanted.target is not None, "a StatefulSet has a revision"
        group, templates, found = gathered.group, self.templates, gathered.parts[wanted.part]
        revision, replicas = wanted.target, wanted.replicas
        template = templates[revision]
        if wanted.part is MAIN:
            body = manifests.stateful_set(group, revision=revision, pod_template=template, replicas=replicas)
            return with_inputs(with_known(body, templates), self._inputs_of(found, revision))
        return retry_stateful_set(group, revision=revision, pod_template=template, replicas=replicas)

    @property
    def join_step(self) -> JoinStep | None:
        """The workers that the last step added to a living group: they join together."""
        memory = self.scale.memory
        growth = memory.growth if memory is not None else None
        return None if growth is None or growth.before == 0 else JoinStep(growth.before, growth.after, growth.at)

    def _inputs_of(self, main: FleetPart, revision: str) -> Inputs | None:
        """Digests of a revision's inputs; None for an older revision than the one that runs."""
        if self.revision is not None and self.revision.hash == revision:
            return self.revision.inputs
        return inputs_of(main.body) if main.fleet is not None and main.fleet.revision == revision else None


def make_plan(
    gathered: Gathered,
    now: float,
    *,
    image: str,
    memory: Memory | None = None,
    finding: Finding | None = None,
    tick: float = 0.0,
) -> Plan:
    """The plan for what was gathered.

    `image` is the operator's default worker image; `memory` comes from the plan before; `finding` is the outcome of the
    last step of a reset of offsets. `now` is in epoch seconds, `tick` in seconds of the operator's steady clock.
    """
    group, observation, memory = gathered.group, gathered.observation, memory or Memory()
    intent = _plan_intent(gathered)
    view = _view(gathered, observation, intent)
    believable = believed(observation, group.group_id)
    shown = view if believable is observation else _view(gathered, believable, intent)
    past = replace(memory.retry, kept=gathered.state.retries.sizing)
    retry = None if intent is None else plan_retry(_retry_facts(gathered, intent, view, past), now)
    reset = decide_reset(reset_facts(gathered, view.source_topics, finding), now)
    problem = _blocking_problem(gathered, retry)
    turn = usable_turn(gathered, problem)
    chosen = image_after(gathered, turn, default=image)
    revision = plan_wanted(gathered, chosen.name, turn) if problem is None else None
    records, strangers = _records(gathered, revision)
    main = gathered.parts[MAIN]
    facts = replace(
        _rollout_facts(gathered, revision, records, problem),
        wanted_replicas=count_before(gathered, resetting=reset.stop),
        used=used_revisions(retry, revisions_of(gathered.parts[RETRY]), records.values()),
    )
    facts = replace(
        facts, watched=watch(memory.watched, facts, counts=facts.outside_ok and not group.paused, tick=tick)
    )
    may_pause = intent is not None and intent.may_pause
    surroundings = Surroundings(
        view=view, shown=shown, resetting=reset.stop, breaker_open=breaker_open(gathered), may_pause=may_pause
    )
    scaled = scale_fleet(gathered, surroundings, facts, ScalingBefore(memory.trail, memory.scale), now)
    decision = scaled.rollout
    # A revision that was never applied is no fallback: its record is removed.
    unused = strangers - facts.used - revisions_of(main)
    decision = replace(decision, prune=(*decision.prune, *sorted(unused)))
    state = GroupState(
        fleet=fleet_after(gathered, revision, decision),
        upgrade=upgrade_after(gathered, turn, chosen, revision, default=image),
        sizing=scaled.decision.memory or SizingState(),
        retries=retries_after(gathered, retry, shown),
        offsets=gathered.state.offsets,
    )
    plan = Plan(
        view=view,
        shown=shown,
        intent=intent,
        retry=retry,
        reset=reset,
        scale=scaled.decision,
        state=state,
        image=chosen,
        turn=turn,
        revision=revision,
        records=records,
        decision=decision,
        watched=facts.watched,
        scaling=scaled.facts,
        trail=scaled.trail,
    )
    return replace(plan, parts=(_main_part(plan, main), *_retry_part(plan, gathered)))


def _rollout_facts(
    gathered: Gathered, revision: Revision | None, records: dict[str, RevisionRecord], blocked: Problem | None
) -> RolloutFacts:
    """The rollout's facts as far as they follow from what was gathered."""
    spec, main, observation = gathered.group.spec, gathered.parts[MAIN], gathered.observation
    return RolloutFacts(
        wanted=revision.hash if revision else None,
        wanted_before=gathered.state.fleet.wanted,
        wanted_replicas=0,
        request=request_digest(gathered.group),
        blocked=blocked,
        unproven=_unproven(gathered, revision),
        records=records,
        checks=tuple(readings.read_check(pod) for pod in gathered.checks),
        fleet=main.fleet,
        pods=main.workers,
        outside_ok=observation is not None and observation.reachable,
        progress_deadline_s=float(spec.rollout.progress_deadline_seconds),
        check_deadline_s=float(spec.rollout.check_deadline_seconds),
        patience_s=_patience(gathered),
        grace_s=float(spec.drain_seconds + CLOSING_S),
    )


def _plan_intent(gathered: Gathered) -> RetryIntent | None:
    """The wanted retries; `ended` once no worker is left that reads or writes."""
    observation = gathered.observation
    seen = observation.groups.get(gathered.group.group_id) if observation is not None else None
    predecessors = seen.retry.found_delays if seen is not None and seen.retry is not None else None
    intent = plan_intent(gathered.group, gathered.policy, gathered.published, predecessors)
    if intent is None or not intent.ending or gathered.parts[RETRY].body is not None or gathered.feeds_retries:
        return intent
    return replace(intent, ended=True)


def _view(gathered: Gathered, observation: ClusterObservation | None, intent: RetryIntent | None) -> GroupView:
    return view_group(gathered.group, observation, intent, own_cluster=not gathered.cluster_changed)


def _blocking_problem(gathered: Gathered, retry: RetryPlan | None) -> Problem | None:
    return find_blocking_problem(
        gathered.group,
        gathered.cluster,
        older=gathered.older,
        handler_files=gathered.handler_files,
        observation=gathered.observation,
        retry_problem=retry.problem if retry and gathered.group.spec.retry else None,
    )


def _unproven(gathered: Gathered, wanted: Revision | None) -> Problem | None:
    """The reason why nothing may begin with the wanted revision's connection yet."""
    if wanted is None or isinstance(gathered.cluster, Problem):
        return None
    main = gathered.parts[MAIN].fleet
    moved = main is not None and _connection_of(gathered, main.revision) != wanted.worker_config["connection"]
    return find_unproven_connection(gathered.cluster, gathered.observation, moved=moved)


def _connection_of(gathered: Gathered, revision: str) -> object:
    """The connection in a revision's record; None without a readable one."""
    name = naming.revision_config(gathered.key[1], revision)
    for body in gathered.config_maps:
        if body["metadata"]["name"] == name:
            return (read_object((body.get("data") or {}).get(WORKER_FILE)) or {}).get("connection")
    return None


def _records(gathered: Gathered, wanted: Revision | None) -> tuple[dict[str, RevisionRecord], set[str]]:
    """The records of revisions, and the revisions whose records cannot be trusted: see `fleet.revision`.

    The wanted revision is rendered again, so what is known of it counts without its record. Where the state was lost,
    the revision that the StatefulSet has counts as checked: nothing has to go back for another check.
    """
    marks, main = gathered.state.fleet.marks, gathered.parts[MAIN].fleet
    if main is not None and main.revision not in marks:
        marks = {**marks, main.revision: RevisionMark(checked=True)}
    names = [body["metadata"]["name"] for body in gathered.config_maps]
    records, strangers = dict[str, RevisionRecord](), set[str]()
    for body in gathered.config_maps:
        record = readings.read_revision(body, marks, config_map_names=names)
        if record is None or body["metadata"]["name"] != naming.revision_config(gathered.key[1], record.hash):
            continue
        if (wanted is not None and record.hash == wanted.hash) or is_known(gathered.parts[MAIN].body, record):
            records[record.hash] = record
        else:
            strangers.add(record.hash)
    if wanted is not None and wanted.hash not in records and wanted.hash in gathered.state.fleet.marks:
        template = wanted.pod_template
        records[wanted.hash] = readings.marked(wanted.hash, marks[wanted.hash], complete=False, pod_template=template)
    return records, strangers


def _retry_facts(gathered: Gathered, intent: RetryIntent, view: GroupView, memory: RetryMemory) -> RetryFacts:
    return RetryFacts(
        group=gathered.group,
        intent=intent,
        published=gathered.published,
        view=GroupView() if gathered.cluster_changed else view,
        workers=gathered.parts[RETRY],
        memory=memory,
        stopped=gathered.stopped or gathered.group.spec.suspend,
        breaker_open=breaker_open(gathered),
        fed=gathered.feeds_retries,
        reached=all(pod.ready for pod in _writers(gathered.parts[MAIN])),
    )


def breaker_open(gathered: Gathered) -> bool | None:
    """True if any worker reports an open breaker; None while none does and one that has a breaker did not answer."""
    if any(report.breaker_open for report in gathered.worker_reports):
        return True
    answered = {report.pod for report in gathered.worker_reports}
    running = (*_writers(gathered.parts[MAIN]), *gathered.parts[RETRY].workers)
    return False if {pod.name for pod in running if pod.ready} <= answered else None


def _writers(part: FleetPart) -> list[PodFacts]:
    """The workers whose revision has retries."""
    return [facts for pod, facts in zip(part.pods, part.workers, strict=True) if has_retries({"spec": pod["spec"]})]


def _patience(gathered: Gathered) -> float:
    """Seconds that a rebalance may hold up a new worker: it joins only after the present members have rejoined."""
    observation = gathered.observation
    seen = observation.groups.get(gathered.group.group_id) if observation else None
    if seen is None or seen.state not in REBALANCING:
        return 0.0
    return float(gathered.group.spec.consumer.max_poll_interval_seconds)


def _main_part(plan: Plan, found: FleetPart) -> PartPlan:
    target, replicas, fleet = plan.decision.target, plan.scale.replicas, found.fleet
    event = None
    if target is None:
        return PartPlan(part=MAIN, delete_pods=plan.decision.delete_pods)
    if fleet is None:
        event = ("FleetCreated", f"{replicas} workers at revision {target}")
    elif fleet.revision != target:
        event = ("RevisionApplied", f"from revision {fleet.revision} to {target}")
    elif fleet.replicas != replicas:
        why = f": {plan.scale.reason}" if plan.scale.reason else ""
        event = ("Scaled", f"from {fleet.replicas} to {replicas} workers{why}")
    return PartPlan(part=MAIN, target=target, replicas=replicas, delete_pods=plan.decision.delete_pods, event=event)


def _retry_part(plan: Plan, gathered: Gathered) -> Iterator[PartPlan]:
    retry, intent, found = plan.retry, plan.intent, gathered.parts[RETRY]
    if retry is None or intent is None:
        return
    if retry.over:
        note = "spec.retry was removed, and no record waits in the retry topics"
        yield PartPlan(part=RETRY, remove=True, event=("RetryWorkersRemoved", note))
        return
    fleet, replicas = found.fleet, retry.scale.replicas
    last = last_revision(retry, plan.records.values()) if retry.waits else None
    target = retry_target(fleet, plan.decision.target, plan.templates, ending=intent.ending, last=last)
    if target is None or retry.publication is None or (fleet is None and gathered.older is not None):
        return
    event = None
    if fleet is not None and fleet.replicas != replicas:
        event = ("RetryScaled", f"from {fleet.replicas} to {replicas} retry workers: {retry.scale.reason}")
    stuck = rollout.stuck_pods(fleet, found.workers, plan.records, target)
    yield PartPlan(part=RETRY, target=target, replicas=replicas, delete_pods=stuck, event=event)


def interest_of(gathered: Gathered, plan: Plan) -> GroupInterest:
    """Interest of the group for its observer: Kafka groups, topics, and the retry flow."""
    group, retry = gathered.group, plan.intent
    delays = (*retry.delays, *retry.drained_delays) if retry is not None else ()
    discover = gathered.older is None and gathered.published is None
    flow = retry_interest(group.group_id, delays, discover=discover) if delays else None
    return GroupInterest(
        group_id=group.group_id,
        topics=group.source_topics,
        pattern=usable_pattern(group),
        other_topics=group.spec.handler.outputs,
        failed_topic=naming.failed_topic(group.group_id),
        read_committed=group.spec.consumer.isolation_level == "ReadCommitted",
        retry=flow,
        scaled=group.spec.scaling is not None,
        asleep=plan.scaling is not None and plan.scale.replicas == 0,
        waits=gathered.stopped,
    )
