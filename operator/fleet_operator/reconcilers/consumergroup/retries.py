"""Decides about retries: published policies, and the number and revision of retry workers. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from fleet_operator.planning.fleet import rollout
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, PartPlan
from fleet_operator.planning.fleet.rollout_facts import PodFacts
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.retry.plan import RetryFacts, RetryPlan, last_revision, plan_retry, retry_target
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.retry.topics import GroupView
from fleet_operator.planning.state.group import RetriesState
from fleet_operator.planning.status.facts import failed_topic_id
from fleet_operator.planning.status.retry import find_redriven
from fleet_operator.reconcilers.consumergroup.fleet import FleetPlan
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.views import Views


def decide_retries(gathered: Gathered, views: Views, memory: RetryMemory, now: float) -> RetryPlan | None:
    """Plan the retries of a group; returns None if the group has no retries and never had any."""
    if views.intent is None:
        return None
    facts = RetryFacts(
        group=gathered.group,
        intent=views.intent,
        published=gathered.published,
        view=GroupView() if gathered.cluster_changed else views.view,
        workers=gathered.parts[RETRY],
        memory=replace(memory, kept=gathered.state.retries.sizing),
        stopped=gathered.stopped or gathered.group.spec.suspend,
        breaker_open=breaker_open(gathered),
        fed=gathered.feeds_retries,
        reached=all(pod.ready for pod in _writers(gathered.parts[MAIN])),
    )
    return plan_retry(facts, now)


def retries_after(gathered: Gathered, retry: RetryPlan | None, shown: GroupView) -> RetriesState:
    state, observed = gathered.state.retries, shown.observed
    if retry is not None:
        state = replace(state, sizing=retry.memory.kept)
        state = retry.published.state(state) if retry.published is not None else state
    if observed is None:
        return state
    topic_id = failed_topic_id(gathered.group, shown.observation)
    found = find_redriven(gathered.redrive_facts, observed.observed_at, topic_id, state.redriven)
    return replace(state, redriven=found or state.redriven)


def retry_parts(gathered: Gathered, views: Views, retry: RetryPlan | None, fleet: FleetPlan) -> Iterable[PartPlan]:
    """Yield at most one plan, for the retry workers; it depends on `fleet`, the plan for the main workers."""
    intent, found = views.intent, gathered.parts[RETRY]
    if retry is None or intent is None:
        return
    if retry.over:
        note = "spec.retry was removed, and no record waits in the retry topics"
        yield PartPlan(part=RETRY, remove=True, event=("RetryWorkersRemoved", note))
        return
    present, replicas = found.fleet, retry.scale.replicas
    last = last_revision(retry, fleet.records.values()) if retry.waits else None
    target = retry_target(present, fleet.decision.target, fleet.templates, ending=intent.ending, last=last)
    if target is None or retry.published is None or (present is None and gathered.older is not None):
        return
    event = None
    if present is not None and present.replicas != replicas:
        event = ("RetryScaled", f"from {present.replicas} to {replicas} retry workers: {retry.scale.reason}")
    stuck = rollout.stuck_pods(present, found.workers, fleet.records, target)
    yield PartPlan(part=RETRY, target=target, replicas=replicas, delete_pods=stuck, event=event)


def breaker_open(gathered: Gathered) -> bool | None:
    """True if any worker reports an open breaker, False if all breakers are known to be closed. None (unknown) if no
    worker reports an open breaker, but a ready worker with a breaker did not answer."""
    if any(report.breaker_open for report in gathered.worker_reports):
        return True
    answered = {report.pod for report in gathered.worker_reports}
    running = (*_writers(gathered.parts[MAIN]), *gathered.parts[RETRY].workers)
    return False if {pod.name for pod in running if pod.ready} <= answered else None


def _writers(part: FleetPart) -> list[PodFacts]:
    """The workers of a part whose revision has retries, so that they may write to retry topics."""
    return [facts for pod, facts in zip(part.pods, part.workers, strict=True) if has_retries({"spec": pod["spec"]})]
