"""Causes outside a revision that keep a pod from running or from being ready.

Such causes never count against a revision, for any length of time. Examples are a full node, a slow image pull, an
unbound volume and a missing Secret. All other causes count against the revision.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.planning.problem import Problem

NODE_NOT_READY: Final = "NodeNotReady"
EVICTED: Final = "Evicted"
POD_NOT_STARTED: Final = "PodNotStarted"
POD_INITIALIZING: Final = "PodInitializing"
CONTAINER_CREATING: Final = "ContainerCreating"

BRIEF: Final = frozenset({POD_NOT_STARTED, POD_INITIALIZING, CONTAINER_CREATING})
"""Waiting reasons that every pod has for a moment while it starts."""

CREATING: Final = frozenset({"", CONTAINER_CREATING, POD_INITIALIZING})
OUTSIDE: Final = CREATING | {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
    "CreateContainerConfigError",
    "CreateContainerError",
}
"""Waiting reasons of the kubelet whose cause is in the cluster and not in the revision, such as a registry, a missing
Secret or a slow runtime."""


def find_wait(pod: Mapping[str, Any]) -> Problem | None:
    """The cause outside the revision for which a pod waits; None if it does not wait, or if the cause is inside the
    revision."""
    name, status = pod.get("metadata", {}).get("name", ""), pod.get("status") or {}
    removed = _removed(name, status)
    if removed is not None:
        return removed
    scheduled = pod_condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = str(scheduled.get("reason") or "Unschedulable")
        return Problem(reason, f"pod {name} has no node{_since(scheduled)}{_said(scheduled)}")
    containers = container_statuses(status)
    if not containers:
        return Problem(POD_NOT_STARTED, f"the kubelet has not started pod {name} yet")
    waiting = [(container, (container.get("state") or {}).get("waiting")) for container in containers]
    held = [(container, state) for container, state in waiting if state is not None]
    if any(state.get("reason", "") not in OUTSIDE for _, state in held):
        return None
    for container, state in held:
        if state.get("reason", "") not in CREATING:
            message = f"pod {name}, container {container.get('name')}{_from(status)}{_said(state)}"
            return Problem(str(state["reason"]), message)
    first = _running_init(pod, status)
    if first is not None:
        return Problem(POD_INITIALIZING, f"pod {name} waits for {first}{_from(status)}")
    if held:
        sandbox = pod_condition(status, "PodReadyToStartContainers").get("status")
        needs = {"True": "its image", "False": "its volumes and its network"}.get(str(sandbox), "its image and volumes")
        message = f"pod {name} waits for {needs}{_from(status)}: see its Events in `kubectl describe pod {name}`"
        return Problem(CONTAINER_CREATING, message)
    return _lost_node(name, status)


def _removed(name: str, status: Mapping[str, Any]) -> Problem | None:
    """The eviction or preemption of a pod, or the shutdown of its node; None if the pod is not removed. A worker's pod
    gets the phase Failed only for these reasons, because containers that fail are restarted. A failed check is detected
    by its exit code."""
    target = pod_condition(status, "DisruptionTarget")
    if target.get("status") == "True":
        reason = str(target.get("reason") or EVICTED)
        return Problem(reason, f"pod {name} is being removed from its node{_since(target)}{_said(target)}")
    if status.get("phase") == "Failed" and status.get("reason"):
        return Problem(str(status["reason"]), f"pod {name} was removed from its node{_said(status)}")
    return None


def native_sidecars(pod: Mapping[str, Any]) -> set[str]:
    """Names of the restartable init containers, which run next to the worker."""
    specs = (pod.get("spec") or {}).get("initContainers") or ()
    return {str(container.get("name")) for container in specs if container.get("restartPolicy") == "Always"}


def _running_init(pod: Mapping[str, Any], status: Mapping[str, Any]) -> str | None:
    """The cause of a worker's late start: a running init container, or the startup probe of a sidecar. None without a
    delay."""
    sidecars = native_sidecars(pod)
    for container in status.get("initContainerStatuses") or ():
        name = container.get("name")
        if "running" not in (container.get("state") or {}):
            continue
        if name not in sidecars:
            return f"init container {name}"
        if container.get("started") is False:
            return f"the startup probe of container {name}"
    return None


def _lost_node(name: str, status: Mapping[str, Any]) -> Problem | None:
    """The problem of a pod whose node does not report; None otherwise. The node controller marks the pod unready, but
    leaves the containers' statuses as they were."""
    ready = pod_condition(status, "Ready")
    containers = status.get("containerStatuses") or ()
    if ready.get("status", "True") == "True" or not containers or not all(each.get("ready") for each in containers):
        return None
    return Problem(NODE_NOT_READY, f"pod {name} was ready, but its node does not report{_since(ready)}")


def container_statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def pod_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})


def _since(condition: Mapping[str, Any]) -> str:
    since = condition.get("lastTransitionTime")
    return f" (since {since})" if since else ""


def _from(status: Mapping[str, Any]) -> str:
    """The time at which the kubelet accepted the pod, as a string for messages; empty if unknown."""
    return f" (since {status['startTime']})" if status.get("startTime") else ""


def _said(state: Mapping[str, Any]) -> str:
    return f": {state['message']}" if state.get("message") else ""
