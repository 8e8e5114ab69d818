"""Reconciles Redrives: gathers facts, decides, and computes the status. The reconcile loop that all kinds of runs share
is in `reconcilers.run`."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from fleet_consumer.contract import naming
from fleet_consumer.contract.redrive_config import COUNTS
from fleet_operator.api.v1alpha1 import KafkaCluster, Redrive, conditions
from fleet_operator.api.v1alpha1.model import FINAL_PHASES
from fleet_operator.clients.kinds import CONSUMER_GROUP, JOB, POD, REDRIVE, JsonObject
from fleet_operator.planning.labels import COMPONENT_LABEL, GROUP_LABEL, REDRIVE_LABEL, label_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive import manifests, phase
from fleet_operator.planning.redrive.status import project_redrive_status
from fleet_operator.planning.run import Ahead, ReferencedGroup, RunDecision, read_job
from fleet_operator.planning.state.runs import RunState, digest_of
from fleet_operator.planning.status.facts import failed_topic_id
from fleet_operator.planning.status.retry import is_recorded
from fleet_operator.reconcilers.context import Context, is_owned_by, read_live
from fleet_operator.reconcilers.references import read_group
from fleet_operator.reconcilers.run import RunChildren, RunKind
from fleet_operator.reconcilers.run_memory import RunSummary, runs_of, summary_of_run
from fleet_operator.reconcilers.run_session import RunSession
from fleet_operator.runtime.cache import key_of

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 30.0
BLOCKING: Final = frozenset({conditions.MEMORY_LOST, conditions.REFUSED_BY_API_SERVER, conditions.GROUP_SUSPENDED})
"""Reasons that keep a Redrive from starting, but not the other Redrives of its group. An exception is GROUP_SUSPENDED:
while a Redrive has this reason, only dry runs may start."""
RECORDED_SECONDS: Final = 30.0
"""Interval in seconds at which an ended Redrive checks if its ConsumerGroup has recorded the result."""
UNRECORDED_SECONDS_MAX: Final = 3600.0
"""Time after which an ended Redrive no longer waits for its ConsumerGroup to record the result, because the failed
topic may have been deleted. The ConsumerGroup then only lacks the number of records that were put back. The next
Redrive determines this number."""


@dataclass(slots=True)
class Progressing:
    """A Redrive's newest progress, the time of the read (monotonic seconds), and the rate since the previous read."""

    progress: phase.RedriveProgress | None = None
    at: float = 0.0
    per_second: int | None = None

    def update(self, progress: phase.RedriveProgress | None, now: float) -> None:
        """Store new progress. `progress` is None while nothing has been committed."""
        if progress is None:
            return
        self.per_second = None
        if self.progress is not None and now > self.at:
            self.per_second = round(max(progress.moved - self.progress.moved, 0) / (now - self.at))
        self.progress, self.at = progress, now


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveStep:
    """A Redrive, its dependencies, and the decision about it. `now` is in epoch seconds."""

    body: JsonObject
    facts: phase.RedriveFacts
    decision: RunDecision
    referenced: ReferencedGroup
    child: JsonObject | None
    now: float

    def children(self) -> RunChildren:
        redrive, group, cluster = self.facts.redrive, self.referenced.group, self.referenced.cluster
        assert group is not None, "no Redrive starts without the ConsumerGroup"
        assert isinstance(cluster, KafkaCluster), "no Redrive starts without the KafkaCluster"
        assert self.referenced.seen is not None, "no Redrive starts before the Kafka cluster was observed"
        target = phase.target_of(group, self.referenced.seen)
        config = manifests.redrive_config(redrive, group, cluster, target, run_id=self.facts.run_id, now=self.now)
        return RunChildren(
            applied=(manifests.config_map(redrive, config),),
            run=manifests.job(redrive, group, cluster, image=self.referenced.image),
        )

    def refused(self, problem: Problem) -> Self:
        return replace(self, decision=RunDecision.from_problem("Pending", problem))


class Redrives(RunKind[Redrive, RedriveStep, Progressing]):
    """The steps of a reconcile that are specific to Redrives. A Redrive's progress is read in the background."""

    kind = REDRIVE
    model = Redrive
    memory = Progressing
    remembered = ("phase", "startedAt", "finishedAt", "failedTopicId", "redrivenTo")
    counted = (*COUNTS, "remaining", "ratePerSecond")

    def __init__(self, context: Context) -> None:
        self._context = context

    async def decided(
        self, session: RunSession[Progressing], body: JsonObject, run: Redrive, *, live: bool
    ) -> RedriveStep:
        """Gather facts and decide. All Jobs and pods of the group are read, but only Jobs and pods of Redrives
        count."""
        store, (namespace, name), of = self._context.store, key_of(body), run.spec.group_ref.name
        if live:
            selector = f"{GROUP_LABEL}={of},{COMPONENT_LABEL}={manifests.COMPONENT}"
            jobs, pods = [(await store.list(kind, namespace, selector)).items for kind in (JOB, POD)]
        else:
            jobs, pods = (store.cache(kind).having((namespace, of)) for kind in (JOB, POD))
        referenced = read_group(self._context, run.group_key)
        origin, cluster_id = self._origin(body, run), phase.accepted_cluster_id(referenced)
        topic_id = failed_topic_id(referenced.group, referenced.seen)
        job = await self._job(body, run, live=live)
        mine = [pod for pod in pods if label_of(pod, REDRIVE_LABEL) == name and phase.runs_by_job(pod)]
        facts = phase.RedriveFacts(
            redrive=run,
            origin=origin,
            obstacle=phase.find_obstacle(run, referenced, origin.cluster_id),
            refusal=phase.find_refusal(run),
            elsewhere=phase.find_other_cluster(run, origin, cluster_id, topic_id),
            cluster_id=cluster_id,
            failed_topic_id=topic_id,
            group_gone=referenced.gone,
            job=read_job(job),
            pods=phase.read_run_pods(mine, job_uid=job["metadata"]["uid"] if job else ""),
            ahead=self._ahead(body, jobs, pods),
        )
        now = self._context.clock.wall()
        return RedriveStep(
            body=body, facts=facts, decision=phase.decide(facts), referenced=referenced, child=job, now=now
        )

    async def _job(self, body: JsonObject, run: Redrive, *, live: bool) -> JsonObject | None:
        """Find the Redrive's Job by name; None if it does not exist. Raises KubeError.

        Labels do not identify the Job: other Jobs may have the same labels, and a Job that lost its labels is no longer
        watched. Therefore the Job of a run that has started is read live if the cache lacks it.
        """
        store, (namespace, redrive) = self._context.store, key_of(body)
        name = naming.redrive_job(redrive)
        seen = None if live else store.get(JOB, (namespace, name))
        if seen is None and (live or "startedAt" in run.status):
            return await read_live(store, body, JOB, name)
        return seen if seen is not None and is_owned_by(seen, body) else None

    async def remember(self, step: RedriveStep, status: JsonObject) -> JsonObject:
        origin = phase.origin_after(step.facts, step.decision)
        # Store only reasons that matter to other Redrives, because each change of a stored reason costs a write.
        reason = step.decision.reason if not step.decision.is_final and step.decision.reason in BLOCKING else None
        kept = {"clusterId": origin.cluster_id, "runId": origin.run_id, "reason": reason}
        return {name: value for name, value in kept.items() if value}

    def _origin(self, body: JsonObject, run: Redrive) -> phase.Origin:
        """The origin in a Redrive's state; empty if the state was stored for a namesake with a different spec."""
        state = self._context.states.read(body, RunState)
        kept = state.facts if state.digest == digest_of(run) else {}
        known = {name: value for name in ("clusterId", "runId") if isinstance(value := kept.get(name), str)}
        return phase.Origin(cluster_id=known.get("clusterId"), run_id=known.get("runId"))

    async def follow_up(self, session: RunSession[Progressing], step: RedriveStep) -> None:
        group, key = step.referenced.group, key_of(step.body)
        if step.decision.phase != "Running" or group is None:
            return
        cluster = (group.metadata.namespace, group.spec.cluster_ref.name)
        group_id = naming.redrive_group(group.group_id, step.facts.run_id)
        cluster_id = phase.origin_after(step.facts, step.decision).cluster_id

        def fail(error: Exception) -> None:
            fields = {"key": "/".join(key), "group": group_id, "error": str(error) or type(error).__name__}
            log.warning("progress of a redrive cannot be read", extra=fields)

        memory = session.memory
        session.ask(
            lambda: self._context.observers.change(cluster, cluster_id, lambda admin: admin.read_positions(group_id)),
            lambda positions: memory.update(phase.read_progress(positions), self._context.clock.monotonic()),
            fail,
            seconds=ANSWER_SECONDS,
        )

    def project(self, session: RunSession[Progressing], step: RedriveStep, now: float) -> JsonObject:
        seen = session.memory
        return project_redrive_status(step.facts, step.decision, seen.progress, seen.per_second, now)

    async def settle(self, session: RunSession[Progressing], body: JsonObject, run: Redrive) -> float:
        """Wait until the ConsumerGroup's state has recorded the result, for at most UNRECORDED_SECONDS_MAX. Queue the
        group, because the operator's own writes do not queue it."""
        referenced = read_group(self._context, run.group_key)
        topic_id = failed_topic_id(referenced.group, referenced.seen)
        recorded = referenced.group is not None and is_recorded(run.status, referenced.redriven, topic_id)
        if referenced.gone or recorded or session.since_end() >= UNRECORDED_SECONDS_MAX:
            return 0.0
        self._context.queues[CONSUMER_GROUP].add(run.group_key)
        return RECORDED_SECONDS

    def _ahead(self, body: JsonObject, jobs: list[JsonObject], pods: list[JsonObject]) -> Ahead | None:
        """The group's Redrives that run before this Redrive: first the Redrives that already run, then the Redrives
        that are older than this one and can run."""
        own = summary_of_run(body)
        runs = runs_of(self._context, REDRIVE, (key_of(body)[0], body["spec"]["groupRef"]["name"]))
        waiting = [run.name for run, known in runs if run < own and _wants_to_run(run, known, before=own)]
        return Ahead.from_names(name for name in (*phase.at_work(jobs, pods), *waiting) if name != own.name)


def _wants_to_run(run: RunSummary, known: Mapping[str, Any], *, before: RunSummary) -> bool:
    """True if the Redrive `before` must wait for the older Redrive `run`.

    This is so if `run` has not ended, is not suspended or being deleted, and has no reason in BLOCKING. If the reason
    is GROUP_SUSPENDED, only a dry run need not wait. Redrives that already run are found by their Jobs and pods, not
    here.
    """
    reason = known.get("reason")
    blocked = reason in BLOCKING and (reason != conditions.GROUP_SUSPENDED or before.dry_run)
    return not (known.get("phase") in FINAL_PHASES or run.suspended or run.deleting or blocked)
