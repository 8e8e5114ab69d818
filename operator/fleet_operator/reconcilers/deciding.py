"""From what was gathered to what should be done: calls to the planners, in order. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_operator.planning import readings
from fleet_operator.planning.blocking import find_blocking_problem, wanted_replicas
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.revision import Revision, plan_revision
from fleet_operator.planning.rollout import FleetFacts, PodFacts, RevisionRecord, RolloutDecision, RolloutFacts, decide
from fleet_operator.planning.status_facts import ConsumerGroupFacts
from fleet_operator.reconcilers.gathering import Gathered

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a reconcile is going to do. `revision` is None when the spec cannot become one."""

    revision: Revision | None
    records: dict[str, RevisionRecord]
    decision: RolloutDecision
    replicas: int
    fleet: FleetFacts | None
    pods: tuple[PodFacts, ...]

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
            workers=gathered.accounts,
            refusal=refusal,
            topic_problem=topic_problem,
        )


def make_plan(gathered: Gathered, now: float, *, image: str) -> Plan:
    """The plan for what was gathered; `image` is the worker image where the spec names none."""
    group, cluster = gathered.group, gathered.cluster
    problem = find_blocking_problem(
        group,
        cluster,
        older=gathered.older,
        handler_files=gathered.handler_files,
        observation=gathered.observation,
    )
    revision = None
    if problem is None and cluster is not None:
        revision = plan_revision(group, cluster, handler_files=gathered.handler_files, image=image)
    replicas = wanted_replicas(group, cluster, gathered.observation)
    names = [body["metadata"]["name"] for body in gathered.config_maps]
    read = [readings.read_revision(body, config_map_names=names) for body in gathered.config_maps]
    records = {record.hash: record for record in read if record is not None}
    fleet = readings.read_fleet(gathered.stateful_set)
    pods = tuple(readings.read_pod(pod) for pod in gathered.workers)
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
    )
    return Plan(
        revision=revision, records=records, decision=decide(facts, now), replicas=replicas, fleet=fleet, pods=pods
    )


def _patience(gathered: Gathered) -> float:
    """A new worker cannot join before the members that are there have come back for the rebalance."""
    observation = gathered.observation
    seen = observation.groups.get(gathered.group.group_id) if observation else None
    if seen is None or seen.state not in REBALANCING:
        return 0.0
    return float(gathered.group.spec.consumer.max_poll_interval_seconds)
