"""Pods that wait for the cluster, read from what the kubelet and the scheduler write."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.fleet.pod_wait import find_wait
from fleet_operator.planning.trimming import trim_pod


def waiting(reason: str, message: str = "", *, name: str = "worker", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}, **more}


def running(name: str = "worker", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, **more}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **status: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"containerStatuses": list(containers), "initContainerStatuses": list(init)}
    spec = {"initContainers": [{"name": "setup"}, {"name": "handler", "restartPolicy": "Always"}]}
    return {"metadata": {"name": "orders-1"}, "spec": spec, "status": found | status}


UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
WHEN = "2026-01-01T00:00:00Z"
PREEMPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "for a pod of higher priority",
    "lastTransitionTime": WHEN,
}


def sandbox(ready: str) -> dict[str, Any]:
    return {"type": "PodReadyToStartContainers", "status": ready}


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        (pod(conditions=[UNSCHEDULED]), "Unschedulable", "unbound immediate PersistentVolumeClaims"),
        (pod(phase="Pending"), "PodNotStarted", "kubelet"),
        ({"metadata": {"name": "orders-1"}}, "PodNotStarted", "orders-1"),
        (pod(waiting("ErrImagePull", "connection refused")), "ErrImagePull", "connection refused"),
        (pod(waiting("ImagePullBackOff", "Back-off")), "ImagePullBackOff", "container worker: Back-off"),
        (pod(waiting("ErrImageNeverPull")), "ErrImageNeverPull", "orders-1"),
        (pod(waiting("CreateContainerConfigError", 'secret "db" not found')), "CreateContainerConfigError", '"db"'),
        (pod(waiting("ContainerCreating")), "ContainerCreating", "kubectl describe pod orders-1"),
        (pod(waiting("PodInitializing"), init=(running("setup"),)), "PodInitializing", "init container setup"),
        (
            pod(waiting("PodInitializing"), init=(waiting("ImagePullBackOff", name="setup"),)),
            "ImagePullBackOff",
            "setup",
        ),
        (pod(running(), init=(waiting("ErrImagePull", name="handler"),)), "ErrImagePull", "handler"),
        (
            pod(running(ready=True), conditions=[{"type": "Ready", "status": "False"}]),
            "NodeNotReady",
            "node does not report",
        ),
        (pod(phase="Failed", reason="Evicted", message="node was low on memory"), "Evicted", "low on memory"),
        (pod(running(ready=False), conditions=[PREEMPTED]), "PreemptionByScheduler", "since 2026-01-01T00:00:00Z"),
        (
            pod(waiting("ContainerCreating"), startTime=WHEN, conditions=[sandbox("False")]),
            "ContainerCreating",
            f"its volumes and its network (since {WHEN})",
        ),
        (pod(waiting("ContainerCreating"), conditions=[sandbox("True")]), "ContainerCreating", "waits for its image:"),
    ],
)
def test_pod_that_waits_for_the_cluster(found: dict[str, Any], reason: str, words: str) -> None:
    wait = find_wait(found)
    assert wait is not None
    assert wait.reason == reason
    assert words in wait.message


@pytest.mark.parametrize(
    "found",
    [
        pod(running(ready=False)),
        pod(running(ready=False), init=(running("handler"),)),
        pod(waiting("CrashLoopBackOff", "back-off 40s", restartCount=3)),
        pod(waiting("InvalidImageName")),
        pod(waiting("RunContainerError", "no such file")),
        pod(waiting("PodInitializing"), init=(waiting("CrashLoopBackOff", name="setup"),)),
        pod(waiting("ErrImagePull"), running("beside"), init=(waiting("CrashLoopBackOff", name="handler"),)),
        pod({"name": "worker", "state": {"terminated": {"exitCode": 1}}}),
        pod({"name": "worker", "state": {"terminated": {"exitCode": 1}}}, phase="Failed"),
    ],
)
def test_pod_that_fails_by_itself(found: dict[str, Any]) -> None:
    assert find_wait(found) is None


def test_sidecar_of_a_pod_as_the_operator_keeps_it_is_no_init_container() -> None:
    """The HTTP handler runs as an init container that never ends: it must not hide a worker that never gets ready."""
    whole = {"apiVersion": "v1", "kind": "Pod"} | pod(running(ready=False), init=(running("handler"),))
    assert find_wait(trim_pod(whole)) is None
    busy = {"apiVersion": "v1", "kind": "Pod"} | pod(waiting("PodInitializing"), init=(running("setup"),))
    assert find_wait(trim_pod(busy)) == find_wait(busy)
    for each in (
        pod(running(), conditions=[PREEMPTED]),
        pod(waiting("ContainerCreating"), conditions=[sandbox("True")]),
    ):
        whole = {"apiVersion": "v1", "kind": "Pod"} | each
        assert find_wait(trim_pod(whole)) == find_wait(whole)
