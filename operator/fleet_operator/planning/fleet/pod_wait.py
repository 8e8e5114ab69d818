"""Causes outside a revision that keep a pod from running or from being ready, in words.

A node that is full, an image that is being pulled, a volume that is not bound, a Secret that is not there yet: they say
nothing about a revision, however long they last. Everything else counts against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fleet_operator.planning.problem import Problem

NODE_NOT_READY: Final = "NodeNotReady"
EVICTED: Final = "Evicted"
POD_NOT_STARTED: Final = "PodNotStarted"
POD_INITIALIZING: Final = "PodInitializing"
CONTAINER_CREATING: Final = "ContainerCreating"

BRIEF: Final = frozenset({POD_NOT_STARTED, POD_INITIALIZING, CONTAINER_CREATING})
"""Waits that every pod has for a moment."""

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
"""The kubelet's waiting reasons that the cluster can cure: a registry, a missing Secret, a slow runtime."""


def find_wait(pod: Mapping[str, Any]) -> Problem | None:
    """The cause outside the revision, if nothing else keeps the pod from being ready."""
    name, status = pod.get("metadata", {}).get("name", ""), pod.get("status") or {}
    removed = _removed(name, status)
    if removed is not None:
        return removed
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = str(scheduled.get("reason") or "Unschedulable")
        return Problem(reason, f"pod {name} has no node{_since(scheduled)}{_said(scheduled)}")
    containers = list(_containers(status))
    if not containers:
        return Problem(POD_NOT_STARTED, f"the kubelet of its node has not started pod {name} yet")
    waiting = [(container, (container.get("state") or {}).get("waiting")) for container in containers]
    held = [(container, state) for container, state in waiting if state is not None]
    if any(state.get("reason", "") not in OUTSIDE for _, state in held):
        return None
    named = [(container, state) for container, state in held if state.get("reason", "") not in CREATING]
    if named:
        container, state = named[0]
        message = f"pod {name}, container {container.get('name')}{_from(status)}{_said(state)}"
        return Problem(str(state["reason"]), message)
    first = _running_init(pod, status)
    if first is not None:
        return Problem(POD_INITIALIZING, f"{first} of pod {name} runs{_from(status)}")
    if held:
        sandbox = _condition(status, "PodReadyToStartContainers").get("status")
        needs = {"True": "its image", "False": "its volumes and its network"}.get(str(sandbox), "its image and volumes")
        message = f"pod {name} waits for {needs}{_from(status)}; `kubectl describe pod {name}` shows its Events"
        return Problem(CONTAINER_CREATING, message)
    return _lost_node(name, status)


def _removed(name: str, status: Mapping[str, Any]) -> Problem | None:
    """Eviction, preemption, the shutdown of a node: a worker's containers are restarted, so its pod fails by itself
    never, and a check's leave an exit code."""
    target = _condition(status, "DisruptionTarget")
    if target.get("status") == "True":
        reason = str(target.get("reason") or EVICTED)
        return Problem(reason, f"pod {name} is removed from its node{_since(target)}{_said(target)}")
    if status.get("phase") == "Failed" and status.get("reason"):
        return Problem(str(status["reason"]), f"pod {name} was removed from its node{_said(status)}")
    return None


def native_sidecars(pod: Mapping[str, Any]) -> set[str]:
    """Names of the init containers that restart: they run next to the worker."""
    specs = (pod.get("spec") or {}).get("initContainers") or ()
    return {str(container.get("name")) for container in specs if container.get("restartPolicy") == "Always"}


def _running_init(pod: Mapping[str, Any], status: Mapping[str, Any]) -> str | None:
    """The container that runs before the worker may start: an init container, or a sidecar that is not up yet."""
    sidecars = native_sidecars(pod)
    for container in status.get("initContainerStatuses") or ():
        name = container.get("name")
        if "running" not in (container.get("state") or {}):
            continue
        if name not in sidecars:
            return f"init container {name}"
        if container.get("started") is False:
            return f"container {name}, whose startup probe has not succeeded yet,"
    return None


def _lost_node(name: str, status: Mapping[str, Any]) -> Problem | None:
    """The node controller marks the pods of a silent node unready and leaves their containers as they were."""
    ready = _condition(status, "Ready")
    containers = status.get("containerStatuses") or ()
    if ready.get("status", "True") == "True" or not containers or not all(each.get("ready") for each in containers):
        return None
    return Problem(NODE_NOT_READY, f"pod {name} is ready, and its node does not report{_since(ready)}")


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})


def _since(condition: Mapping[str, Any]) -> str:
    since = condition.get("lastTransitionTime")
    return f" since {since}" if since else ""


def _from(status: Mapping[str, Any]) -> str:
    """The time at which the kubelet accepted the pod, in words."""
    return f" since {status['startTime']}" if status.get("startTime") else ""


def _said(state: Mapping[str, Any]) -> str:
    return f": {state['message']}" if state.get("message") else ""
