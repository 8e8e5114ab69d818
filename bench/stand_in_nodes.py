"""Stand-in for kubelets and the StatefulSet controller, for thousands of fleets: `python -m bench.stand_in_nodes`.

It follows watches instead of polling, so that its cost depends on changes only. A check passes at once, and a worker's
pod is ready at once; nothing runs in either. Reads KUBECONFIG; ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from typing import Final

from bench.fleet_api import FleetApi
from fleet_operator.clients.kinds import POD, STATEFUL_SET, JsonObject
from fleet_operator.clients.kube import KubeConflictError, KubeError, KubeNotFoundError
from fleet_operator.planning.labels import CHECK, COMPONENT_LABEL, GROUP_LABEL, REVISION_ANNOTATION
from tests.apiserver.nodes import NOW, container_status, worker_pod

AT_ONCE: Final = 8
READY: Final = {"type": "Ready", "status": "True", "lastTransitionTime": NOW}
PASSED: Final = json.dumps({"ok": True, "reason": "CheckPassed", "message": "all is well"})

RUNNING: Final = {
    "phase": "Running",
    "conditions": [READY],
    "containerStatuses": [container_status({"running": {"startedAt": NOW}}, ready=True)],
}
ENDED: Final = {
    "phase": "Succeeded",
    "containerStatuses": [
        container_status(
            {"terminated": {"exitCode": 0, "message": PASSED, "startedAt": NOW, "finishedAt": NOW}}, ready=False
        )
    ],
}


class Nodes:
    """Pods by the uid of their StatefulSet, and the queue of changed objects."""

    def __init__(self, kube: FleetApi) -> None:
        self._kube = kube
        self._pods: dict[str, dict[str, JsonObject]] = defaultdict(dict)
        self._fleets: dict[str, JsonObject] = {}
        self._due: asyncio.Queue[tuple[str, JsonObject]] = asyncio.Queue()
        self._queued: set[str] = set()

    async def run(self) -> None:
        """Work until cancelled."""
        tasks = [self._watch_pods(), self._watch_fleets(), *(self._work() for _ in range(AT_ONCE))]
        await asyncio.gather(*tasks)

    async def _watch_pods(self) -> None:
        async for change, pod in self._kube.follow(POD, GROUP_LABEL):
            metadata = pod["metadata"]
            if metadata["labels"][COMPONENT_LABEL] == CHECK:
                if change == "ADDED" and pod["status"]["phase"] == "Pending":
                    self._due.put_nowait(("check", pod))
                continue
            owner = metadata["ownerReferences"][0]["uid"]
            if change == "DELETED":
                self._pods[owner].pop(metadata["name"], None)
                self._visit(owner)
            else:
                self._pods[owner][metadata["name"]] = pod

    async def _watch_fleets(self) -> None:
        async for change, fleet in self._kube.follow(STATEFUL_SET, GROUP_LABEL):
            uid = fleet["metadata"]["uid"]
            if change == "DELETED":
                self._fleets.pop(uid, None)
            else:
                self._fleets[uid] = fleet
                if fleet.get("status", {}).get("observedGeneration") != fleet["metadata"]["generation"]:
                    self._visit(uid)

    def _visit(self, uid: str) -> None:
        if uid in self._fleets and uid not in self._queued:
            self._queued.add(uid)
            self._due.put_nowait(("fleet", self._fleets[uid]))

    async def _work(self) -> None:
        while True:
            task, body = await self._due.get()
            try:
                if task == "check":
                    await self._kube.report(POD, body, ENDED)
                else:
                    uid = body["metadata"]["uid"]
                    self._queued.discard(uid)
                    if uid in self._fleets:
                        await self._run_fleet(self._fleets[uid])
            except KubeError as error:
                print(f"retrying: {error}", flush=True)
                self._due.put_nowait((task, body))

    async def _run_fleet(self, fleet: JsonObject) -> None:
        metadata = fleet["metadata"]
        pods = self._pods[metadata["uid"]]
        wanted = [f"{metadata['name']}-{ordinal}" for ordinal in range(fleet["spec"]["replicas"])]
        revision = metadata["annotations"][REVISION_ANNOTATION]
        for name, pod in list(pods.items()):
            if name not in wanted or pod["metadata"]["annotations"][REVISION_ANNOTATION] != revision:
                await self._kube.delete(POD, metadata["namespace"], name, uid=pod["metadata"]["uid"])
                pods.pop(name, None)
        for name in wanted:
            if name not in pods:
                with suppress(KubeConflictError, KubeNotFoundError):
                    made = await self._kube.create(worker_pod(fleet, name, None))
                    pods[name] = made
                    await self._kube.report(POD, made, RUNNING)
        count = len(wanted)
        status = {"observedGeneration": metadata["generation"], "replicas": count, "readyReplicas": count}
        status |= {"availableReplicas": count, "updatedReplicas": count, "currentReplicas": count}
        await self._kube.report(
            STATEFUL_SET, fleet, status | dict.fromkeys(("updateRevision", "currentRevision"), revision)
        )


async def main() -> None:
    kube = await FleetApi.connect()
    await Nodes(kube).run()


if __name__ == "__main__":
    asyncio.run(main())
