"""Backfills in an API server in memory, with a Spark operator and drivers in a few lines, and calls that can kill the
operator."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from fleet_consumer.contract.backfill_config import BackfillConfig, parse_config
from fleet_consumer.contract.backfill_ledger import (
    ALIVE_KEY,
    CONTROL_KEY,
    LEDGER_KEY,
    Control,
    Counts,
    Ledger,
    RunProblem,
    ledger_text,
    parse_control,
    parse_ledger,
)
from fleet_operator.clients.kinds import (
    BACKFILL,
    CONFIG_MAP,
    CONSUMER_GROUP,
    KAFKA_CLUSTER,
    OPERATOR_STATE,
    POD,
    SPARK_APPLICATION,
    JsonObject,
    Kind,
)
from fleet_operator.clients.kube import KubeClient, KubeNotFoundError
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.backfill.ranges import RangeQuestion, TopicOffsets
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.reconcilers.backfill.reconciler import Backfills
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.reconcilers.run import RunReconciler
from fleet_operator.reconcilers.states import States
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import EventRecorder
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import DeathError, Moment, Mortal, keep_state
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

__all__ = ["DeathError", "Moment", "World", "run"]

T = TypeVar("T")
KEY: Key = ("shop", "again")
PARTITIONS = 2
END = 10
SLICE = 4
"""Offsets of a driver's slice."""
FINAL = ("COMPLETED", "FAILED")


class Sight:
    """Observers without Kafka: what is seen, and a topic with these offsets in each partition."""

    def __init__(self) -> None:
        self.seen: ClusterObservation | None = builders.observation()
        self.answer: Callable[[RangeQuestion], TopicOffsets] = lambda question: topic_offsets()
        self.questions: list[RangeQuestion] = []

    def latest(self, cluster: Key) -> ClusterObservation | None:
        return self.seen

    async def change(self, cluster: Key, cluster_id: str | None, run: Callable[[KafkaAdmin], T]) -> T:
        assert cluster_id == "cluster-a"
        return run(cast("KafkaAdmin", SimpleNamespace(read_topic=self._read)))

    def _read(self, question: RangeQuestion) -> TopicOffsets:
        self.questions.append(question)
        return self.answer(question)


def topic_offsets(**changes: Any) -> TopicOffsets:
    """A topic of two partitions with ten records each, all of them in the range."""
    every = range(PARTITIONS)
    ends = dict.fromkeys(every, END)
    starts = dict.fromkeys(every, 0)
    told: dict[int, int | None] = dict.fromkeys(every, 0)
    return replace(TopicOffsets(partitions=PARTITIONS, starts=starts, ends=ends, first=told, end=dict(ends)), **changes)


class World:
    """The API server, the Spark operator, and one operator after the other."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.sight = Sight()
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.spark_installed = True
        self.ends: dict[
            int, tuple[str, int, JsonObject]
        ] = {}  # attempt -> where it dies: before, during or after a slice
        self.lingering = False  # pods of ended applications live on
        self.stuck = False  # the same, as long as the application is there
        self.at_work_most = 0
        self.played: list[tuple[int, int, int, int]] = []  # attempt, partition, first, end
        self.launched: list[str] = []
        self.kube.before = self._before
        group = builders.consumer_group(
            handler={"python": {"callable": "shop:handle", "configMapRef": {"name": "source"}}}
        )
        self.put(CONSUMER_GROUP, "orders", group.spec.model_dump(by_alias=True, mode="json", exclude_none=True))
        self.put(KAFKA_CLUSTER, "main", {"bootstrapServers": ["kafka:9092"]})
        self.remember_group()
        self.config_map("source", {"shop.py": "def handle(record): ..."})
        self.start()

    def _before(self, verb: str, kind: str, name: str) -> None:
        if kind == SPARK_APPLICATION.kind and not self.spark_installed and verb in ("list", "create"):
            raise KubeNotFoundError("the server could not find the requested resource", status=404)
        if (verb, kind) == ("create", SPARK_APPLICATION.kind) and (kind, "shop", name) not in self.kube.objects:
            self.launched.append(name)

    def config_map(self, name: str, data: dict[str, str]) -> None:
        self.put(CONFIG_MAP, name, {})
        self.kube.objects[CONFIG_MAP.kind, "shop", name]["data"] = data

    def put(self, kind: Kind, name: str, spec: JsonObject, *, annotations: dict[str, str] | None = None) -> None:
        """An object as a user leaves it."""
        known = self.kube.objects.get((kind.kind, "shop", name), {})
        before = known.get("metadata", {})
        self.kube.version += 1
        metadata = {
            "name": name,
            "namespace": "shop",
            "uid": before.get("uid", f"uid-of-{name}"),
            "generation": before.get("generation", 0) + 1,
            "resourceVersion": str(self.kube.version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {},
            "annotations": dict(annotations or {}),
        }
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
        self.kube.objects[kind.kind, "shop", name] = body | {"status": known.get("status", {})}

    def backfill(self, **spec: Any) -> None:
        wanted = {"groupRef": {"name": "orders"}, "range": {"last": {"seconds": 60}}, "sink": {"none": {}}}
        self.put(BACKFILL, "again", wanted | spec)

    def start(self, fatal: int = 0, moment: Moment = "before") -> Mortal:
        """Another operator process."""
        self.client = Mortal(self.kube, fatal, moment, writes_only=True)
        kube = cast("KubeClient", self.client)
        metrics, observers = Metrics(), cast("ObserverPool", self.sight)
        self.store = Store(kube, self.clock, WATCHED)
        statuses = StatusWriter(self.store, self.clock, metrics, writes_per_second=100.0, urgent_fields=URGENT_FIELDS)
        self.again: list[Key] = []
        context = Context(
            settings=Settings(),
            clock=self.clock,
            store=self.store,
            states=States(self.store, self.clock),
            statuses=statuses,
            events=EventRecorder(kube, self.clock, metrics, instance="test"),
            metrics=metrics,
            observers=observers,
            workers=cast("Any", SimpleNamespace()),
            queues=cast("Any", {BACKFILL: SimpleNamespace(add=self.again.append)}),
        )
        self.reconciler = RunReconciler(context, Backfills(context))
        return self.client

    async def reconcile(self) -> float | None:
        """The watches deliver everything, then the Backfill is reconciled."""
        self.deliver()
        result = await self.reconciler.reconcile(KEY)
        await asyncio.sleep(0.01)
        return result

    async def live(self, reconciles: int = 60, until: Callable[[], bool] | None = None) -> None:
        """Reconcile as the operator would, while drivers work."""
        for _ in range(reconciles):
            result = await self.reconcile()
            self.controller()
            if (until or self.is_final)():
                return
            await asyncio.sleep(min(result or 5.0, 5.0))

    def is_final(self) -> bool:
        return self.status().get("phase") in ("Succeeded", "Failed", "Cancelled")

    def deliver(self) -> None:
        for kind in (each.kind for each in WATCHED):
            cache = self.store.cache(kind)
            for key in list(cache.keys()):
                body, living = cache.get(*key), self.kube.objects.get((kind.kind, *key))
                assert body is not None
                if living is None or living["metadata"]["uid"] != body["metadata"]["uid"]:
                    cache.remove(key, body["metadata"]["uid"], self.kube.version)
        for (kind_name, _, _), body in self.kube.objects.items():
            for each in WATCHED:
                if each.kind.kind == kind_name and each.kind is not CONFIG_MAP:
                    self.store.learn(each.kind, copy.deepcopy(body))

    def get(self, kind: Kind, name: str) -> JsonObject | None:
        return self.kube.objects.get((kind.kind, "shop", name))

    def status(self) -> JsonObject:
        found = self.get(BACKFILL, "again")
        assert found is not None
        return dict(found["status"])

    def lose_memory(self) -> None:
        """The status is gone, and the operator's states as well, as after a restore of the users' objects alone; the
        operator is another one."""
        found = self.get(BACKFILL, "again")
        assert found is not None
        self.kube.version += 1
        found["status"] = {}
        for address in [each for each in self.kube.objects if each[0] == OPERATOR_STATE.kind]:
            del self.kube.objects[address]
        found["metadata"]["resourceVersion"] = str(self.kube.version)
        self.remember_group()
        self.start()

    def remember_group(self) -> None:
        """The group has a memory, which began before it had commits."""
        keep_state(self.kube, CONSUMER_GROUP, "orders", {"offsets": {"began": 1.0, "inherited": False}})

    def reason(self, kind: str = "Complete") -> str:
        return str(next(c["reason"] for c in self.status()["conditions"] if c["type"] == kind))

    def applications(self) -> dict[int, JsonObject]:
        found = [body for address, body in self.kube.objects.items() if address[0] == SPARK_APPLICATION.kind]
        return {int(body["metadata"]["name"].rpartition("-")[2]): body for body in found}

    def config(self) -> BackfillConfig:
        found = self.get(CONFIG_MAP, "again-backfill")
        assert found is not None
        return parse_config(json.loads(found["data"]["backfill.json"]))

    def control(self) -> Control:
        found = self.get(CONFIG_MAP, "again-control")
        assert found is not None
        return parse_control(found["data"][CONTROL_KEY])

    def ledger(self) -> Ledger | None:
        text = ((self.get(CONFIG_MAP, "again-ledger") or {}).get("data") or {}).get(LEDGER_KEY)
        return None if text is None else parse_ledger(text)

    def write_ledger(self, ledger: Ledger | str, sign: int = 0) -> None:
        """Write into the ledger, as a driver or somebody else; `sign` is the driver's sign of life."""
        found = self.get(CONFIG_MAP, "again-ledger")
        assert found is not None
        self.kube.version += 1
        found["data"] = {LEDGER_KEY: ledger if isinstance(ledger, str) else ledger_text(ledger), ALIVE_KEY: str(sign)}
        found["metadata"]["resourceVersion"] = str(self.kube.version)

    def controller(self) -> None:
        """The Spark operator starts what is new, drivers play a slice, pods of what is gone end."""
        working = 0
        for number, body in sorted(self.applications().items()):
            state = body.get("status", {}).get("applicationState", {}).get("state", "")
            if state == "":
                self._pod(body)
                self.say(number, "RUNNING")
            if state not in FINAL:
                working += 1
            if state == "RUNNING":
                self._play(number)
        living = {body["metadata"]["uid"] for body in self.applications().values()}
        for pod in self._pods():
            if pod["metadata"]["ownerReferences"][0]["uid"] not in living and not self.lingering:
                self._set(pod, {"phase": "Failed"})
        running = [pod for pod in self._pods() if pod["status"]["phase"] == "Running"]
        self.at_work_most = max(self.at_work_most, len(running), working)

    def say(self, number: int, state: str, message: str = "") -> None:
        status = {"applicationState": {"state": state, "errorMessage": message}}
        self._set(self.applications()[number], status | {"driverInfo": {"podName": f"again-{number}-driver"}})

    def finish(self, number: int, code: int = 0, **said: Any) -> None:
        """The driver ends with this exit code and last word."""
        pod = self.get(POD, f"again-{number}-driver")
        if pod is not None and not self.lingering and not self.stuck:
            ended = {"exitCode": code, "message": json.dumps({"ok": not code, **said})}
            container = {"name": "spark-kubernetes-driver", "state": {"terminated": ended}}
            self._set(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]})
        said_of_it = f"driver container failed with ExitCode: {code}, Reason: Error" if code else ""
        self.say(number, "FAILED" if code else "COMPLETED", said_of_it)

    def _play(self, number: int) -> None:
        """One slice of a driver, as far as it gets."""
        config, control = self.config(), self.control()
        handlers = config.compare.handlers if config.compare is not None else "Both"
        ledger, place = self.ledger(), self.ends.get(number)
        fresh = Ledger(attempt=number, handlers=handlers, remaining={p: (r,) for p, r in config.ranges.items()})
        if ledger is None or (ledger.handlers, handlers) == ("Live", "Candidate"):
            ledger = fresh
        elif ledger.attempt != number:
            ledger = replace(ledger, attempt=number, problem=None, ended=False)
        self.write_ledger(ledger)
        if place is not None and place[0] == "before":
            self.finish(number, place[1], **place[2])
            return
        if not ledger.remaining or control.suspend:
            self.write_ledger(
                replace(ledger, ended=True, slices_left=0 if not ledger.remaining else ledger.slices_left)
            )
            self.finish(number)
            return
        partition, ((first, end), *_) = min(ledger.remaining.items())
        until = min(first + SLICE, end)
        self.played.append((number, partition, first, until))
        if place is not None and place[0] == "during":
            self.finish(number, place[1], **place[2])
            return
        left = {**ledger.remaining, partition: ((until, end),)} if until < end else dict(ledger.remaining)
        if until == end:
            del left[partition]
        handled = ledger.counts.plus(Counts(records_in=until - first))
        done = ledger.slices_done + 1
        self.write_ledger(
            replace(
                ledger, remaining=left, counts=handled, slices_done=done, slices_left=len(left), records_per_second=2.0
            )
        )
        if place is not None:
            self.finish(number, place[1], **place[2])

    def fail_with(self, number: int, problem: RunProblem) -> None:
        """The driver notes why it cannot go on, and ends."""
        ledger = self.ledger()
        assert ledger is not None
        self.write_ledger(replace(ledger, problem=problem, ended=True))
        self.finish(number, 20 if problem.final else 21)

    def _pod(self, application: JsonObject) -> None:
        name, uid = f"{application['metadata']['name']}-driver", application["metadata"]["uid"]
        labels = application["spec"]["driver"]["template"]["metadata"]["labels"]
        self.kube.version += 1
        metadata = {"name": name, "namespace": "shop", "labels": labels, "uid": f"pod-of-{uid}"}
        metadata |= {"ownerReferences": [{"uid": uid}], "resourceVersion": str(self.kube.version)}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}}
        self.kube.objects[POD.kind, "shop", name] = body

    def _pods(self) -> list[JsonObject]:
        return [body for address, body in self.kube.objects.items() if address[0] == POD.kind]

    def _set(self, body: JsonObject, status: JsonObject) -> None:
        self.kube.version += 1
        body["status"] = status
        body["metadata"]["resourceVersion"] = str(self.kube.version)


def covered(played: list[tuple[int, int, int, int]]) -> list[int]:
    """The number of times that each offset of each partition was handled."""
    counts = [0] * (PARTITIONS * END)
    for _, partition, first, end in played:
        for offset in range(first, end):
            counts[partition * END + offset] += 1
    return counts


def run(life: Callable[[World], Awaitable[None]]) -> None:
    """A test's story in a world of its own, on a clock that jumps."""

    async def main() -> None:
        await life(World())

    run_virtual(main())
