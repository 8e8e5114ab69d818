"""Parsers of cluster objects (dicts from the API server) into the facts of a rollout.

The module `manifests` writes the annotations and fields that are read here. People may edit the objects, so an
unreadable value raises no exception: the parser uses the most cautious value instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from fleet_consumer.contract.pod import EXIT_SETTINGS
from fleet_operator.planning import labels
from fleet_operator.planning.fleet.pod_end import ContainerEnd, last_end
from fleet_operator.planning.fleet.pod_wait import container_statuses, find_wait, native_sidecars, pod_condition
from fleet_operator.planning.fleet.rollout_facts import CheckFacts, FleetFacts, PodFacts, RevisionRecord
from fleet_operator.planning.foreign_json import read_last_object, read_object
from fleet_operator.planning.state.group import RevisionVerdict

POD_TEMPLATE_KEY: Final = "pod-template.json"

CHECK_FAILED: Final = "CheckFailed"
INIT_CONTAINER_FAILED: Final = "InitContainerFailed"


def read_revision(
    config_map: Mapping[str, Any], verdicts: Mapping[str, RevisionVerdict], *, config_map_names: Iterable[str]
) -> RevisionRecord | None:
    """Parse a revision's ConfigMap; None if it records no revision or is being deleted. `verdicts`: the verdicts of all
    revisions, keyed by hash. `config_map_names`: the names of all ConfigMaps of the group. They show if the copy of the
    handler's source is missing."""
    metadata = config_map.get("metadata", {})
    annotations = metadata.get("annotations") or {}
    revision = annotations.get(labels.REVISION_ANNOTATION, "")
    template = read_object((config_map.get("data") or {}).get(POD_TEMPLATE_KEY))
    if not revision or template is None or metadata.get("deletionTimestamp"):
        return None
    handler = annotations.get(labels.HANDLER_ANNOTATION, "")
    complete = not handler or handler in set(config_map_names)
    return with_verdict(revision, verdicts.get(revision), complete=complete, pod_template=template)


def with_verdict(revision: str, verdict: RevisionVerdict | None, **found: Any) -> RevisionRecord:
    """Build a revision's record. `verdict` is None before the first verdict. `found`: the record's other fields."""
    known = verdict or RevisionVerdict()
    return RevisionRecord(hash=revision, **{each.name: getattr(known, each.name) for each in fields(known)}, **found)


def read_check(pod: Mapping[str, Any]) -> CheckFacts:
    """Parse a check pod. The check's result is JSON, in the last line of the worker's termination message.

    The check ends when the worker's container ends. The pod may still run then, because of containers that an admission
    webhook added."""
    metadata, status = pod.get("metadata", {}), pod.get("status") or {}
    named = (each for each in status.get("containerStatuses") or () if each.get("name") == labels.CONTAINER)
    worker: Mapping[str, Any] = next(named, {})
    ended = (worker.get("state") or {}).get("terminated") or {}
    phase = status.get("phase", "Pending")
    facts = CheckFacts(
        pod=metadata.get("name", ""),
        revision=(metadata.get("annotations") or {}).get(labels.REVISION_ANNOTATION, ""),
        uid=metadata.get("uid", ""),
        deleting="deletionTimestamp" in metadata,
    )
    if not ended and phase not in ("Succeeded", "Failed"):
        reason, message = _waiting(status)
        started = "running" in (worker.get("state") or {})
        return replace(facts, started=started, reason=reason, message=message, waits=find_wait(pod))
    report = read_last_object(ended.get("message", ""))
    exit_code = ended.get("exitCode")
    succeeded = exit_code == 0 if ended else phase == "Succeeded"
    if succeeded and (report is None or report.get("ok") is True):
        return replace(facts, ok=True)
    failed_first = None if ended else _failed_init(pod, status)
    if failed_first is not None:
        report = {"reason": INIT_CONTAINER_FAILED, "message": f"init {failed_first}"}
    elif report is None or not report.get("reason"):
        report = {"reason": CHECK_FAILED, "message": _unexplained(status, ended)}
    return replace(
        facts,
        ok=False,
        outside=exit_code != EXIT_SETTINGS,
        reason=str(report["reason"]),
        message=str(report.get("message", "")),
    )


def read_fleet(stateful_set: Mapping[str, Any] | None) -> FleetFacts | None:
    """Parse the StatefulSet; None if it does not exist or is being deleted."""
    if stateful_set is None or stateful_set.get("metadata", {}).get("deletionTimestamp"):
        return None
    metadata, spec = stateful_set["metadata"], stateful_set.get("spec", {})
    status = stateful_set.get("status") or {}
    return FleetFacts(
        revision=(metadata.get("annotations") or {}).get(labels.REVISION_ANNOTATION, ""),
        replicas=spec.get("replicas", 1),
        observed=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
        current_replicas=status.get("replicas", 0),
        updated_replicas=_updated_replicas(status),
        ready_replicas=status.get("readyReplicas", 0),
        available_replicas=status.get("availableReplicas", 0),
    )


def read_pod(pod: Mapping[str, Any], now: float | None = None) -> PodFacts:
    """Parse a worker's pod. A pod without a Ready condition is not ready. Without `now`, recent deaths of containers
    are ignored."""
    metadata, status = pod.get("metadata", {}), pod.get("status") or {}
    name = metadata.get("name", "")
    tail = name.rpartition("-")[2]
    is_ready = pod_condition(status, "Ready").get("status") == "True"
    reason, message = ("", "") if is_ready else _waiting(status)
    ended = None if now is None else last_end(status)
    return PodFacts(
        name=name,
        revision=(metadata.get("annotations") or {}).get(labels.REVISION_ANNOTATION, ""),
        ordinal=int(tail) if tail.isdigit() else -1,
        uid=metadata.get("uid", ""),
        ready=is_ready,
        deleting="deletionTimestamp" in metadata,
        reason=reason,
        message=message,
        waits=None if is_ready else find_wait(pod),
        ended=ended if ended is not None and now is not None and ended.is_recent(now) else None,
    )


def _updated_replicas(status: Mapping[str, Any]) -> int:
    """The number of pods with the newest template. Once all pods are updated, the controller makes `currentRevision`
    equal to `updateRevision`. Some versions then drop `updatedReplicas` and count the pods in `currentReplicas`."""
    settled = status.get("updateRevision") is not None and status.get("currentRevision") == status.get("updateRevision")
    counted: int = status.get("updatedReplicas", 0)
    return max(counted, status.get("currentReplicas", 0)) if settled else counted


def _waiting(status: Mapping[str, Any]) -> tuple[str, str]:
    """The kubelet's or scheduler's reason and message for a pod that is not ready; both empty without a reason."""
    for container in container_statuses(status):
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
            ended = last_end({"containerStatuses": [container]})
            return waiting["reason"], waiting.get("message", "") if ended is None else str(ended)
    scheduled = pod_condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return scheduled.get("reason", "Unschedulable"), scheduled.get("message", "")
    return "", ""


def _failed_init(pod: Mapping[str, Any], status: Mapping[str, Any]) -> ContainerEnd | None:
    """The death of the init container that kept the worker from starting; None if the pod was removed."""
    if status.get("reason"):
        return None
    sidecars = native_sidecars(pod)
    first = [each for each in status.get("initContainerStatuses") or () if each.get("name") not in sidecars]
    return last_end({"initContainerStatuses": first})


def _unexplained(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    """Message about a check that ended without a result, for example because it ran out of memory or was evicted."""
    reason = ended.get("reason") or status.get("reason") or "no reason given"
    lines = str(ended.get("message") or status.get("message") or "").strip().splitlines()
    code = ended.get("exitCode")
    return (
        f"the check pod ended without a result ({reason}"
        + (f", exit code {code}" if code is not None else "")
        + ")"
        + (f": {lines[-1]}" if lines else "")
    )
