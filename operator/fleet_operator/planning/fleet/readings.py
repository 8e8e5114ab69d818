"""Readers of cluster objects (plain dicts from the API server) into the facts of a rollout.

`manifests` writes the annotations and fields that are read here. People may edit these objects: an unreadable value
becomes the cautious one, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from fleet_consumer.contract.pod import EXIT_SETTINGS
from fleet_operator.planning import labels
from fleet_operator.planning.fleet.pod_end import ContainerEnd, last_end
from fleet_operator.planning.fleet.pod_wait import find_wait, native_sidecars
from fleet_operator.planning.fleet.rollout_facts import CheckFacts, FleetFacts, PodFacts, RevisionRecord
from fleet_operator.planning.foreign_json import read_last_object, read_object
from fleet_operator.planning.state.group import RevisionMark

POD_TEMPLATE_KEY: Final = "pod-template.json"

CHECK_FAILED: Final = "CheckFailed"
INIT_CONTAINER_FAILED: Final = "InitContainerFailed"


def read_revision(
    config_map: Mapping[str, Any], marks: Mapping[str, RevisionMark], *, config_map_names: Iterable[str]
) -> RevisionRecord | None:
    """A revision ConfigMap, with what the group's state says of it; None for another ConfigMap, and for one that is
    being deleted.

    `config_map_names` are the names of all ConfigMaps of the group: the handler's copy may be missing.
    """
    metadata = config_map.get("metadata", {})
    annotations = metadata.get("annotations") or {}
    revision = annotations.get(labels.REVISION_ANNOTATION, "")
    template = read_object((config_map.get("data") or {}).get(POD_TEMPLATE_KEY))
    if not revision or template is None or metadata.get("deletionTimestamp"):
        return None
    handler = annotations.get(labels.HANDLER_ANNOTATION, "")
    complete = not handler or handler in set(config_map_names)
    return marked(revision, marks.get(revision), complete=complete, pod_template=template)


def marked(revision: str, mark: RevisionMark | None, **found: Any) -> RevisionRecord:
    """The record of a revision of which the group's state says this; `found` is the rest of it."""
    known = mark or RevisionMark()
    return RevisionRecord(hash=revision, **{each.name: getattr(known, each.name) for each in fields(known)}, **found)


def read_check(pod: Mapping[str, Any]) -> CheckFacts:
    """A check pod. Its result is the last line of the worker's termination message, in JSON.

    The end of the worker's container counts, not the pod's: an admission webhook may have added containers that run on.
    """
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
    """The StatefulSet; None without one, and for one that is being deleted."""
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
    """A worker pod; without a Ready condition it is not ready.

    Without `now` (epoch seconds) recent deaths of containers are not read.
    """
    metadata, status = pod.get("metadata", {}), pod.get("status") or {}
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    name = metadata.get("name", "")
    tail = name.rpartition("-")[2]
    is_ready = ready.get("status") == "True"
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
    """Pods of the newest template. Once all are updated, the controller makes both revisions equal and may count none
    as updated (its `updatedReplicas` is dropped in some versions while `currentReplicas` counts them)."""
    settled = status.get("updateRevision") is not None and status.get("currentRevision") == status.get("updateRevision")
    counted: int = status.get("updatedReplicas", 0)
    return max(counted, status.get("currentReplicas", 0)) if settled else counted


def _waiting(status: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of the kubelet or the scheduler for a pod that does not run or is not ready."""
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in statuses:
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
            ended = last_end({"containerStatuses": [container]})
            return waiting["reason"], waiting.get("message", "") if ended is None else str(ended)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("reason", "Unschedulable"), condition.get("message", "")
    return "", ""


def _failed_init(pod: Mapping[str, Any], status: Mapping[str, Any]) -> ContainerEnd | None:
    """The end of the init container because of which the worker never started; None where the pod was removed."""
    if status.get("reason"):
        return None
    sidecars = native_sidecars(pod)
    first = [each for each in status.get("initContainerStatuses") or () if each.get("name") not in sidecars]
    return last_end({"initContainerStatuses": first})


def _unexplained(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    """Message about a check that left no result: killed for memory, evicted, past its deadline."""
    reason = ended.get("reason") or status.get("reason") or "no reason given"
    lines = str(ended.get("message") or status.get("message") or "").strip().splitlines()
    code = ended.get("exitCode")
    return (
        f"the check pod ended without an answer ({reason}"
        + (f", exit code {code}" if code is not None else "")
        + ")"
        + (f": {lines[-1]}" if lines else "")
    )
