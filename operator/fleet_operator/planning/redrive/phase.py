"""Next step of a Redrive: its phase, and the one thing to do about its Job. Pure.

Everything is judged from what is there (the object, its Job, pods), so it does not matter between which two calls an
operator was killed. Two runs must never move records at the same time, neither of one Redrive nor of two Redrives of
one group: each reads the ledger when it starts, and would not see what the other moves after that. So a Job is made
only when no pod of any earlier run is left.

Nor may a run go on when nobody reads the records that it moves, or when they are another group's: its Job is suspended,
and replaced by one with the settings of then once the reason is gone. Where the group has moved to another Kafka
cluster for good, the records are others than those that were to be moved, and the Redrive ends.

Objects may have been touched by people, and metadata of offsets is a text that anybody may write: what cannot be read
becomes the cautious value, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import (
    APPEND_TIME,
    HEADERS_BYTES_MAX,
    SIZE,
    SOURCE_BYTES_DEFAULT,
    TIMESTAMPS,
)
from fleet_consumer.contract.redrive_config import COUNTS
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.api.v1alpha1.model import Phase
from fleet_operator.api.v1alpha1.redrive import Redrive
from fleet_operator.planning.fleet.blocking import cluster_id_changed
from fleet_operator.planning.foreign_json import read_count, read_last_object, read_object
from fleet_operator.planning.labels import JOB_NAME_LABEL, REDRIVE_LABEL, label_of
from fleet_operator.planning.objects import has_owner
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import (
    Act,
    Ahead,
    JobFacts,
    ReferencedGroup,
    RunDecision,
    RunState,
    find_connection_obstacle,
    find_doubt,
    find_group_obstacle,
    no_group,
    read_job,
    read_waiting,
    refuse_pattern,
    refuse_time,
    removal,
    suspension,
)

HALTING: Final = frozenset({c.RETRY_NOT_CONFIGURED, c.GROUP_SUSPENDED, c.GROUP_ID_TAKEN, c.CLUSTER_ID_CHANGED})
"""Obstacles that suspend a run which is under way. The others only keep one from being started: a run deals itself with
a cluster that does not answer, for instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveProgress:
    """Progress of a Redrive, by its own count; `remaining` are offsets of the failed topic not looked at yet."""

    selected: int = 0
    moved: int = 0
    guarded: int = 0
    remaining: int = 0
    moved_before: int = 0
    failed_again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The last line of a run; of one that failed only `reason` and `message` are set, and no `redriven_to`."""

    ok: bool
    counts: RedriveProgress = RedriveProgress()
    redriven_to: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPod:
    """A pod of a run; `waiting` is why it does not run yet."""

    name: str
    ended: bool = False
    report: JobReport | None = None
    waiting: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Facts of a Redrive's first Job that bind the later ones: the id of its Kafka cluster and that of the run, None
    while unknown. They are remembered, and not shown."""

    cluster_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveFacts:
    """A Redrive and what it depends on.

    `obstacle` is why no run could be started now; `refusal` why there can never be one; `elsewhere` why there can be no
    further one; `group_gone` that the ConsumerGroup is being deleted or is no more; `ahead`: the Redrives of the same
    group that go first. `failed_topic_id` is that of the failed topic at the newest look, `cluster_id` that of the
    Kafka cluster if it is known to be the group's; None while unknown.
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
        """True if a run was ever created."""
        return self.job is not None or "startedAt" in self.redrive.status

    @property
    def run_id(self) -> str:
        """The id under which progress is committed: the uid of the object as it was at the first Job, for an object may
        take the place of a namesake in the middle."""
        return self.origin.run_id or self.redrive.metadata.uid

    @property
    def halted(self) -> bool:
        """True if no run may be under way, whatever the spec says."""
        return self.obstacle is not None and self.obstacle.reason in HALTING

    @property
    def report(self) -> JobReport | None:
        """The last word of the newest run that left one; pods come in the order of their making."""
        return next((pod.report for pod in reversed(self.pods) if pod.report is not None), None)


def decide(facts: RedriveFacts) -> RunDecision:
    """The next step of a Redrive that has not ended. The first rule that applies wins."""
    job = facts.job
    if job is not None and job.state is RunState.COMPLETE:
        return _succeeded(facts)
    if job is not None and job.state is RunState.FAILED:
        return RunDecision.of("Failed", _failure(facts, job))
    if facts.refusal is not None:
        return RunDecision.of("Failed", facts.refusal, removal(job))
    if facts.group_gone and facts.started:
        name = facts.redrive.spec.group_ref.name
        message = f"ConsumerGroup {name!r} was deleted; the records moved so far stay moved"
        return RunDecision("Cancelled", c.GROUP_DELETED, message, removal(job))
    if facts.elsewhere is not None:
        return RunDecision.of("Failed", facts.elsewhere, removal(job))
    if job is not None and not job.deleting and job.rate != facts.redrive.rate:
        phase: Phase = "Paused" if facts.redrive.spec.suspend else "Running"
        return RunDecision(phase, c.RATE_CHANGED, "the Job is being replaced by one with the new rate", Act.DELETE)
    if facts.redrive.spec.suspend:
        return RunDecision("Paused", c.SUSPENDED, "spec.suspend is true", suspension(job))
    if facts.halted and facts.started:
        assert facts.obstacle is not None, "an obstacle halts it"
        message = f"{facts.obstacle.message}; no record is moved until then, and those moved so far stay moved"
        return RunDecision("Paused", facts.obstacle.reason, message, suspension(job))
    if job is not None and job.at_work:
        return _running(facts)
    return _start(facts)


def _start(facts: RedriveFacts) -> RunDecision:
    """A run is wanted and there is none, or only a suspended one."""
    if facts.obstacle is not None:
        return RunDecision.of("Pending", facts.obstacle)
    left = next((pod.name for pod in facts.pods if not pod.ended), None)
    if left is not None or (facts.job is not None and facts.job.deleting):
        message = f"waiting for pod {left} of the last run to end" if left else "waiting for the last Job to be deleted"
        return RunDecision("Running" if facts.started else "Pending", c.WAITING_FOR_LAST_RUN, message)
    if facts.ahead is not None:
        message = f"Redrives of one group take turns: waiting for Redrive {facts.ahead.name!r}"
        return RunDecision("Pending", c.ANOTHER_REDRIVE_RUNS, message, place=facts.ahead.count)
    if facts.job is not None:
        # Its settings may be of another time: of another connection, or of a topic that had another size.
        message = "the suspended Job is being replaced by one with the present settings"
        return RunDecision("Running", c.WAITING_FOR_LAST_RUN, message, Act.DELETE)
    return RunDecision("Running", c.RUNNING, _progress(facts), Act.CREATE)


def origin_after(facts: RedriveFacts, decision: RunDecision) -> Origin:
    """The origin to remember. It is not forgotten, and noted late if the operator of the first Job ended before it
    could note it, or was of an earlier version."""
    if decision.act is not Act.CREATE and facts.job is None:
        return facts.origin
    return Origin(cluster_id=facts.origin.cluster_id or facts.cluster_id, run_id=facts.run_id)


def _running(facts: RedriveFacts) -> RunDecision:
    """A Job is at work. A pod that cannot start is reported: no record is moved meanwhile."""
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
    """The run's own error where it left one, else the Job controller's."""
    remedy = "fix the cause and create another Redrive, which continues where this one stopped"
    report = facts.report
    if report is not None and not report.ok and report.reason:
        return Problem(report.reason, f"{report.message}: {remedy}")
    if job.problem is not None:
        return Problem(c.JOB_FAILED, f"{job.problem.reason}: {job.problem.message}: {remedy}")
    return Problem(c.JOB_FAILED, f"the Job failed without a reason, see its log: {remedy}")


def _progress(facts: RedriveFacts) -> str:
    doing = "counting" if facts.redrive.spec.dry_run else "moving"
    rate = facts.redrive.rate
    return f"{doing} failed records" + (f", at most {rate} in a second" if rate is not None else "")


def read_run_pods(pods: Iterable[Mapping[str, Any]], *, job_uid: str) -> tuple[RunPod, ...]:
    """Pods of a Redrive's runs, in the order of their making.

    Only those of the Job with this uid have a say: others may belong to a deleted Redrive of the same name.
    """
    ordered = sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]))
    return tuple(_read_run_pod(pod, job_uid) for pod in ordered)


def runs_by_job(pod: Mapping[str, Any]) -> bool:
    """True if a Job has made this pod, also where it has lost its owner since. Any other pod with our labels moves
    nothing."""
    metadata = pod["metadata"]
    owned = any(owner.get("kind") == "Job" for owner in metadata.get("ownerReferences") or ())
    return owned or label_of(pod, JOB_NAME_LABEL) is not None


def at_work(jobs: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The Redrives that may be writing: their Job may make a pod at any time, or a pod of theirs has not ended.

    A Redrive need not exist any more. Its Job is known by its name: labels are easily copied.
    """
    named = [
        job
        for job in jobs
        if (of := label_of(job, REDRIVE_LABEL)) and job["metadata"]["name"] == naming.redrive_job(of)
    ]
    active = [job for job in named if (read := read_job(job)) is not None and read.state is RunState.ACTIVE]
    busy = (*active, *(pod for pod in pods if runs_by_job(pod) and not _read_run_pod(pod, "").ended))
    return tuple(name for child in busy if (name := label_of(child, REDRIVE_LABEL)))


def _read_run_pod(pod: Mapping[str, Any], job_uid: str) -> RunPod:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    ended = status.get("phase") in ("Succeeded", "Failed")
    if not has_owner(pod, job_uid):
        return RunPod(name=name, ended=ended)
    if not ended:
        return RunPod(name=name, waiting=read_waiting(status))
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
    """The counts of all partitions together, from the offset and the metadata of each commit; None before the first."""
    counts = dict.fromkeys(COUNTS.values(), 0)
    remaining, known = 0, False
    for offset, metadata in commits:
        # librdkafka commits the zero byte at the end of its strings as well.
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
    """The redrive topic of a run: its number of partitions, and the largest record that it takes.

    `append_times`: records of the failed topic have the brokers' times, as far as is known. Where nobody may set that,
    they have those of the workers that wrote them.
    """

    partitions: int
    max_message_bytes: int
    append_times: bool = True


def find_refusal(redrive: Redrive) -> Problem | None:
    """The reason why an immutable spec can never be carried out, where the CRD cannot refuse it."""
    chosen = redrive.spec.filter
    if chosen is None:
        return None
    remedy = "create another Redrive"
    return (
        refuse_pattern("spec.filter.errorRegex", chosen.error_regex, remedy)
        or refuse_pattern("spec.filter.keyRegex", chosen.key_regex, remedy)
        or refuse_time("spec.filter.fromTime", chosen.from_time, c.FILTER_REFUSED, remedy)
        or refuse_time("spec.filter.toTime", chosen.to_time, c.FILTER_REFUSED, remedy)
    )


def accepted_cluster_id(found: ReferencedGroup) -> str | None:
    """The id of the Kafka cluster that a group works on; None while unknown, and while another cluster answers than the
    KafkaCluster was made for."""
    seen = found.seen
    if not isinstance(found.cluster, KafkaCluster) or seen is None or cluster_id_changed(found.cluster, seen):
        return None
    return seen.cluster_id if seen.identified else None


def find_other_cluster(
    redrive: Redrive, origin: Origin, cluster_id: str | None, failed_topic_id: str | None
) -> Problem | None:
    """The reason why the records that a Redrive was to move are out of reach for good, or None. The ids are those of
    now, None while unknown."""
    group, remedy = redrive.spec.group_ref.name, "the records moved so far stay moved: create another Redrive"
    if None in (cluster_id, origin.cluster_id):
        return None
    if cluster_id != origin.cluster_id:
        message = (
            f"the Redrive began on Kafka cluster {origin.cluster_id}, and ConsumerGroup {group!r} is on Kafka cluster "
            f"{cluster_id} now, whose failed records are others; {remedy}"
        )
        return Problem(c.RANGE_LOST, message)
    began_in = redrive.status.get("failedTopicId")
    if not redrive.spec.records or None in (began_in, failed_topic_id) or began_in == failed_topic_id:
        return None
    message = (
        f"the failed topic of ConsumerGroup {group!r} was created again, and the offsets in spec.records are other "
        f"records there; {remedy}"
    )
    return Problem(c.RANGE_LOST, message)


def find_obstacle(redrive: Redrive, found: ReferencedGroup, began_on: str | None = None) -> Problem | None:
    """The first reason why no run can be started now, or None; of one that began on the Kafka cluster with this id."""
    name, group = redrive.spec.group_ref.name, found.group
    if group is None:
        return no_group(redrive, found)
    if group.spec.retry is None:
        message = (
            f"ConsumerGroup {name!r} has no spec.retry, so no retry workers would handle the records put back: "
            "name a RetryPolicy in spec.retry"
        )
        return Problem(c.RETRY_NOT_CONFIGURED, message)
    if group.spec.suspend and not redrive.spec.dry_run:
        message = (
            f"ConsumerGroup {name!r} has spec.suspend: true, so no retry workers would handle the records put "
            "back: set it to false"
        )
        return Problem(c.GROUP_SUSPENDED, message)
    cluster = find_group_obstacle("Redrive", group, found)
    if isinstance(cluster, Problem):
        return cluster
    begun = "startedAt" in redrive.status
    doubt = find_doubt(redrive, found, "create another Redrive", begun=begun)
    obstacle = find_connection_obstacle(cluster, found.seen) or doubt or _unidentified(began_on, found)
    return obstacle if obstacle is not None or found.seen is None else _topics_problem(group, found.seen)


def _unidentified(began_on: str | None, found: ReferencedGroup) -> Problem | None:
    """The reason why nobody knows that a Redrive's next Job would be on the cluster of its first one."""
    if began_on is None or accepted_cluster_id(found) is not None:
        return None
    message = f"the Redrive began on Kafka cluster {began_on}, and the id of the present one is not known yet"
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
    """The redrive topic as it is; only for a group without an obstacle."""
    name = naming.redrive_topic(group.group_id)
    observed = seen.groups.get(group.group_id)
    retry = observed.retry if observed is not None else None
    source = retry.source_max_message_bytes if retry is not None else None
    managed = retry.topics.get(name) if retry is not None else None
    limit = ((managed.configs or {}) if managed is not None else {}).get(SIZE, "")
    failed = retry.topics.get(naming.failed_topic(group.group_id)) if retry is not None else None
    kind = ((failed.configs or {}) if failed is not None else {}).get(TIMESTAMPS, APPEND_TIME)
    return Target(
        partitions=seen.topics[name].partitions,
        append_times=kind == APPEND_TIME,
        max_message_bytes=int(limit) if limit.isdigit() else (source or SOURCE_BYTES_DEFAULT) + HEADERS_BYTES_MAX,
    )
