"""Selects pods of a fleet by part, member and state. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet_consumer.contract.naming import main_workers
from fleet_kubectl.errors import NoWorkerRuns, ObjectNotFound
from fleet_operator.planning import labels

JsonObject = Mapping[str, Any]

PARTS: Final = {"main": (labels.WORKER,), "retry": (labels.RETRY,), "all": (labels.WORKER, labels.RETRY)}


def workers(pods: Iterable[JsonObject], part: str, member: str | None = None) -> list[JsonObject]:
    """The worker pods of a part, sorted by name. With `member` (a pod's name, or a main worker's number), only this
    pod."""
    found = [pod for pod in pods if labels.label_of(pod, labels.COMPONENT_LABEL) in PARTS[part]]
    if member is not None:
        found = [pod for pod in found if member in (name_of(pod), _number(pod))]
    return sorted(found, key=name_of)


def name_of(pod: JsonObject) -> str:
    return str(pod["metadata"]["name"])


def _number(pod: JsonObject) -> str | None:
    """The number in a main worker's name; None for a retry worker, so that a number identifies one pod."""
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
    """Choose the pod in which to run a command: a running main worker or, without one, a running retry worker. Raises
    NoWorkerRuns."""
    found = workers(pods, "all")
    ready = [pod for pod in found if runs(pod)]
    if ready:
        ready.sort(key=lambda pod: (labels.label_of(pod, labels.COMPONENT_LABEL) != labels.WORKER, name_of(pod)))
        return name_of(ready[0])
    seen = ", ".join(f"{name_of(pod)} is {(pod.get('status') or {}).get('phase', 'Unknown')}" for pod in found[:3])
    raise NoWorkerRuns(
        f"ConsumerGroup {namespace}/{group}: no worker is running, so the command cannot run "
        f"({seen or 'there is no pod'}); see `kubectl fleet explain {group} -n {namespace}`, or run `fleet-consumer "
        "failed` on your machine (docs/retries.md)"
    )


def no_member(namespace: str, group: str, member: str | None, part: str) -> ObjectNotFound:
    """The error if no pod matches the options of `logs`."""
    wanted = f"no pod {member}" if member is not None else f"no pod of the part {part}"
    return ObjectNotFound(
        f"ConsumerGroup {namespace}/{group}: there is {wanted}; retry workers exist only while a record is due; see "
        f"`kubectl get pods -n {namespace} -l {labels.GROUP_LABEL}={group}`"
    )
