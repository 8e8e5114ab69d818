"""A stand-in for kubelet and StatefulSet controller, which a bare API server lacks.

It marks check pods as answered, makes and removes the pods of StatefulSets, and reports both as real ones would.
Gaps: nothing runs in the pods, rollouts replace one pod at a time without waiting, there are no volumes, probes,
restarts or grace periods, and owner references are not collected. The end-to-end suite has the real ones.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fleet_consumer.contract import naming
from fleet_operator.clients.kinds import CONFIG_MAP, POD, STATEFUL_SET, JsonObject, Kind
from fleet_operator.clients.kube import (
    KubeClient,
    KubeConflictError,
    KubeForbiddenError,
    KubeNotFoundError,
    KubeUnavailableError,
)
from fleet_operator.planning.labels import COMPONENT_LABEL, GROUP_LABEL

TICK_SECONDS = 0.2
IDLE_SECONDS = 1.0
REVISION = "consumerfleet.io/revision"
NOW = "2026-01-01T00:00:00Z"
PASSED = (KubeConflictError, KubeNotFoundError)
"""An object changed or was deleted during the visit; the next tick sees its new state."""


@dataclass(frozen=True)
class Answer:
    """The end of a check: the exit code and last line of `fleet-consumer check`."""

    exit_code: int = 0
    reason: str = "CheckPassed"
    message: str = "all is well"


def by_handler(config: JsonObject) -> Answer:
    """The default result: a handler named `missing` cannot be imported, everything else passes."""
    python = config["handler"]["python"]
    if python is not None and python["callable"].endswith(":missing"):
        return Answer(20, "HandlerNotCallable", "module `handler` has no `missing`")
    return Answer()


class NodesClient(KubeClient):
    """The verbs of a kubelet: status of built-in kinds. `writes` counts the attempted changes."""

    writes = 0

    async def create(self, body: JsonObject, *, strict: bool = False) -> JsonObject:
        self.writes += 1
        return await super().create(body, strict=strict)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, version: str | None = None) -> bool:
        self.writes += 1
        return await super().delete(kind, namespace, name, uid=uid, version=version)

    async def patch_status(self, kind: Kind, body: JsonObject, status: JsonObject) -> None:
        self.writes += 1
        path = kind.path(body["metadata"]["namespace"], body["metadata"]["name"], "status")
        await self._call("PATCH", path, body={"status": status}, content_type="application/merge-patch+json")


@dataclass
class Nodes:
    """The stand-in, on a thread of its own; a context manager.

    `check` may be replaced while it runs. `answers` holds those of single namespaces. `held` keeps the pods of a
    component, as (namespace, component), at a status, until it is taken away. `addresses` are those of the workers' own
    pages, by namespace and pod, for pods that are made later. `steps` is how far one visit takes a fleet: with more of
    them hundreds of fleets roll in a fraction of the time.
    """

    kubeconfig: str
    check: Callable[[JsonObject], Answer] = by_handler
    unready_revisions: set[str] = field(default_factory=set)
    answers: dict[str, Answer] = field(default_factory=dict)
    held: dict[tuple[str, str], JsonObject] = field(default_factory=dict)
    addresses: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    steps: int = 1
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Nodes:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="nodes")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        kube = await NodesClient.connect({"KUBECONFIG": self.kubeconfig})
        pause = TICK_SECONDS
        while not self._stop.is_set():
            before = kube.writes
            with suppress(KubeUnavailableError):  # a busy server is asked again
                await self._tick(kube)
            # Fleets at rest are visited less often: the tests of one run leave many of them.
            pause = TICK_SECONDS if kube.writes != before else min(pause * 1.5, IDLE_SECONDS)
            await asyncio.sleep(pause)
        await kube.close()

    async def _tick(self, kube: NodesClient) -> None:
        pods = (await kube.list(POD, None, label_selector=f"{GROUP_LABEL},{COMPONENT_LABEL}")).items
        for pod in pods:
            labels = pod["metadata"]["labels"]
            if labels[COMPONENT_LABEL] == "check" and pod["status"]["phase"] in ("Pending", "Running"):
                with suppress(*PASSED):
                    await self._answer(kube, pod)
        for fleet in (await kube.list(STATEFUL_SET, None, label_selector=GROUP_LABEL)).items:
            with suppress(*PASSED):
                await self._visit(kube, fleet, pods)

    async def _visit(self, kube: NodesClient, fleet: JsonObject, pods: list[JsonObject]) -> None:
        namespace, name = fleet["metadata"]["namespace"], fleet["metadata"]["name"]
        for step in range(1, self.steps + 1):
            before = kube.writes
            mine = [pod for pod in pods if _owner(pod) == fleet["metadata"]["uid"]]
            await self._run_fleet(kube, fleet, {pod["metadata"]["name"]: pod for pod in mine})
            if kube.writes == before or step == self.steps:
                return
            selector = f"{GROUP_LABEL}={fleet['metadata']['labels'][GROUP_LABEL]}"
            pods = (await kube.list(POD, namespace, label_selector=selector)).items
            fleet = await kube.get(STATEFUL_SET, namespace, name) or fleet

    async def _answer(self, kube: NodesClient, pod: JsonObject) -> None:
        metadata = pod["metadata"]
        held = self.held.get((metadata["namespace"], "check"))
        if held is not None:
            if _differs(pod["status"], held):
                await kube.patch_status(POD, pod, held)
            return
        name = naming.revision_config(metadata["labels"][GROUP_LABEL], _revision(pod) or "")
        config_map = await kube.get(CONFIG_MAP, metadata["namespace"], name)
        if config_map is None:
            return  # a real pod would wait for its volume
        configured = self.check(json.loads(config_map["data"]["worker.json"]))
        answer = self.answers.get(metadata["namespace"], configured)
        line = json.dumps({"ok": answer.exit_code == 0, "reason": answer.reason, "message": answer.message})
        ended = {"exitCode": answer.exit_code, "message": line, "startedAt": NOW, "finishedAt": NOW}
        status = {
            "phase": "Failed" if answer.exit_code else "Succeeded",
            "containerStatuses": [container_status({"terminated": ended | {"reason": "Completed"}}, ready=False)],
        }
        await kube.patch_status(POD, pod, status)

    async def _run_fleet(self, kube: NodesClient, fleet: JsonObject, pods: dict[str, JsonObject]) -> None:
        metadata, spec = fleet["metadata"], fleet["spec"]
        revision = _revision(spec["template"])
        if revision is None:
            return  # a test's own, with the labels of a fleet
        wanted = [f"{metadata['name']}-{ordinal}" for ordinal in range(spec["replicas"])]
        for name, pod in pods.items():
            stale = _revision(pod) != revision
            if name not in wanted or stale:
                await kube.delete(POD, metadata["namespace"], name, uid=pod["metadata"]["uid"])
                if stale:
                    break  # one at a time
        for name in wanted:
            if name not in pods:
                with suppress(KubeForbiddenError):  # a quota; a real controller writes an Event
                    await kube.create(worker_pod(fleet, name, self.addresses.get((metadata["namespace"], name))))
            elif _differs(pods[name]["status"], status := self._worker_status(pods[name])):
                await kube.patch_status(POD, pods[name], status)
        await self._report(kube, fleet, wanted, pods)

    async def _report(
        self, kube: NodesClient, fleet: JsonObject, wanted: list[str], pods: dict[str, JsonObject]
    ) -> None:
        revision = _revision(fleet["spec"]["template"])
        alive = [pods[name] for name in wanted if name in pods]
        updated = [pod for pod in alive if _revision(pod) == revision]
        ready = [pod for pod in alive if _is_ready(pod)]
        status = {
            "observedGeneration": fleet["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": len(ready),
            "availableReplicas": len(ready),
            "updatedReplicas": len(updated),
            "currentReplicas": len(alive) if len(updated) == len(alive) else 0,
            "updateRevision": revision,
            "currentRevision": revision if len(updated) == len(alive) else "older",
        }
        known = fleet.get("status", {})
        if any(known.get(key, 0) != value for key, value in status.items()):
            await kube.patch_status(STATEFUL_SET, fleet, status)

    def _worker_status(self, pod: JsonObject) -> JsonObject:
        held = self.held.get((pod["metadata"]["namespace"], "worker"))
        if held is not None and not _is_ready(pod):
            return held
        ready = _revision(pod) not in self.unready_revisions
        condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": NOW}
        running = {"running": {"startedAt": NOW}}
        status = {
            "phase": "Running",
            "conditions": [condition],
            "containerStatuses": [container_status(running, ready=ready)],
        }
        address = self.addresses.get((pod["metadata"]["namespace"], pod["metadata"]["name"]))
        return status if address is None else status | {"podIP": address[0]}


def _owner(pod: JsonObject) -> str:
    """The uid of the pod's owner; empty while the StatefulSet was deleted without its pods."""
    return next((str(owner["uid"]) for owner in pod["metadata"].get("ownerReferences", ())), "")


def _differs(found: Any, wanted: Any) -> bool:
    """True if what is wanted is not all there."""
    if isinstance(wanted, dict):
        return any(_differs((found or {}).get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found or ()) != len(wanted) or any(map(_differs, found or (), wanted))
    return bool(found != wanted)


def _is_ready(pod: JsonObject) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def container_status(state: dict[str, Any], *, ready: bool) -> JsonObject:
    """The status of a pod's worker container."""
    return {"name": "worker", "image": "none", "imageID": "", "ready": ready, "restartCount": 0, "state": state}


def _revision(body: JsonObject) -> str | None:
    """The revision of a pod, or of a template, by which the controller of StatefulSets tells pods that are up to date.

    Annotations of the StatefulSet itself mean nothing to it, and a test may take them away.
    """
    found: str | None = (body["metadata"].get("annotations") or {}).get(REVISION)
    return found


def worker_pod(fleet: JsonObject, name: str, address: tuple[str, int] | None) -> JsonObject:
    """A pod as the controller of a StatefulSet makes it; `address` is that of the worker's page, if it has one."""
    template = copy.deepcopy(fleet["spec"]["template"])
    if address is not None:
        for port in template["spec"]["containers"][0]["ports"]:
            port["containerPort"] = address[1]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": fleet["metadata"]["name"],
        "uid": fleet["metadata"]["uid"],
        "controller": True,
    }
    metadata = {
        "name": name,
        "namespace": fleet["metadata"]["namespace"],
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"],
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
