"""From what was gathered to what should be done: calls to the planners, in order. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.planning.fleet import readings
from fleet_operator.planning.fleet.blocking import cluster_id_changed, find_blocking_problem, wanted_replicas
from fleet_operator.planning.fleet.known_revisions import is_known
from fleet_operator.planning.fleet.revision import Revision, plan_revision
from fleet_operator.planning.fleet.rollout import (
    FleetFacts,
    PodFacts,
    RevisionRecord,
    RolloutDecision,
    RolloutFacts,
    decide,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.fleet import changed_at_of, has_retries
from fleet_operator.planning.retry.plan import RetryFacts, RetryPlan, plan_retry
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.reconcilers.consumergroup.gather import Gathered

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a reconcile is going to do.

    `revision` is None when the spec cannot become one, `retry` for a group that has no retries and never had.
    """

    revision: Revision | None
    records: dict[str, RevisionRecord]
    decision: RolloutDecision
    replicas: int
    fleet: FleetFacts | None
    pods: tuple[PodFacts, ...]
    retry: RetryPlan | None = None

    @property
    def templates(self) -> dict[str, Mapping[str, Any]]:
        """The pod templates of all revisions that are known, by their hash."""
        known = {record.hash: record.pod_template for record in self.records.values()}
        return known | ({self.revision.hash: self.revision.pod_template} if self.revision else {})

    @property
    def requeue_after(self) -> float | None:
        """Seconds until the plan should be made anew, if nothing happens before."""
        wishes = (self.decision.requeue_after, self.retry.scale.requeue_after if self.retry else None)
        return min((wish for wish in wishes if wish is not None), default=None)

    def facts(
        self, gathered: Gathered, *, refusal: Problem | None = None, topic_problem: Problem | None = None
    ) -> ConsumerGroupFacts:
        """What status is made from, once the plan has been carried out."""
        return ConsumerGroupFacts(
            group=gathered.group,
            cluster=gathered.cluster,
            observation=gathered.observation,
            rollout=self.decision,
            wanted_replicas=self.replicas,
            fleet=self.fleet,
            pods=self.pods,
            workers=gathered.worker_reports,
            refusal=refusal,
            topic_problem=topic_problem,
            retry=gathered.retry,
            retry_fleet=self.retry.fleet if self.retry else None,
            retry_pods=self.retry.pods if self.retry else (),
            redrives=gathered.redrive_statuses,
        )


def make_plan(gathered: Gathered, now: float, *, image: str, memory: RetryMemory | None = None) -> Plan:
    """The plan for what was gathered; `image` is the worker image where the spec names none, `memory` what the
    plan before this one said of its retries."""
    group, cluster = gathered.group, gathered.cluster
    retry = _plan_retry(gathered, now, memory or RetryMemory())
    problem = find_blocking_problem(
        group,
        cluster,
        older=gathered.older,
        handler_files=gathered.handler_files,
        observation=gathered.observation,
        retry_problem=retry.problem if retry and group.spec.retry else None,
    )
    revision = None
    if problem is None and cluster is not None:
        revision = plan_revision(group, cluster, handler_files=gathered.handler_files, image=image)
    replicas = wanted_replicas(group, cluster, gathered.observation, gathered.older)
    records, strangers = _records(gathered, revision)
    fleet = readings.read_fleet(gathered.stateful_set)
    pods = tuple(readings.read_pod(pod, now) for pod in gathered.workers)
    observation = gathered.observation
    facts = RolloutFacts(
        wanted=revision.hash if revision else None,
        wanted_replicas=replicas,
        blocked=problem,
        records=records,
        checks=tuple(readings.read_check(pod) for pod in gathered.checks),
        fleet=fleet,
        pods=pods,
        outside_ok=observation is not None and observation.reachable,
        outside_ok_since=observation.reachable_since if observation else None,
        patience_s=_patience(gathered),
        used=_used_by_retries(retry),
    )
    decision = decide(facts, now)
    # Of revisions that were never applied nothing is remembered: they are nothing to go back to, and are not kept.
    used = {*facts.used, *(pod.revision for pod in pods), *({fleet.revision} if fleet else ())}
    return Plan(
        revision=revision,
        records=records,
        decision=replace(decision, prune=(*decision.prune, *sorted(strangers - used))),
        replicas=replicas,
        fleet=fleet,
        pods=pods,
        retry=retry,
    )


def _records(gathered: Gathered, wanted: Revision | None) -> tuple[dict[str, RevisionRecord], set[str]]:
    """What is on record of revisions; and the revisions whose records cannot be trusted: see `known_revisions`.

    Of the wanted one, which is rendered anew, only its standing is read.
    """
    names = [body["metadata"]["name"] for body in gathered.config_maps]
    records, strangers = dict[str, RevisionRecord](), set[str]()
    for body in gathered.config_maps:
        record = readings.read_revision(body, config_map_names=names)
        if record is None or body["metadata"]["name"] != naming.revision_config(gathered.key[1], record.hash):
            continue
        if (wanted is not None and record.hash == wanted.hash) or is_known(gathered.stateful_set, record):
            records[record.hash] = record
        else:
            strangers.add(record.hash)
    return records, strangers


def _plan_retry(gathered: Gathered, now: float, memory: RetryMemory) -> RetryPlan | None:
    if gathered.retry is None:
        return None
    changed = gathered.cluster is not None and cluster_id_changed(gathered.cluster, gathered.observation)
    facts = RetryFacts(
        group=gathered.group,
        intent=gathered.retry,
        published=gathered.published,
        observation=None if changed else gathered.observation,
        fleet=readings.read_fleet(gathered.retry_stateful_set),
        pods=tuple(readings.read_pod(pod, now) for pod in gathered.retry_workers),
        changed_at=changed_at_of(gathered.retry_stateful_set),
        memory=memory,
        stopped=changed or gathered.older is not None or gathered.group.spec.suspend,
        breaker_open=breaker_open(gathered),
        fed=gathered.feeds_retries,
        reached=all(readings.read_pod(pod).ready for pod in gathered.workers if has_retries({"spec": pod["spec"]})),
    )
    return plan_retry(facts, now)


def breaker_open(gathered: Gathered) -> bool | None:
    """Whether any worker has an open breaker; None while none says so and not all that have one could be asked."""
    if any(report.breaker_open for report in gathered.worker_reports):
        return True
    answered = {report.pod for report in gathered.worker_reports}
    running = (*(pod for pod in gathered.workers if has_retries({"spec": pod["spec"]})), *gathered.retry_workers)
    names = {pod["metadata"]["name"] for pod in running if readings.read_pod(pod).ready}
    return False if names <= answered else None


def _used_by_retries(retry: RetryPlan | None) -> frozenset[str]:
    """The revisions that retry workers run: they may lag behind the main ones, or outlive them."""
    if retry is None:
        return frozenset()
    fleet = {retry.fleet.revision} if retry.fleet else set()
    return frozenset(fleet | {pod.revision for pod in retry.pods})


def _patience(gathered: Gathered) -> float:
    """A new worker cannot join before the members that are there have come back for the rebalance."""
    observation = gathered.observation
    seen = observation.groups.get(gathered.group.group_id) if observation else None
    if seen is None or seen.state not in REBALANCING:
        return 0.0
    return float(gathered.group.spec.consumer.max_poll_interval_seconds)
