"""Redrives in an API server in memory, with a Job controller in a few lines and calls that can kill the operator."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, Literal, ParamSpec, TypeVar, cast

import pytest

from fleet_operator.clients.kinds import (
    CONSUMER_GROUP,
    JOB,
    KAFKA_CLUSTER,
    OFFSET_RESET,
    OPERATOR_STATE,
    POD,
    REDRIVE,
    JsonObject,
    Kind,
)
from fleet_operator.clients.kube import KubeClient
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.observation import ClusterObservation, TopicObservation
from fleet_operator.planning.offsets.records import Committed
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context
from fleet_operator.reconcilers.redrive import Redrives
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.reconcilers.run import RunReconciler
from fleet_operator.reconcilers.states import States, state_name
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import EventRecorder
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from tests.unit.planning import builders
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

P = ParamSpec("P")
T = TypeVar("T")
KEY: Key = ("shop", "fixed")
WORD = '{"ok":true,"selected":5,"moved":4,"guarded":1}'
TOPICS = {f"_fleet.orders.{kind}": TopicObservation(partitions=6) for kind in ("failed", "redrive")}
Moment = Literal["before", "after"]


class DeathError(BaseException):
    """The operator's process ends here."""


class Mortal:
    """`KubeClient` that dies at the `fatal`-th call; 0 means never. With `writes_only` reads do not count."""

    def __init__(
        self, kube: MemoryKube, fatal: int = 0, moment: Moment = "before", *, writes_only: bool = False
    ) -> None:
        self.kube, self.calls = kube, 0
        self._fatal, self._moment, self._writes_only = fatal, moment, writes_only

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(self.kube, verb)
        return call if self._writes_only and verb in ("get", "list") else self._counted(call)

    def _counted(self, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            self.calls += 1
            if self.calls == self._fatal and self._moment == "before":
                raise DeathError
            answer = await call(*args, **kwargs)
            if self.calls == self._fatal:
                raise DeathError
            return answer

        return counted


class Sight:
    """An observers without Kafka: what is seen, and what the runs have committed, as the test says."""

    def __init__(self) -> None:
        self.seen: ClusterObservation | None = builders.observation(topics=TOPICS)
        self.positions: tuple[Committed, ...] = ()
        self.asked = 0

    def latest(self, cluster: Key) -> ClusterObservation | None:
        return self.seen

    async def change(self, cluster: Key, cluster_id: str | None, run: Callable[[KafkaAdmin], T]) -> T:
        assert self.seen is None or cluster_id == self.seen.cluster_id
        self.asked += 1
        return cast("T", self.positions)


def keep_state(kube: MemoryKube, kind: Kind, name: str, content: JsonObject) -> None:
    """Put the state of an object where an operator leaves it."""
    kube.version += 1
    metadata = {
        "name": state_name(kind, name),
        "namespace": "shop",
        "uid": f"uid-of-state-of-{name}",
        "resourceVersion": str(kube.version),
        "ownerReferences": [{"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": f"uid-of-{name}"}],
    }
    head = {"apiVersion": OPERATOR_STATE.api_version, "kind": OPERATOR_STATE.kind, "metadata": metadata}
    kube.objects[OPERATOR_STATE.kind, "shop", state_name(kind, name)] = head | {"data": content}


class World:
    """The API server, the Job controller, and one operator after the other."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.sight = Sight()
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.pods_made = 0
        self.most_pods = 0
        group = builders.consumer_group(retry={"policyRef": {"name": "standard"}})
        self.put(CONSUMER_GROUP, "orders", group.spec.model_dump(by_alias=True, mode="json", exclude_none=True))
        self.put(KAFKA_CLUSTER, "main", {"bootstrapServers": ["kafka:9092"]})
        self.keep(CONSUMER_GROUP, "orders", {"offsets": {"began": 1.0, "inherited": False}})
        self.start()

    def put(
        self, kind: Kind, name: str, spec: JsonObject, *, at: int = 0, annotations: Mapping[str, str] | None = None
    ) -> None:
        """An object as a user leaves it."""
        known = self.kube.objects.get((kind.kind, "shop", name), {})
        metadata = {
            "name": name,
            "namespace": "shop",
            "uid": known.get("metadata", {}).get("uid", f"uid-of-{name}"),
            "generation": known.get("metadata", {}).get("generation", 0) + 1,
            "creationTimestamp": f"2026-01-01T00:00:{at:02}Z",
            "labels": {},
            "annotations": dict(annotations or {}),
        }
        self.kube.version += 1
        metadata["resourceVersion"] = str(self.kube.version)
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
        self.kube.objects[kind.kind, "shop", name] = body | {"status": known.get("status", {})}

    def keep(self, kind: Kind, name: str, content: JsonObject) -> None:
        """The state of an object as an operator leaves it."""
        keep_state(self.kube, kind, name, content)

    def record_reads(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Kind, str]]:
        """The kinds and names of objects that are read live from here on."""
        asked, read = list[tuple[Kind, str]](), self.kube.get

        async def recorded(kind: Kind, namespace: str, name: str) -> JsonObject | None:
            asked.append((kind, name))
            return await read(kind, namespace, name)

        monkeypatch.setattr(self.kube, "get", recorded)
        return asked

    def redrive(self, name: str = "fixed", *, at: int = 0, **spec: Any) -> None:
        self.put(REDRIVE, name, {"groupRef": {"name": "orders"}} | spec, at=at)

    def start(self, fatal: int = 0, moment: Moment = "before") -> Mortal:
        """Another operator process."""
        self.client = Mortal(self.kube, fatal, moment)
        kube = cast("KubeClient", self.client)
        metrics, observers = Metrics(), cast("ObserverPool", self.sight)
        self.store = Store(kube, self.clock, WATCHED)
        self.recorded: list[Key] = []
        self.again: list[Key] = []
        self.context = Context(
            settings=Settings(),
            clock=self.clock,
            store=self.store,
            states=States(self.store, self.clock),
            statuses=StatusWriter(
                self.store, self.clock, metrics, writes_per_second=100.0, urgent_fields=URGENT_FIELDS
            ),
            events=EventRecorder(kube, self.clock, metrics, instance="test"),
            metrics=metrics,
            observers=observers,
            workers=cast("Any", SimpleNamespace(answers=lambda *_: ())),
            queues=cast(
                "Any",
                {
                    CONSUMER_GROUP: SimpleNamespace(add=self.recorded.append),
                    **dict.fromkeys((REDRIVE, OFFSET_RESET), SimpleNamespace(add=self.again.append)),
                },
            ),
        )
        self.reconciler = RunReconciler(self.context, Redrives(self.context))
        return self.client

    async def reconcile(self, name: str = "fixed") -> float | None:
        """The watches deliver everything, then the Redrive is reconciled."""
        self.deliver()
        result = await self.reconciler.reconcile(("shop", name))
        await asyncio.sleep(0.01)
        return result

    def deliver(self) -> None:
        for kind in (each.kind for each in WATCHED):
            cache = self.store.cache(kind)
            for key in list(cache.keys()):
                body, living = cache.get(*key), self.kube.objects.get((kind.kind, *key))
                assert body is not None
                if living is None or living["metadata"]["uid"] != body["metadata"]["uid"]:
                    cache.remove(key, body["metadata"]["uid"], self.kube.version)
        for (kind_name, _, _), body in self.kube.objects.items():
            for kind in (each.kind for each in WATCHED):
                if kind.kind == kind_name:
                    self.store.learn(kind, copy.deepcopy(body))

    def get(self, kind: Kind, name: str = "fixed-redrive") -> JsonObject | None:
        return self.kube.objects.get((kind.kind, "shop", name))

    def status(self, name: str = "fixed") -> JsonObject:
        found = self.get(REDRIVE, name)
        assert found is not None
        return dict(found["status"])

    def jobs(self) -> list[JsonObject]:
        return [body for (kind, _, _), body in self.kube.objects.items() if kind == JOB.kind]

    def controller(self, *, end_old: bool = True) -> None:
        """A pod for each Job at work; pods of Jobs that are gone or suspended end, unless that takes its time."""
        working = {
            job["metadata"]["uid"]: job
            for job in self.jobs()
            if not job["spec"].get("suspend") and not job.get("status", {}).get("conditions")
        }
        pods = {a: body for a, body in self.kube.objects.items() if a[0] == POD.kind}
        for body in pods.values():
            running = body["status"]["phase"] == "Running"
            if running and body["metadata"]["ownerReferences"][0]["uid"] not in working and end_old:
                self._set(body, {"phase": "Failed"})
        for uid, job in working.items():
            mine = [pod for pod in pods.values() if pod["metadata"]["ownerReferences"][0]["uid"] == uid]
            if not [pod for pod in mine if pod["status"]["phase"] == "Running"]:
                self.pods_made += 1
                name = f"{job['metadata']['name']}-{self.pods_made}"
                metadata = {"name": name, "namespace": "shop", "labels": job["metadata"]["labels"]}
                metadata |= {
                    "uid": name,
                    "ownerReferences": [{"kind": "Job", "uid": uid}],
                    "resourceVersion": str(self.kube.version),
                }
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}}
                self.kube.objects[POD.kind, "shop", name] = pod
        living = [b for a, b in self.kube.objects.items() if a[0] == POD.kind and b["status"]["phase"] == "Running"]
        self.most_pods = max(self.most_pods, len(living))

    def finish(self, *, code: int = 0, word: str = WORD) -> None:
        """The pods of the Job at work end, and with them the Job."""
        for address, body in list(self.kube.objects.items()):
            if address[0] == POD.kind and body["status"]["phase"] == "Running":
                ended = {"state": {"terminated": {"exitCode": code, "message": word}}}
                phase = "Failed" if code else "Succeeded"
                self._set(body, {"phase": phase, "containerStatuses": [ended]})
        for job in self.jobs():
            if not job["spec"].get("suspend"):
                kind = "Failed" if code else "Complete"
                condition = {"type": kind, "status": "True", "reason": "PodFailurePolicy", "message": "exit code 20"}
                self._set(job, {"conditions": [condition]})

    def _set(self, body: JsonObject, status: JsonObject) -> None:
        self.kube.version += 1
        body["status"] = status
        body["metadata"]["resourceVersion"] = str(self.kube.version)


def run(life: Callable[[World], Awaitable[None]]) -> None:
    """A test's story in a world of its own, on a clock that jumps."""

    async def main() -> None:
        await life(World())

    run_virtual(main())
