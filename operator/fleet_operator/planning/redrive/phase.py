"""Next step of a Redrive: its phase, and the action on its Job. Pure.

Every decision depends only on objects in the API server (the Redrive, its Job and pods), so the operator may be killed
between any two calls. Two runs must never move records of one group at the same time, even if both belong to one
Redrive. Only at its start, a run reads which records earlier runs have moved. It would not notice records that another
run moves later. So a Job is created only when all pods of earlier runs have ended.

The Job is suspended in three cases. No retry workers would read the moved records, or another ConsumerGroup owns the
group id, or the KafkaCluster has a cluster id that was not accepted. Later, a new Job with the settings of that time
replaces the suspended Job. If the group has permanently moved to another Kafka cluster, the failed records of the
Redrive are out of reach, and the Redrive fails.

People may edit the objects, and anybody may write offset metadata. So an unreadable value is replaced by the safest
value, and never raises an exception.

Decision: docs/decisions/0018-redrive.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract import managed_topics, naming
from fleet_consumer.contract.redrive_config import COUNTS
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.api.v1alpha1.model import Phase
from fleet_operator.api.v1alpha1.redrive import Redrive
from fleet_operator.planning import run
from fleet_operator.planning.fleet.blocking import find_changed_id
from fleet_operator.planning.foreign_json import read_count, read_last_object, read_object
from fleet_operator.planning.labels import JOB_NAME_LABEL, REDRIVE_LABEL, label_of
from fleet_operator.planning.objects import has_owner
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.topics import managed_topic
from fleet_operator.planning.run import Act, Ahead, JobFacts, ReferencedGroup, RunDecision, RunState

HALTING: Final = frozenset({c.RETRY_NOT_CONFIGURED, c.GROUP_SUSPENDED, c.GROUP_ID_TAKEN, c.CLUSTER_ID_CHANGED})
"""Obstacles that suspend an active run. Other obstacles only prevent a start. For example, an active run can wait until
an unreachable cluster answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveProgress:
    """Counts of a Redrive's runs. `remaining`: number of offsets of the failed topic that are not read yet."""

    selected: int = 0
    moved: int = 0
    guarded: int = 0
    remaining: int = 0
    moved_before: int = 0
    failed_again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The report that a run writes as its last line. The report of a failed run (not `ok`) has only `reason` and
    `message`."""

    ok: bool
    counts: RedriveProgress = RedriveProgress()
    redriven_to: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPod:
    """A pod of a run. `waiting`: the reason why the pod does not run yet; `report`: None until the pod has reported."""

    name: str
    ended: bool = False
    report: JobReport | None = None
    waiting: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Kafka cluster and run id of a Redrive's first Job. Later Jobs must have the same cluster and run id. The origin
    is not part of the status."""

    cluster_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveFacts:
    """A Redrive and its dependencies.

    - `obstacle`: the reason why no run can start now. `refusal`: the reason why no run can ever start.
    - `elsewhere`: the reason why the records of a Redrive that has begun are permanently out of reach.
    - `group_gone`: the ConsumerGroup is being deleted or does not exist.
    - `ahead`: the Redrives of the same group that run before this one.
    - `cluster_id`, `failed_topic_id`: ids of the Kafka cluster and the failed topic at the newest poll; None while
      unknown.
    """

    redrive: Redrive
    origin: Origin = Origin()
    obstacle: Problem | None = None
    refusal: Problem | None = None
    elsewhere: Problem | None = None
    cluster_id: str | None = None
    failed_topic_id: str | None = None
    group_gone: bool = False
    job: JobFacts | None = None
    pods: tuple[RunPod, ...] = ()
    ahead: Ahead | None = None

    @property
    def started(self) -> bool:
        """True if a Job has been created for this Redrive."""
        return self.job is not None or "startedAt" in self.redrive.status

    @property
    def run_id(self) -> str:
        """Id under which progress is committed. It is the uid that the Redrive had when its first Job was created. If
        the Redrive was recreated since, its own uid is different."""
        return self.origin.run_id or self.redrive.metadata.uid

    @property
    def halted(self) -> bool:
        """True if an obstacle suspends even an active run."""
        return self.obstacle is not None and self.obstacle.reason in HALTING

    @property
    def report(self) -> JobReport | None:
        """The newest report of a run; `pods` are in the order of their creation."""
        return next((pod.report for pod in reversed(self.pods) if pod.report is not None), None)


def decide(facts: RedriveFacts) -> RunDecision:
    """Decide the next step of a Redrive that has not ended. The first rule that applies wins."""
    job = facts.job
    if job is not None and job.state is RunState.COMPLETE:
        return _succeeded(facts)
    if job is not None and job.state is RunState.FAILED:
        return RunDecision.from_problem("Failed", _failure(facts, job))
    if facts.refusal is not None:
        return RunDecision.from_problem("Failed", facts.refusal, run.removal(job))
    if facts.group_gone and facts.started:
        name = facts.redrive.spec.group_ref.name
        message = f"ConsumerGroup {name!r} was deleted; the records moved so far stay moved"
        return RunDecision("Cancelled", c.GROUP_DELETED, message, run.removal(job))
    if facts.elsewhere is not None:
        return RunDecision.from_problem("Failed", facts.elsewhere, run.removal(job))
    if job is not None and not job.deleting and job.rate != facts.redrive.rate:
        phase: Phase = "Paused" if facts.redrive.spec.suspend else "Running"
        return RunDecision(phase, c.RATE_CHANGED, "the Job is being replaced by one with the new rate", Act.DELETE)
    if facts.redrive.spec.suspend:
        return RunDecision("Paused", c.SUSPENDED, "spec.suspend is true", run.suspension(job))
    if facts.halted and facts.started:
        assert facts.obstacle is not None, "a halted Redrive has an obstacle"
        message = f"{facts.obstacle.message}; no record is moved now, and records moved so far stay moved"
        return RunDecision("Paused", facts.obstacle.reason, message, run.suspension(job))
    if job is not None and job.at_work:
        return _running(facts)
    return _start(facts)


def _start(facts: RedriveFacts) -> RunDecision:
    """Decide for a Redrive that should run and has no active run."""
    if facts.obstacle is not None:
        return RunDecision.from_problem("Pending", facts.obstacle)
    left = next((pod.name for pod in facts.pods if not pod.ended), None)
    if left is not None or (facts.job is not None and facts.job.deleting):
        message = f"waiting for pod {left} of the last run to end" if left else "waiting for the last Job to be deleted"
        return RunDecision("Running" if facts.started else "Pending", c.WAITING_FOR_LAST_RUN, message)
    if facts.ahead is not None:
        message = f"Redrives of one group run one at a time: waiting for Redrive {facts.ahead.name!r}"
        return RunDecision("Pending", c.ANOTHER_REDRIVE_RUNS, message, place=facts.ahead.count)
    if facts.job is not None:
        # The suspended Job's settings may be outdated, for example the connection or the topic's partition count.
        message = "the suspended Job is being replaced by one with the present settings"
        return RunDecision("Running", c.WAITING_FOR_LAST_RUN, message, Act.DELETE)
    return RunDecision("Running", c.RUNNING, _progress(facts), Act.CREATE)


def origin_after(facts: RedriveFacts, decision: RunDecision) -> Origin:
    """Return the origin to store. The origin is stored when the first Job is created. It is stored later if the
    operator died before it could store it, or if an earlier version of the operator, which stored no origin, created
    the Job. A stored origin is never removed."""
    if decision.act is not Act.CREATE and facts.job is None:
        return facts.origin
    return Origin(cluster_id=facts.origin.cluster_id or facts.cluster_id, run_id=facts.run_id)


def _running(facts: RedriveFacts) -> RunDecision:
    """Return the decision while a Job runs. A pod that does not run is reported, because it moves no records."""
    waiting = next((pod.waiting for pod in facts.pods if pod.waiting is not None and not pod.ended), None)
    if waiting is not None:
        return RunDecision("Running", c.POD_NOT_RUNNING, f"{waiting.reason}: {waiting.message}")
    return RunDecision("Running", c.RUNNING, _progress(facts))


def _succeeded(facts: RedriveFacts) -> RunDecision:
    if facts.redrive.spec.dry_run:
        message = "every failed record in range was checked, none was moved (dry run)"
        return RunDecision("Succeeded", c.ALL_COUNTED, message)
    report = facts.report
    if report is not None and report.ok and report.counts.moved < report.counts.selected:
        refused = report.counts.selected - report.counts.moved
        message = (
            f"{refused} selected records were refused by the redrive topic and stay in the failed topic; the Job's log "
            "names them"
        )
        return RunDecision("Succeeded", c.SOME_REFUSED, message)
    if report is None:
        message = (
            "every failed record in range was checked; the run's own counts are no longer available, see the Job's log"
        )
        return RunDecision("Succeeded", c.ALL_MOVED, message)
    return RunDecision("Succeeded", c.ALL_MOVED, "every selected record was moved and acknowledged")


def _failure(facts: RedriveFacts, job: JobFacts) -> Problem:
    """Return the error that the run reported or, without one, the Job controller's error."""
    remedy = "fix the cause and create another Redrive, which continues where this one stopped"
    report = facts.report
    if report is not None and not report.ok and report.reason:
        return Problem(report.reason, f"{report.message}: {remedy}")
    if job.problem is not None:
        return Problem(c.JOB_FAILED, f"{job.problem.reason}: {job.problem.message}: {remedy}")
    return Problem(c.JOB_FAILED, f"the Job failed and gave no reason, see its log: {remedy}")


def _progress(facts: RedriveFacts) -> str:
    doing = "counting" if facts.redrive.spec.dry_run else "moving"
    rate = facts.redrive.rate
    return f"{doing} failed records" + (f", at most {rate} per second" if rate is not None else "")


def read_run_pods(pods: Iterable[Mapping[str, Any]], *, job_uid: str) -> tuple[RunPod, ...]:
    """Parse pods, sorted by creation time. Only pods of the Job with this uid are read completely. Other pods may
    belong to a deleted Redrive of the same name; only their name and end are read."""
    ordered = sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]))
    return tuple(_read_run_pod(pod, job_uid) for pod in ordered)


def runs_by_job(pod: Mapping[str, Any]) -> bool:
    """True if a Job created this pod, even if the pod's owner reference is gone. Other pods with a Redrive's label move
    no records."""
    metadata = pod["metadata"]
    owned = any(owner.get("kind") == "Job" for owner in metadata.get("ownerReferences") or ())
    return owned or label_of(pod, JOB_NAME_LABEL) is not None


def at_work(jobs: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of Redrives that may be writing, because their Job may create a pod at any time or one of their pods has
    not ended. Such a Redrive may already be deleted. A Job counts only if its name also matches the Redrive. A label
    alone proves nothing, because labels are easily copied."""
    named = [
        job
        for job in jobs
        if (of := label_of(job, REDRIVE_LABEL)) and job["metadata"]["name"] == naming.redrive_job(of)
    ]
    active = [job for job in named if (read := run.read_job(job)) is not None and read.state is RunState.ACTIVE]
    busy = (*active, *(pod for pod in pods if runs_by_job(pod) and not _read_run_pod(pod, "").ended))
    return tuple(name for child in busy if (name := label_of(child, REDRIVE_LABEL)))


def _read_run_pod(pod: Mapping[str, Any], job_uid: str) -> RunPod:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    ended = status.get("phase") in ("Succeeded", "Failed")
    if not has_owner(pod, job_uid):
        return RunPod(name=name, ended=ended)
    if not ended:
        return RunPod(name=name, waiting=run.read_waiting(status))
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    terminated = (container.get("state") or {}).get("terminated") or {}
    return RunPod(name=name, ended=True, report=_report(terminated.get("message") or ""))


def _report(text: str) -> JobReport | None:
    found = read_last_object(text)
    if found is None or not isinstance(found.get("ok"), bool):
        return None
    return JobReport(
        ok=found["ok"],
        counts=RedriveProgress(**{field: read_count(found, name) for name, field in COUNTS.items()}),
        redriven_to=read_count(found, "redrivenTo") if "redrivenTo" in found else None,
        reason=str(found.get("reason") or ""),
        message=str(found.get("message") or ""),
    )


def read_progress(commits: Iterable[tuple[int, str]]) -> RedriveProgress | None:
    """Sum the counts in all partitions' `commits` (pairs of offset and metadata); None before the first commit."""
    counts = dict.fromkeys(COUNTS.values(), 0)
    remaining, known = 0, False
    for offset, metadata in commits:
        # librdkafka commits metadata with the zero byte that terminates the string.
        found = read_object(metadata.rstrip("\0"))
        if found is None:
            continue
        known = True
        for name, field in COUNTS.items():
            counts[field] += read_count(found, name)
        remaining += max(read_count(found, "end") - offset, 0)
    return RedriveProgress(**counts, remaining=remaining) if known else None


@dataclass(frozen=True, slots=True)
class Target:
    """The redrive topic of a run. `append_times`: True if the brokers set the timestamps in the failed topic
    (LogAppendTime), or if it is unknown who sets them. False if the workers set them because the topic could not be
    configured."""

    partitions: int
    max_message_bytes: int
    append_times: bool = True


def find_refusal(redrive: Redrive) -> Problem | None:
    """Return the first error in the spec that makes every run impossible; None without one. The API server may have
    accepted the spec with this error. The error is final, because the spec is immutable."""
    chosen = redrive.spec.filter
    if chosen is None:
        return None
    remedy = "create another Redrive"
    return (
        run.refuse_pattern("spec.filter.errorRegex", chosen.error_regex, remedy)
        or run.refuse_pattern("spec.filter.keyRegex", chosen.key_regex, remedy)
        or run.refuse_time("spec.filter.fromTime", chosen.from_time, c.FILTER_REFUSED, remedy)
        or run.refuse_time("spec.filter.toTime", chosen.to_time, c.FILTER_REFUSED, remedy)
    )


def accepted_cluster_id(found: ReferencedGroup) -> str | None:
    """The id of the group's Kafka cluster; None while the id is unknown or differs from the id recorded for the
    KafkaCluster."""
    seen = found.seen
    if not isinstance(found.cluster, KafkaCluster) or seen is None or find_changed_id(found.cluster, seen):
        return None
    return seen.cluster_id if seen.identified else None


def find_other_cluster(
    redrive: Redrive, origin: Origin, cluster_id: str | None, failed_topic_id: str | None
) -> Problem | None:
    """The reason why a Redrive's records are permanently out of reach; None without one. `cluster_id` and
    `failed_topic_id`: the present ids."""
    group = redrive.spec.group_ref.name
    remedy = "the records moved so far stay moved; create another Redrive to move the others"
    if None in (cluster_id, origin.cluster_id):
        return None
    if cluster_id != origin.cluster_id:
        message = (
            f"the Redrive began on Kafka cluster {origin.cluster_id}, and ConsumerGroup {group!r} is now on Kafka "
            f"cluster {cluster_id}, which has other failed records; {remedy}"
        )
        return Problem(c.RANGE_LOST, message)
    began_in = redrive.status.get("failedTopicId")
    if not redrive.spec.records or None in (began_in, failed_topic_id) or began_in == failed_topic_id:
        return None
    message = (
        f"the failed topic of ConsumerGroup {group!r} was deleted and created again, and has other records at the "
        f"offsets in spec.records; {remedy}"
    )
    return Problem(c.RANGE_LOST, message)


def find_obstacle(redrive: Redrive, found: ReferencedGroup, began_on: str | None = None) -> Problem | None:
    """The first reason why no run can start now; None if a run can start. `began_on`: the cluster id of the first Job;
    None before the first Job."""
    name, group = redrive.spec.group_ref.name, found.group
    if group is None:
        return run.no_group(redrive, found)
    if group.spec.retry is None:
        message = (
            f"ConsumerGroup {name!r} has no spec.retry, so no retry workers would handle the records put back: "
            "name a RetryPolicy in spec.retry"
        )
        return Problem(c.RETRY_NOT_CONFIGURED, message)
    if group.spec.suspend and not redrive.spec.dry_run:
        message = (
            f"ConsumerGroup {name!r} has spec.suspend: true, so no retry workers would handle the records put "
            "back: set spec.suspend to false"
        )
        return Problem(c.GROUP_SUSPENDED, message)
    cluster = run.find_group_obstacle("Redrive", group, found)
    if isinstance(cluster, Problem):
        return cluster
    begun = "startedAt" in redrive.status
    memory_gap = run.find_memory_gap(redrive, found, "create another Redrive", begun=begun)
    obstacle = run.find_connection_obstacle(cluster, found.seen) or memory_gap or _unidentified(began_on, found)
    return obstacle if obstacle is not None or found.seen is None else _topics_problem(group, found.seen)


def _unidentified(began_on: str | None, found: ReferencedGroup) -> Problem | None:
    """The problem that the cluster id is unknown although a first Job was created; None without this problem. The next
    Job might otherwise run on another Kafka cluster than the first Job."""
    if began_on is None or accepted_cluster_id(found) is not None:
        return None
    message = f"the Redrive began on Kafka cluster {began_on}, and the id of the present cluster is not known yet"
    return Problem(c.NOT_YET_OBSERVED, message)


def _topics_problem(group: ConsumerGroup, seen: ClusterObservation) -> Problem | None:
    for topic in (naming.failed_topic(group.group_id), naming.redrive_topic(group.group_id)):
        found = seen.topics.get(topic)
        if found is None or found.error is not None:
            error = found.error if found is not None else c.NOT_YET_OBSERVED
            message = f"topic {topic} cannot be used yet ({error}): see the condition TopicsReady of the ConsumerGroup"
            return Problem(c.TOPICS_NOT_READY, message)
    return None


def target_of(group: ConsumerGroup, seen: ClusterObservation) -> Target:
    """Return the observed redrive topic of a group without an obstacle."""
    name = naming.redrive_topic(group.group_id)
    observed = seen.groups.get(group.group_id)
    retry = observed.retry if observed is not None else None
    source = retry.source_max_message_bytes if retry is not None else None
    limit = (managed_topic(retry, name).configs or {}).get(managed_topics.SIZE, "")
    failed = managed_topic(retry, naming.failed_topic(group.group_id))
    kind = (failed.configs or {}).get(managed_topics.TIMESTAMPS, managed_topics.APPEND_TIME)
    assumed = (source or managed_topics.SOURCE_BYTES_DEFAULT) + managed_topics.HEADERS_BYTES_MAX
    return Target(
        partitions=seen.topics[name].partitions,
        append_times=kind == managed_topics.APPEND_TIME,
        max_message_bytes=int(limit) if limit.isdigit() else assumed,
    )
