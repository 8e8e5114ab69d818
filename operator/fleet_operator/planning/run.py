"""Runs: what is done once for a ConsumerGroup, most of it by Jobs or Spark applications. Pure.

Objects may have been touched by people: a value that cannot be read becomes the cautious one, never an exception.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self

from fleet_consumer.contract.patterns import PatternRefused, compile_pattern
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.api.v1alpha1.model import FINAL_PHASES, PAUSED_ANNOTATION, Phase, RunResource
from fleet_operator.planning import labels, times
from fleet_operator.planning.claims import Claim
from fleet_operator.planning.fleet.blocking import changed_id_message, cluster_id_changed, find_unproven_connection
from fleet_operator.planning.fleet.pod_template import SETTINGS_VOLUME, pod_template, serve_nothing
from fleet_operator.planning.labels import BACKFILL_LABEL, RATE_ANNOTATION, REDRIVE_LABEL, REVISION_ANNOTATION
from fleet_operator.planning.objects import Owner, child_head
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import OffsetsState, Redriven

NO_LIMIT: Final = "unlimited"
UNREADABLE_RATE: Final = -1
"""No rate that can be asked for, so that a Job whose annotation is damaged is replaced."""


LASTING_PHASES: Final = frozenset({"Succeeded", "Failed", "Committing"})
"""Phases of a run that is never begun again."""


class RunState(Enum):
    """The state of a run's Job."""

    ACTIVE = "Active"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Act(Enum):
    """The one thing to do about a run's Job or application; only Jobs are suspended."""

    NOTHING = "Nothing"
    CREATE = "Create"
    SUSPEND = "Suspend"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class RunDecision:
    """The phase, why, in a sentence, and what to do. `place` counts the runs of the group that go before this one."""

    phase: Phase
    reason: str
    message: str
    act: Act = Act.NOTHING
    place: int = field(default=0, kw_only=True)

    @classmethod
    def of(cls, phase: Phase, problem: Problem, act: Act = Act.NOTHING) -> Self:
        return cls(phase, problem.reason, problem.message, act)

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL_PHASES

    @property
    def is_noted_first(self) -> bool:
        """True if the next step rests on what is remembered of this decision."""
        return False

    @property
    def is_lasting(self) -> bool:
        """True if the run is never begun again, also where its object is made again."""
        return self.phase in LASTING_PHASES


@dataclass(frozen=True, slots=True)
class Ahead:
    """The run of the same group whose turn it is, and the number of those that go before this one."""

    name: str
    count: int

    @classmethod
    def of(cls, names: Iterable[str]) -> Self | None:
        """Those with these names, in their order; None without any."""
        order = list(dict.fromkeys(names))
        return cls(order[0], len(order)) if order else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencedGroup:
    """A ConsumerGroup, its KafkaCluster, the newest observation `seen`, and an older claim on the Kafka group.

    `gone`: the object is being deleted or does not exist. `group` is None then, and while `unreadable` says why.
    `cluster` is None without a group. `image` is the group's worker image, `redriven` what its Redrives have found.
    `offsets` tells from when on the operator knows what was done, by its own clock, and `memory_made_at` by the API
    server's.
    """

    gone: bool = False
    unreadable: Problem | None = None
    group: ConsumerGroup | None = None
    cluster: KafkaCluster | Problem | None = None
    seen: ClusterObservation | None = None
    older: Claim | None = None
    image: str = ""
    redriven: Redriven | None = None
    offsets: OffsetsState = field(default_factory=OffsetsState)
    memory_made_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The Job; `rate` is the limit that it was made with, `problem` why it failed."""

    state: RunState
    rate: int | None = None
    deleting: bool = False
    problem: Problem | None = None

    @property
    def at_work(self) -> bool:
        """True if it may make pods and is meant to."""
        return self.state is RunState.ACTIVE and not self.deleting


def suspension(job: JobFacts | None) -> Act:
    """Stop a Job from making pods, if one does."""
    return Act.SUSPEND if job is not None and job.at_work else Act.NOTHING


def removal(job: JobFacts | None) -> Act:
    return Act.DELETE if job is not None and not job.deleting else Act.NOTHING


def no_group(run: RunResource, found: ReferencedGroup) -> Problem:
    """The reason why a run has no ConsumerGroup to work for."""
    if found.unreadable is None:
        return group_not_found(run)
    name = run.group_key[1]
    message = f"ConsumerGroup {name!r} cannot be read, see its condition Ready: {found.unreadable.message}"
    return Problem(c.GROUP_INVALID, message)


def group_not_found(run: RunResource) -> Problem:
    namespace, name = run.group_key
    return Problem(c.GROUP_NOT_FOUND, f"ConsumerGroup {name!r} is not in namespace {namespace!r}: create it there")


DOUBTED_S: Final = 600.0
"""Time after the beginning of a group's memory in which a restore may still bring back what was done before it."""


def find_doubt(run: RunResource, found: ReferencedGroup, remedy: str, *, begun: bool) -> Problem | None:
    """The reason why nobody knows that a run was not done before: it may be older than the memory of its group. One
    that has `begun` is remembered itself.

    Until the group was observed for the first time, it is not known whether its memory is younger than its commits.
    """
    offsets, created = found.offsets, times.from_text(run.metadata.creation_timestamp)
    group = f"ConsumerGroup {run.spec.group_ref.name!r}"
    if begun or created is None:
        return None
    if offsets.began is None or offsets.inherited is None:
        return Problem(c.NOT_YET_OBSERVED, f"the Kafka group of {group} was not observed with all its topics yet")
    # Times of the operator and of the API server are not the same clock's; runs have the latter's.
    began = max(offsets.began, found.memory_made_at or 0.0)
    if not offsets.inherited or created > began + DOUBTED_S:
        return None
    message = (
        f"the operator's memory of {group} began at {times.to_text(began)}, when the group had commits already,"
        f" so nobody knows that this {type(run).__name__} was not done before that: {remedy}"
    )
    return Problem(c.MEMORY_LOST, message)


def find_group_obstacle(kind: str, group: ConsumerGroup, found: ReferencedGroup) -> KafkaCluster | Problem:
    """The first reason in a ConsumerGroup why no run of this kind can be started now, else its KafkaCluster."""
    cluster, older = found.cluster, found.older
    if group.paused:
        message = (
            f"ConsumerGroup {group.metadata.name!r} has the annotation {PAUSED_ANNOTATION}, so the operator starts "
            "nothing for it: remove the annotation"
        )
        return Problem(c.PAUSED_BY_ANNOTATION, message)
    assert cluster is not None, "a ConsumerGroup names a KafkaCluster"
    if isinstance(cluster, Problem):
        return cluster
    if older is not None:
        message = (
            f"Kafka group {older.group_id!r} belongs to ConsumerGroup {older.namespace}/{older.name}: "
            f"create the {kind} there"
        )
        return Problem(c.GROUP_ID_TAKEN, message)
    if cluster_id_changed(cluster, found.seen):
        return Problem(c.CLUSTER_ID_CHANGED, changed_id_message(cluster, found.seen))
    return cluster


def find_connection_obstacle(cluster: KafkaCluster, seen: ClusterObservation | None) -> Problem | None:
    """The reason why a cluster cannot be worked on now, or None, for one that was seen with its present connection."""
    unproven = find_unproven_connection(cluster, seen, moved=False)
    if unproven is not None or seen is None or seen.reachable:
        return unproven
    return Problem(seen.reason or c.BROKER_UNREACHABLE, seen.message)


def run_conditions(
    decision: RunDecision, obstacle: Problem | None, *, unready: Collection[str], available: str
) -> tuple[Condition, Condition, Condition]:
    """Ready, Complete and Failed. `unready` are reasons under which it is not Ready, `available` what is there for it.

    Ready: all that a run needs exists; one that has ended needs nothing. Of the others, as a Job has them, at most one
    is True, and exactly one of a run that has ended.
    """
    said, done = (decision.reason, decision.message), decision.phase == "Succeeded"
    if done:
        ready = Condition(c.READY, "True", *said)
    elif decision.phase in ("Failed", "Cancelled", "Pending") or decision.reason in unready:
        ready = Condition(c.READY, "False", *said)
    elif decision.phase == "Paused" and obstacle is not None:
        ready = Condition(c.READY, "False", obstacle.reason, obstacle.message)
    else:
        ready = Condition(c.READY, "True", c.READY_TO_RUN, available)
    return (
        ready,
        Condition(c.COMPLETE, "True" if done else "False", *said),
        Condition(c.FAILED, "True" if decision.is_final and not done else "False", *said),
    )


def renew_final_status(status: Mapping[str, Any], generation: int) -> dict[str, Any]:
    """The status of a run that has ended and was edited since: nothing but the generation that was looked at."""
    renewed = [{**condition, "observedGeneration": generation} for condition in status.get("conditions") or ()]
    return {**status, "observedGeneration": generation, "conditions": renewed}


LABELS: Final = {"Redrive": REDRIVE_LABEL, "Backfill": BACKFILL_LABEL}
"""The label by which children name their run, by the kind of the run."""


def run_labels(run: RunResource, component: str) -> dict[str, str]:
    """Labels of a run's child: the group's too, so that one watch of pods delivers both."""
    own = {LABELS[type(run).__name__]: run.metadata.name}
    return {**labels.child_labels(run.spec.group_ref.name, component), **own}


def run_head(api_version: str, kind: str, run: RunResource, name: str) -> dict[str, Any]:
    """Type, name, labels and owner of a run's child; its component is the kind of the run."""
    of = type(run).__name__
    owner = Owner(of, run.metadata.namespace, run.metadata.name, run.metadata.uid)
    return child_head(api_version, kind, name, owner=owner, labels=run_labels(run, of.lower()))


def run_config_map(run: RunResource, name: str, data: Mapping[str, str]) -> dict[str, Any]:
    return {**run_head("v1", "ConfigMap", run, name), "data": dict(data)}


def run_pod(
    run: RunResource, group: ConsumerGroup, cluster: KafkaCluster, component: str, arguments: list[str], *, image: str
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The worker's pod with another command: same account, credentials, placement and environment.

    Returns its template, its container, and the sources of its settings, of which only the credentials are left.
    """
    template = pod_template(group, cluster, handler_keys=None, image=image)
    metadata, spec = template["metadata"], template["spec"]
    metadata["annotations"].pop(REVISION_ANNOTATION)
    metadata["labels"] |= run_labels(run, component)
    settings = next(volume for volume in spec["volumes"] if volume["name"] == SETTINGS_VOLUME)["projected"]
    settings["sources"] = [copy.deepcopy(source) for source in settings["sources"] if "configMap" not in source]
    return template, serve_nothing(spec, arguments), settings["sources"]


def refuse_pattern(field: str, text: str | None, remedy: str) -> Problem | None:
    """The problem of a regular expression that cannot be used."""
    try:
        if text is not None:
            compile_pattern(text)
    except PatternRefused as refused:
        return Problem(c.FILTER_REFUSED, f"{field}: {refused}; {remedy}")
    return None


def refuse_time(field: str, text: str | None, reason: str, remedy: str) -> Problem | None:
    """The problem of a text that should be a time; the CRD refuses those that it recognizes."""
    if text is None or times.from_text(text) is not None:
        return None
    return Problem(reason, f"{field}: {text!r} is not a time (RFC 3339); {remedy}")


def rate_text(rate: int | None) -> str:
    return NO_LIMIT if rate is None else str(rate)


def read_job(body: Mapping[str, Any] | None) -> JobFacts | None:
    if body is None:
        return None
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    held = {entry["type"]: entry for entry in status.get("conditions") or () if entry.get("status") == "True"}
    state, problem = RunState.ACTIVE, None
    if "Complete" in held:
        state = RunState.COMPLETE
    elif "Failed" in held:
        state, failure = RunState.FAILED, held["Failed"]
        problem = Problem(failure.get("reason") or "Failed", failure.get("message") or "no message")
    elif spec.get("suspend"):
        state = RunState.SUSPENDED
    rate = _rate(labels.annotation_of(body, RATE_ANNOTATION))
    return JobFacts(state=state, rate=rate, deleting="deletionTimestamp" in metadata, problem=problem)


def read_waiting(pod_status: Mapping[str, Any]) -> Problem | None:
    """The reason why a pod that has not ended does not run yet; None while it runs or starts normally."""
    container: Mapping[str, Any] = next(iter(pod_status.get("containerStatuses") or ()), {})
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason and reason not in ("ContainerCreating", "PodInitializing"):
        return Problem(reason, waiting.get("message", "") or "no message")
    for condition in pod_status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Problem(condition.get("reason") or "Unschedulable", condition.get("message") or "no message")
    return None


def _rate(text: str | None) -> int | None:
    if text == NO_LIMIT:
        return None
    return int(text) if text is not None and text.isascii() and text.isdigit() else UNREADABLE_RATE
