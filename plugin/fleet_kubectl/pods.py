"""The pods of a fleet: their choice by part, member and state. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet_consumer.contract.naming import main_workers
from fleet_kubectl.errors import NoWorkerRuns, ObjectNotFound
from fleet_operator.planning import labels

JsonObject = Mapping[str, Any]

PARTS: Final = {"main": (labels.WORKER,), "retry": (labels.RETRY,), "all": (labels.WORKER, labels.RETRY)}


def workers(pods: Iterable[JsonObject], part: str, member: str | None = None) -> list[JsonObject]:
    """Worker pods of a part, or the one that `member` names (a pod, or the number of a main worker), by name."""
    found = [pod for pod in pods if labels.label_of(pod, labels.COMPONENT_LABEL) in PARTS[part]]
    if member is not None:
        found = [pod for pod in found if member in (name_of(pod), _number(pod))]
    return sorted(found, key=name_of)


def name_of(pod: JsonObject) -> str:
    return str(pod["metadata"]["name"])


def _number(pod: JsonObject) -> str | None:
    """The number of a main worker; None for a retry worker, so that a number names one pod."""
    group = labels.label_of(pod, labels.GROUP_LABEL) or ""
    head = f"{main_workers(group)}-"
    tail = name_of(pod).removeprefix(head)
    return tail if tail != name_of(pod) and tail.isdecimal() else None


def runs(pod: JsonObject) -> bool:
    """True if a command can be run in the worker's container."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    running = any(each["name"] == labels.CONTAINER and "running" in (each.get("state") or {}) for each in statuses)
    return running and not pod["metadata"].get("deletionTimestamp")


def runner(pods: Iterable[JsonObject], namespace: str, group: str) -> str:
    """The pod in which commands run: a worker that runs, main before retry. Raises NoWorkerRuns."""
    found = workers(pods, "all")
    ready = [pod for pod in found if runs(pod)]
    if ready:
        ready.sort(key=lambda pod: (labels.label_of(pod, labels.COMPONENT_LABEL) != labels.WORKER, name_of(pod)))
        return name_of(ready[0])
    seen = ", ".join(f"{name_of(pod)} is {(pod.get('status') or {}).get('phase', 'Unknown')}" for pod in found[:3])
    raise NoWorkerRuns(
        f"ConsumerGroup {namespace}/{group}: no worker runs in which the command could run "
        f"({seen or 'there is no pod'}); see `kubectl fleet explain {group} -n {namespace}`, or run `fleet-consumer "
        "failed` on your machine (docs/retries.md)"
    )


def no_member(namespace: str, group: str, member: str | None, part: str) -> ObjectNotFound:
    """The error of a log without a pod."""
    wanted = f"no pod {member}" if member is not None else f"no pod of the part {part}"
    return ObjectNotFound(
        f"ConsumerGroup {namespace}/{group}: there is {wanted}; retry workers exist only while a record is due; see "
        f"`kubectl get pods -n {namespace} -l {labels.GROUP_LABEL}={group}`"
    )
