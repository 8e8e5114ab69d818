"""Runs: one-time work for a ConsumerGroup, most of it done by Jobs or Spark applications. Pure.

People may edit the objects, so an unreadable value raises no exception: the most cautious value is used instead.
"""

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
from fleet_operator.planning.fleet.blocking import find_changed_id, find_unproven_connection
from fleet_operator.planning.fleet.pod_template import SETTINGS_VOLUME, pod_template, serve_nothing
from fleet_operator.planning.fleet.pod_wait import pod_condition
from fleet_operator.planning.labels import BACKFILL_LABEL, RATE_ANNOTATION, REDRIVE_LABEL, REVISION_ANNOTATION
from fleet_operator.planning.objects import Owner, child_head
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import OffsetsState, Redriven

NO_LIMIT: Final = "unlimited"
UNREADABLE_RATE: Final = -1
"""A rate that no spec can have. A Job whose rate annotation is damaged gets this rate, and is therefore replaced."""
LASTING_PHASES: Final = frozenset({"Succeeded", "Failed", "Committing"})
"""Phases of a run that is never started again, even if its object is recreated."""


class RunState(Enum):
    ACTIVE = "Active"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Act(Enum):
    """The next action on a run's Job or Spark application. Only Jobs are suspended."""

    NOTHING = "Nothing"
    CREATE = "Create"
    SUSPEND = "Suspend"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class RunDecision:
    """The phase of a run, and the next action. `place`: the number of the group's runs that go before this run."""

    phase: Phase
    reason: str
    message: str
    act: Act = Act.NOTHING
    place: int = field(default=0, kw_only=True)

    @classmethod
    def from_problem(cls, phase: Phase, problem: Problem, act: Act = Act.NOTHING) -> Self:
        return cls(phase, problem.reason, problem.message, act)

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL_PHASES

    @property
    def is_recorded_first(self) -> bool:
        """True if the decision must be recorded before it is carried out, because the next step relies on the
        record."""
        return False


@dataclass(frozen=True, slots=True)
class Ahead:
    """The runs of the same group that go before a run: the name of the first one, and the number of these runs."""

    name: str
    count: int

    @classmethod
    def from_names(cls, names: Iterable[str]) -> Self | None:
        """Create the value from the names of runs in their order; None without names."""
        order = list(dict.fromkeys(names))
        return cls(order[0], len(order)) if order else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencedGroup:
    """The ConsumerGroup to which a run refers, with everything that decisions about the run need.

    - `gone`: the ConsumerGroup is being deleted or does not exist. `unreadable`: the reason why it cannot be read.
    - `seen`: the newest observation of its `cluster`.
    - `older`: the claim of another ConsumerGroup that owns the Kafka group.
    - `redriven`: the result of the group's Redrives.
    - `offsets`: a section of the group's state. It has the time at which the operator's memory of the group began, by
      the operator's clock. `memory_made_at`: the same time by the API server's clock, in epoch seconds.
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
    """A run's Job. `rate`: limit in records per second; None without a limit. `problem`: the reason why the Job
    failed."""

    state: RunState
    rate: int | None = None
    deleting: bool = False
    problem: Problem | None = None

    @property
    def at_work(self) -> bool:
        """True if the Job may create pods and is not being deleted."""
        return self.state is RunState.ACTIVE and not self.deleting


def suspension(job: JobFacts | None) -> Act:
    return Act.SUSPEND if job is not None and job.at_work else Act.NOTHING


def removal(job: JobFacts | None) -> Act:
    return Act.DELETE if job is not None and not job.deleting else Act.NOTHING


def no_group(run: RunResource, found: ReferencedGroup) -> Problem:
    if found.unreadable is None:
        return group_not_found(run)
    name = run.group_key[1]
    message = f"ConsumerGroup {name!r} cannot be read, see its condition Ready: {found.unreadable.message}"
    return Problem(c.GROUP_INVALID, message)


def group_not_found(run: RunResource) -> Problem:
    namespace, name = run.group_key
    return Problem(c.GROUP_NOT_FOUND, f"ConsumerGroup {name!r} is not in namespace {namespace!r}: create it there")


MEMORY_MARGIN_S: Final = 600.0
"""For this many seconds after the start of a group's memory, a backup that is being restored may still recreate runs
that were done earlier."""


def find_memory_gap(run: RunResource, found: ReferencedGroup, remedy: str, *, begun: bool) -> Problem | None:
    """The problem that a run may have been done before, because it may be older than the operator's memory of its
    group. None if it certainly has not been done.

    A run that has `begun` is in the memory. Until the group's first observation, it is unknown if the group had commits
    before the memory began."""
    offsets, created = found.offsets, times.from_text(run.metadata.creation_timestamp)
    group = f"ConsumerGroup {run.spec.group_ref.name!r}"
    if begun or created is None:
        return None
    if offsets.began is None or offsets.inherited is None:
        return Problem(c.NOT_YET_OBSERVED, f"the Kafka group of {group} has not been observed with all its topics yet")
    # `offsets.began` is a time of the operator's clock; `created` is a time of the API server's clock.
    began = max(offsets.began, found.memory_made_at or 0.0)
    if not offsets.inherited or created > began + MEMORY_MARGIN_S:
        return None
    message = (
        f"the operator's memory of {group} began at {times.to_text(began)}, when the group already had commits,"
        f" so this {type(run).__name__} may have been done earlier: {remedy}"
    )
    return Problem(c.MEMORY_LOST, message)


def find_group_obstacle(kind: str, group: ConsumerGroup, found: ReferencedGroup) -> KafkaCluster | Problem:
    """Return the group's KafkaCluster or, if a run of this kind cannot start now, the first problem of the group that
    prevents the start."""
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
    return find_changed_id(cluster, found.seen) or cluster


def find_connection_obstacle(cluster: KafkaCluster, seen: ClusterObservation | None) -> Problem | None:
    """The reason why a run cannot use the KafkaCluster; None if the brokers answer on the KafkaCluster's present
    connection."""
    unproven = find_unproven_connection(cluster, seen, moved=False)
    if unproven is not None or seen is None or seen.reachable:
        return unproven
    return Problem(seen.reason or c.BROKER_UNREACHABLE, seen.message)


def run_conditions(
    decision: RunDecision, obstacle: Problem | None, *, unready: Collection[str], available: str
) -> tuple[Condition, Condition, Condition]:
    """The conditions Ready, Complete and Failed. `unready`: reasons that make Ready False. `available`: the message of
    Ready while everything that the run needs exists.

    Ready stays True after the run has succeeded. As in a Job, Complete and Failed are never both True; once the run has
    ended, exactly one of them is True."""
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
    """The status of a run that was edited after its end: only the reconciled generation changes."""
    renewed = [{**condition, "observedGeneration": generation} for condition in status.get("conditions") or ()]
    return {**status, "observedGeneration": generation, "conditions": renewed}


LABELS: Final = {"Redrive": REDRIVE_LABEL, "Backfill": BACKFILL_LABEL}
"""Labels of a run's children, keyed by the run's kind. The label's value is the name of the run."""


def run_labels(run: RunResource, component: str) -> dict[str, str]:
    """Labels of a run's child. They include the group's labels, so that one watch delivers the pods of groups and of
    runs."""
    own = {LABELS[type(run).__name__]: run.metadata.name}
    return {**labels.child_labels(run.spec.group_ref.name, component), **own}


def run_head(api_version: str, kind: str, run: RunResource, name: str) -> dict[str, Any]:
    """Build the type, name, labels and owner reference of a run's child. The component label has the kind of the
    run."""
    of = type(run).__name__
    owner = Owner(of, run.metadata.namespace, run.metadata.name, run.metadata.uid)
    return child_head(api_version, kind, name, owner=owner, labels=run_labels(run, of.lower()))


def run_config_map(run: RunResource, name: str, data: Mapping[str, str]) -> dict[str, Any]:
    return {**run_head("v1", "ConfigMap", run, name), "data": dict(data)}


def run_pod(
    run: RunResource, group: ConsumerGroup, cluster: KafkaCluster, component: str, arguments: list[str], *, image: str
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Build the pod of a run: the worker's pod with another command. Return the pod template, the worker container, and
    the sources of the settings volume, of which only the credentials are kept."""
    template = pod_template(group, cluster, handler_keys=None, image=image)
    metadata, spec = template["metadata"], template["spec"]
    metadata["annotations"].pop(REVISION_ANNOTATION)
    metadata["labels"] |= run_labels(run, component)
    settings = next(volume for volume in spec["volumes"] if volume["name"] == SETTINGS_VOLUME)["projected"]
    settings["sources"] = [copy.deepcopy(source) for source in settings["sources"] if "configMap" not in source]
    return template, serve_nothing(spec, arguments), settings["sources"]


def refuse_pattern(field: str, text: str | None, remedy: str) -> Problem | None:
    try:
        if text is not None:
            compile_pattern(text)
    except PatternRefused as refused:
        return Problem(c.FILTER_REFUSED, f"{field}: {refused}; {remedy}")
    return None


def refuse_time(field: str, text: str | None, reason: str, remedy: str) -> Problem | None:
    """The problem that a string is not a time; None if it is absent or a time. The CRD already refuses most invalid
    strings."""
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
    """The reason why a pod does not run although it has not ended. None if the pod runs or is starting normally."""
    container: Mapping[str, Any] = next(iter(pod_status.get("containerStatuses") or ()), {})
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason and reason not in ("ContainerCreating", "PodInitializing"):
        return Problem(reason, waiting.get("message", "") or "no message")
    scheduled = pod_condition(pod_status, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    return Problem(scheduled.get("reason") or "Unschedulable", scheduled.get("message") or "no message")


def _rate(text: str | None) -> int | None:
    if text == NO_LIMIT:
        return None
    return int(text) if text is not None and text.isascii() and text.isdigit() else UNREADABLE_RATE
