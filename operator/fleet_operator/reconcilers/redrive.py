"""Redrives: what is gathered for one, what is decided, and its status. `reconcilers.run` has the reconcile itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.redrive_config import COUNTS
from fleet_operator.api.v1alpha1 import KafkaCluster, Redrive, conditions
from fleet_operator.api.v1alpha1.conditions import RUN_CONDITIONS
from fleet_operator.api.v1alpha1.model import FINAL_PHASES
from fleet_operator.clients.kinds import CONSUMER_GROUP, JOB, POD, REDRIVE, JsonObject
from fleet_operator.planning.labels import COMPONENT_LABEL, GROUP_LABEL, REDRIVE_LABEL, label_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive import manifests
from fleet_operator.planning.redrive.phase import (
    Origin,
    RedriveFacts,
    RedriveProgress,
    accepted_cluster_id,
    at_work,
    decide,
    find_obstacle,
    find_other_cluster,
    find_refusal,
    origin_after,
    read_progress,
    read_run_pods,
    runs_by_job,
    target_of,
)
from fleet_operator.planning.redrive.status import project_redrive_status
from fleet_operator.planning.run import Ahead, ReferencedGroup, RunDecision, read_job
from fleet_operator.planning.state.runs import RunState, digest_of
from fleet_operator.planning.status.facts import failed_topic_id
from fleet_operator.planning.status.retry import is_noted
from fleet_operator.reconcilers.context import Context, is_owned_by, read_live
from fleet_operator.reconcilers.references import read_group
from fleet_operator.reconcilers.run import RunChildren
from fleet_operator.reconcilers.run_memory import RunSummary, runs_of, summary_of_run
from fleet_operator.reconcilers.run_session import RunSession
from fleet_operator.runtime.cache import key_of

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 30.0
STANDING: Final = frozenset({conditions.MEMORY_LOST, conditions.REFUSED_BY_API_SERVER, conditions.GROUP_SUSPENDED})
"""Reasons why one Redrive cannot begin, and another one of its group can: for the last one if that is a dry run."""
NOTED_SECONDS: Final = 30.0
"""The interval at which a Redrive is reconciled that has ended before its ConsumerGroup has noted what it found."""
UNNOTED_SECONDS_MAX: Final = 3600.0
"""Time after which nobody waits for that any more: the failed topic may be gone for good, and is then never seen again.
All that is lost is how many of its records were put back, which the next Redrive finds as well."""


@dataclass(slots=True)
class Progressing:
    """The newest progress of a Redrive, read at this time (monotonic seconds), and its pace since the one before."""

    progress: RedriveProgress | None = None
    at: float = 0.0
    per_second: int | None = None

    def take(self, progress: RedriveProgress | None, now: float) -> None:
        """Take in what was read; None while nothing is committed."""
        if progress is None:
            return
        self.per_second = None
        if self.progress is not None and now > self.at:
            self.per_second = round(max(progress.moved - self.progress.moved, 0) / (now - self.at))
        self.progress, self.at = progress, now


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveStep:
    """A Redrive, what it depends on, and the decision about it. `now` is in epoch seconds."""

    body: JsonObject
    facts: RedriveFacts
    decision: RunDecision
    referenced: ReferencedGroup
    child: JsonObject | None
    now: float

    def children(self) -> RunChildren:
        redrive, group, cluster = self.facts.redrive, self.referenced.group, self.referenced.cluster
        assert group is not None, "a Redrive without its group has an obstacle"
        assert isinstance(cluster, KafkaCluster), "a Redrive without its cluster has an obstacle"
        assert self.referenced.seen is not None, "a Redrive whose cluster was never seen has an obstacle"
        target = target_of(group, self.referenced.seen)
        config = manifests.redrive_config(redrive, group, cluster, target, run_id=self.facts.run_id, now=self.now)
        return RunChildren(
            applied=(manifests.config_map(redrive, config),),
            run=manifests.job(redrive, group, cluster, image=self.referenced.image),
        )

    def refused(self, problem: Problem) -> RedriveStep:
        return replace(self, decision=RunDecision.of("Pending", problem))


class Redrives:
    """All Redrives, as a `RunKind`; their progress is read from Kafka in the background."""

    kind = REDRIVE
    model = Redrive
    conditions = RUN_CONDITIONS
    finalizer = ""
    memory = Progressing
    remembered = ("phase", "startedAt", "finishedAt", "failedTopicId", "redrivenTo")
    counted = (*COUNTS, "remaining", "ratePerSecond")

    def __init__(self, context: Context) -> None:
        self._context = context

    async def decided(
        self, session: RunSession[Progressing], body: JsonObject, run: Redrive, *, live: bool
    ) -> RedriveStep:
        """Jobs and pods are those of the group; only what belongs to Redrives counts."""
        store, (namespace, name), of = self._context.store, key_of(body), run.spec.group_ref.name
        if live:
            selector = f"{GROUP_LABEL}={of},{COMPONENT_LABEL}={manifests.COMPONENT}"
            jobs, pods = [(await store.list(kind, namespace, selector)).items for kind in (JOB, POD)]
        else:
            jobs, pods = (store.cache(kind).having((namespace, of)) for kind in (JOB, POD))
        referenced = read_group(self._context, run.group_key)
        origin, cluster_id = self._origin(body, run), accepted_cluster_id(referenced)
        topic_id = failed_topic_id(referenced.group, referenced.seen)
        job = await self._job(body, run, live=live)
        mine = [pod for pod in pods if label_of(pod, REDRIVE_LABEL) == name and runs_by_job(pod)]
        facts = RedriveFacts(
            redrive=run,
            origin=origin,
            obstacle=find_obstacle(run, referenced, origin.cluster_id),
            refusal=find_refusal(run),
            elsewhere=find_other_cluster(run, origin, cluster_id, topic_id),
            cluster_id=cluster_id,
            failed_topic_id=topic_id,
            group_gone=referenced.gone,
            job=read_job(job),
            pods=read_run_pods(mine, job_uid=job["metadata"]["uid"] if job else ""),
            ahead=self._ahead(body, jobs, pods),
        )
        now = self._context.clock.wall()
        return RedriveStep(body=body, facts=facts, decision=decide(facts), referenced=referenced, child=job, now=now)

    async def _job(self, body: JsonObject, run: Redrive, *, live: bool) -> JsonObject | None:
        """The Job, by its name. Raises KubeError.

        Others may have its labels, and it may have lost them: then no watch shows it, so that of a run that has begun
        is read live where the cache lacks it.
        """
        store, (namespace, redrive) = self._context.store, key_of(body)
        name = naming.redrive_job(redrive)
        seen = None if live else store.get(JOB, (namespace, name))
        if seen is None and (live or "startedAt" in run.status):
            return await read_live(store, body, JOB, name)
        return seen if seen is not None and is_owned_by(seen, body) else None

    async def remember(self, step: RedriveStep, status: JsonObject) -> JsonObject:
        origin = origin_after(step.facts, step.decision)
        # Of all reasons only those that others go by, or each change of another one would be a write.
        reason = step.decision.reason if not step.decision.is_final and step.decision.reason in STANDING else None
        kept = {"clusterId": origin.cluster_id, "runId": origin.run_id, "reason": reason}
        return {name: value for name, value in kept.items() if value}

    def _origin(self, body: JsonObject, run: Redrive) -> Origin:
        """The origin as remembered; nothing of that of a namesake that did something else."""
        state = self._context.states.read(body, RunState)
        kept = state.facts if state.digest == digest_of(run) else {}
        known = {name: value for name in ("clusterId", "runId") if isinstance(value := kept.get(name), str)}
        return Origin(cluster_id=known.get("clusterId"), run_id=known.get("runId"))

    async def follow_up(self, session: RunSession[Progressing], step: RedriveStep) -> None:
        """Have the progress of one at work read, for the next reconcile."""
        group, key = step.referenced.group, key_of(step.body)
        if step.decision.phase != "Running" or group is None:
            return
        cluster = (group.metadata.namespace, group.spec.cluster_ref.name)
        group_id = naming.redrive_group(group.group_id, step.facts.run_id)
        cluster_id = origin_after(step.facts, step.decision).cluster_id

        def fail(error: Exception) -> None:
            fields = {"key": "/".join(key), "group": group_id, "error": str(error) or type(error).__name__}
            log.warning("progress of a redrive cannot be read", extra=fields)

        memory = session.memory
        session.ask(
            lambda: self._context.observers.change(cluster, cluster_id, lambda admin: admin.read_positions(group_id)),
            lambda positions: memory.take(read_progress(positions), self._context.clock.monotonic()),
            fail,
            seconds=ANSWER_SECONDS,
        )

    def project(self, session: RunSession[Progressing], step: RedriveStep, now: float) -> JsonObject:
        seen = session.memory
        return project_redrive_status(step.facts, step.decision, seen.progress, seen.per_second, now)

    async def settle(self, session: RunSession[Progressing], body: JsonObject, run: Redrive) -> float:
        """Wait a while until the findings are in the state of the ConsumerGroup, where they count from then on.

        Nothing brings the group back for them: what the operator wrote is no event for it.
        """
        referenced = read_group(self._context, run.group_key)
        topic_id = failed_topic_id(referenced.group, referenced.seen)
        noted = referenced.group is not None and is_noted(run.status, referenced.redriven, topic_id)
        if referenced.gone or noted or session.since_end() >= UNNOTED_SECONDS_MAX:
            return 0.0
        self._context.queues[CONSUMER_GROUP].add(run.group_key)
        return NOTED_SECONDS

    def _ahead(self, body: JsonObject, jobs: list[JsonObject], pods: list[JsonObject]) -> Ahead | None:
        """The Redrives that go before this one: those at work, and the older ones that want to be."""
        own = summary_of_run(body)
        runs = runs_of(self._context, REDRIVE, (key_of(body)[0], body["spec"]["groupRef"]["name"]))
        waiting = [run.name for run, known in runs if run < own and _wants_to_run(run, known, before=own)]
        return Ahead.of(name for name in (*at_work(jobs, pods), *waiting) if name != own.name)


def _wants_to_run(run: RunSummary, known: Mapping[str, Any], *, before: RunSummary) -> bool:
    """True if a Redrive is to have its turn before this other one, which it has not if only others can begin.

    Whether it is at work all the same is seen from its Job and pods.
    """
    reason = known.get("reason")
    stands = reason in STANDING and (reason != conditions.GROUP_SUSPENDED or before.dry_run)
    return not (known.get("phase") in FINAL_PHASES or run.suspended or run.deleting or stands)
