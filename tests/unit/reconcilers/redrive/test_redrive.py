"""A Redrive's reconciler against an API server in memory, a Job controller in a few lines, and death at any call."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, ParamSpec, TypeVar, cast

import pytest

from fleet_consumer.net import NetworkClient
from fleet_operator.clients.kinds import (
    CONFIG_MAP,
    CONSUMER_GROUP,
    JOB,
    KAFKA_CLUSTER,
    POD,
    REDRIVE,
    JsonObject,
    Kind,
)
from fleet_operator.clients.kube import KubeClient, KubeConflictError
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.observation import ClusterObservation, TopicObservation
from fleet_operator.planning.redrive.readings import Position
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context
from fleet_operator.reconcilers.redrive.reconciler import RedriveReconciler
from fleet_operator.reconcilers.redrive.watch import RedriveWatch
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Result
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
KEY: Key = ("shop", "mended")
WORD = '{"ok":true,"selected":5,"moved":4,"guarded":1}'
TOPICS = {f"_fleet.orders.{kind}": TopicObservation(partitions=6) for kind in ("failed", "redrive")}
Moment = Literal["before", "after"]


class DeathError(BaseException):
    """The operator's process ends here."""


class Mortal:
    """`KubeClient` that dies at the `fatal`-th call; 0 means never."""

    def __init__(self, kube: MemoryKube, fatal: int = 0, moment: Moment = "before") -> None:
        self.kube, self.calls = kube, 0
        self._fatal, self._moment = fatal, moment

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        return self._counted(getattr(self.kube, verb))

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
        self.positions: tuple[Position, ...] = ()
        self.asked = 0

    def latest(self, cluster: Key) -> ClusterObservation | None:
        return self.seen

    async def act(self, cluster: Key, run: Callable[[NetworkClient], T]) -> T:
        self.asked += 1
        return cast("T", self.positions)


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
        self.start()

    def put(self, kind: Kind, name: str, spec: JsonObject, *, at: int = 0) -> None:
        """An object as a user leaves it."""
        known = self.kube.objects.get((kind.kind, "shop", name), {})
        metadata = {
            "name": name,
            "namespace": "shop",
            "uid": known.get("metadata", {}).get("uid", f"uid-of-{name}"),
            "generation": known.get("metadata", {}).get("generation", 0) + 1,
            "creationTimestamp": f"2026-01-01T00:00:{at:02}Z",
            "labels": {},
        }
        self.kube.version += 1
        metadata["resourceVersion"] = str(self.kube.version)
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
        self.kube.objects[kind.kind, "shop", name] = body | {"status": known.get("status", {})}

    def redrive(self, name: str = "mended", *, at: int = 0, **spec: Any) -> None:
        self.put(REDRIVE, name, {"groupRef": {"name": "orders"}} | spec, at=at)

    def start(self, fatal: int = 0, moment: Moment = "before") -> Mortal:
        """Another operator process."""
        self.client = Mortal(self.kube, fatal, moment)
        kube = cast("KubeClient", self.client)
        metrics, observers = Metrics(), cast("ObserverPool", self.sight)
        self.store = Store(kube, self.clock, WATCHED)
        context = Context(
            settings=Settings(),
            clock=self.clock,
            store=self.store,
            statuses=StatusWriter(
                self.store, self.clock, metrics, writes_per_second=100.0, urgent_fields=URGENT_FIELDS
            ),
            events=EventRecorder(kube, self.clock, metrics, instance="test"),
            metrics=metrics,
            observers=observers,
            workers=cast("Any", SimpleNamespace()),
            queues={},
        )
        self.again: list[Key] = []
        self.watch = RedriveWatch(self.clock, observers, self.again.append)
        self.reconciler = RedriveReconciler(context, self.watch)
        return self.client

    async def look(self, name: str = "mended") -> Result:
        """The watches deliver everything, then the Redrive is reconciled."""
        self.deliver()
        result = await self.reconciler.reconcile(("shop", name))
        await asyncio.sleep(0.01)
        return result

    def deliver(self) -> None:
        for kind in (each.kind for each in WATCHED):
            for body in list(self.store.cache(kind)):
                address = (kind.kind, body["metadata"]["namespace"], body["metadata"]["name"])
                living = self.kube.objects.get(address)
                if living is None or living["metadata"]["uid"] != body["metadata"]["uid"]:
                    self.store.cache(kind).remove(address[1:], body["metadata"]["uid"], self.kube.version)
        for (kind_name, _, _), body in self.kube.objects.items():
            for kind in (each.kind for each in WATCHED):
                if kind.kind == kind_name:
                    self.store.learn(kind, copy.deepcopy(body))

    def get(self, kind: Kind, name: str = "mended-redrive") -> JsonObject | None:
        return self.kube.objects.get((kind.kind, "shop", name))

    def status(self, name: str = "mended") -> JsonObject:
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
                metadata |= {"uid": name, "ownerReferences": [{"uid": uid}], "resourceVersion": str(self.kube.version)}
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


def test_redrive_runs_its_job_and_ends_with_the_runs_message() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        job = world.get(JOB)
        assert job is not None
        assert job["spec"]["template"]["spec"]["containers"][0]["image"].startswith("consumer-fleet-consumer:")
        assert '"groupId": "orders"' in (world.get(CONFIG_MAP) or {})["data"]["redrive.json"]
        assert (world.status()["phase"], "startedAt" in world.status()) == ("Running", True)
        world.controller()
        world.sight.positions = (Position(offset=4, metadata='{"v":1,"end":10,"selected":3,"moved":2,"guarded":1}'),)
        await asyncio.sleep(5.0)
        await world.look()
        assert world.again == [KEY, KEY], "the end of each question brings the Redrive back"
        await asyncio.sleep(6.0)
        await world.look()
        assert [world.status()[name] for name in ("selected", "moved", "guarded", "remaining")] == [3, 2, 1, 6]
        world.finish()
        result = await world.look()
        assert world.status()["phase"] == "Succeeded"
        assert [world.status()[name] for name in ("selected", "moved", "guarded", "remaining")] == [5, 4, 1, 0]
        assert result.requeue_after is None or result.requeue_after > 10
        del world.kube.objects[JOB.kind, "shop", "mended-redrive"]
        before = list(world.kube.writes)
        await world.look()
        assert world.kube.writes == before, "a finished Redrive whose Job is gone is left alone"

    run(life)


def test_final_message_not_yet_watched_is_read_live() -> None:
    """The Job's end and its pod's come by two watches: an end is final, so it must not be written down without it."""

    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        await world.look()
        stale = copy.deepcopy(next(body for a, body in world.kube.objects.items() if a[0] == POD.kind))
        world.finish()
        world.deliver()
        world.store.cache(POD).remove(("shop", stale["metadata"]["name"]), "another", world.kube.version)
        world.store.cache(POD)._objects["shop", stale["metadata"]["name"]] = stale
        await world.reconciler.reconcile(KEY)
        assert world.status()["moved"] == 4

    run(life)


def test_missing_prerequisites_are_waited_for() -> None:
    async def life(world: World) -> None:
        world.redrive()
        world.sight.seen = builders.observation(topics={})
        result = await world.look()
        assert (world.status()["phase"], world.jobs()) == ("Pending", [])
        assert result.requeue_after is not None
        assert result.requeue_after <= 5
        world.sight.seen = builders.observation(topics=TOPICS)
        await world.look()
        assert world.status()["phase"] == "Running"

    run(life)


def test_suspended_redrive_keeps_and_resumes_its_job() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        first = world.jobs()[0]["metadata"]["uid"]
        world.redrive(suspend=True)
        await world.look()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        world.redrive()
        await world.look()
        assert world.jobs()[0]["spec"]["suspend"], "the last pod has not ended yet"
        world.controller()
        await world.look()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Running", False)
        assert world.jobs()[0]["metadata"]["uid"] == first

    run(life)


def test_new_rate_means_a_new_job_once_the_old_pod_has_ended() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        first = world.jobs()[0]["metadata"]["uid"]
        world.redrive(rate={"recordsPerSecond": 7})
        await world.look()
        assert world.jobs() == []
        world.controller(end_old=False)
        await world.look()
        assert world.jobs() == [], "the old pod may still be moving records"
        world.controller()
        await world.look()
        (job,) = world.jobs()
        assert job["metadata"]["uid"] != first
        assert '"recordsPerSecond": 7' in (world.get(CONFIG_MAP) or {})["data"]["redrive.json"]

    run(life)


def test_redrives_of_one_group_take_turns_the_oldest_first() -> None:
    async def life(world: World) -> None:
        world.redrive("younger", at=2)
        world.redrive("mended", at=1)
        await asyncio.gather(world.look("younger"), world.look("mended"))
        assert [job["metadata"]["name"] for job in world.jobs()] == ["mended-redrive"]
        assert world.status("younger")["phase"] == "Pending"
        assert "'mended'" in world.status("younger")["conditions"][0]["message"]
        world.controller()
        world.redrive("mended", at=1, suspend=True)
        await world.look("mended")
        await world.look("younger")
        assert len(world.jobs()) == 1, "its pod has not ended"
        world.controller()
        await world.look("younger")
        assert len(world.jobs()) == 2
        world.redrive("mended", at=1)
        world.controller()
        await world.look("mended")
        assert world.status("mended")["phase"] == "Pending"
        world.finish()
        await world.look("younger")
        await world.look("mended")
        assert (world.status("younger")["phase"], world.status("mended")["phase"]) == ("Succeeded", "Running")
        assert world.most_pods == 1

    run(life)


def test_two_that_begin_at_the_same_moment_do_not_both_run() -> None:
    """Both decide to run from the same caches; only what is read live, one after the other, tells them apart."""

    async def life(world: World) -> None:
        world.redrive("one", at=1)
        world.deliver()
        first = asyncio.create_task(world.reconciler.reconcile(("shop", "one")))
        world.redrive("two", at=1)
        world.deliver()
        # As if its watch event were late.
        world.store.cache(REDRIVE).remove(("shop", "one"), "uid-of-one", world.kube.version)
        await asyncio.gather(first, world.reconciler.reconcile(("shop", "two")))
        assert len(world.jobs()) == 1

    run(life)


def test_nothing_is_started_for_a_redrive_deleted_unseen() -> None:
    async def life(world: World) -> None:
        world.redrive()
        world.deliver()
        del world.kube.objects[REDRIVE.kind, "shop", "mended"]
        with pytest.raises(KubeConflictError):
            await world.reconciler.reconcile(KEY)
        assert world.kube.writes == []
        assert world.store.get(REDRIVE, KEY) is None

    run(life)


def test_deleted_group_cancels_only_its_running_redrive() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        del world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        await world.look()
        assert (world.status()["phase"], world.jobs()) == ("Cancelled", [])
        world.redrive("later")
        await world.look("later")
        assert (world.status("later")["phase"], world.jobs()) == ("Pending", [])

    run(life)


def test_run_without_readers_is_paused_and_resumed() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        first = world.jobs()[0]["metadata"]["uid"]
        spec = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]
        world.put(CONSUMER_GROUP, "orders", {key: value for key, value in spec.items() if key != "retry"})
        await world.look()
        ready = world.status()["conditions"][0]
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        assert (ready["status"], ready["reason"]) == ("False", "RetryNotConfigured")
        assert "name a RetryPolicy" in ready["message"]
        world.controller()
        before = list(world.kube.writes)
        await world.look()
        assert world.kube.writes == before
        world.put(CONSUMER_GROUP, "orders", spec)
        await world.look()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Running", False)
        assert world.jobs()[0]["metadata"]["uid"] == first
        assert world.most_pods == 1

    run(life)


def test_run_of_a_group_that_is_suspended_waits_for_its_workers() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        spec = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]
        world.put(CONSUMER_GROUP, "orders", {**spec, "suspend": True})
        await world.look()
        ready = world.status()["conditions"][0]
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        assert (ready["status"], ready["reason"]) == ("False", "GroupSuspended")
        world.controller()
        world.put(CONSUMER_GROUP, "orders", spec)
        await world.look()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Running", False)

    run(life)


def test_run_on_another_cluster_than_the_groups_is_halted() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        world.kube.objects[KAFKA_CLUSTER.kind, "shop", "main"]["status"] = {"clusterId": "another"}
        world.put(KAFKA_CLUSTER, "main", {"bootstrapServers": ["kafka:9092"]})
        await world.look()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        assert world.status()["conditions"][0]["reason"] == "ClusterIdChanged"

    run(life)


def test_redrive_of_a_group_that_waits_for_an_older_one_is_not_started() -> None:
    """Both objects have the same failed topic, and the older one's Redrives would not see what this one moves."""

    async def life(world: World) -> None:
        spec = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]
        world.put(CONSUMER_GROUP, "double", {**spec, "groupId": "orders"}, at=30)
        world.redrive(groupRef={"name": "double"})
        await world.look()
        assert (world.status()["phase"], world.jobs()) == ("Pending", [])
        assert world.status()["conditions"][0]["reason"] == "GroupIdTaken"
        assert "shop/orders" in world.status()["conditions"][0]["message"]

    run(life)


def test_failed_run_is_an_end() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.look()
        world.controller()
        world.finish(code=20, word='{"ok":false,"reason":"SettingsInvalid","message":"filter.keyRegex: no"}')
        await world.look()
        (ready, complete) = world.status()["conditions"]
        assert world.status()["phase"] == "Failed"
        assert (ready["status"], complete["reason"]) == ("False", "SettingsInvalid")
        assert "filter.keyRegex" in complete["message"]

    run(life)


def test_foreign_job_is_not_taken_over() -> None:
    async def life(world: World) -> None:
        world.redrive()
        metadata = {"name": "mended-redrive", "namespace": "shop", "uid": "theirs", "resourceVersion": "1"}
        theirs = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}}
        world.kube.objects[JOB.kind, "shop", "mended-redrive"] = theirs
        await world.look()
        assert world.status()["phase"] == "Pending"
        assert world.status()["conditions"][0]["reason"] == "RefusedByApiServer"
        assert "Job `mended-redrive`" in world.status()["conditions"][0]["message"]

    run(life)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_operator_killed_at_any_call_converges(moment: Moment) -> None:
    """One life (start, suspend, resume, new rate, end) with a death at each call: the end is always the same."""
    calls = [0]
    expected: list[dict[str, Any]] = [{}]

    def life_of(fatal: int) -> Callable[[World], Awaitable[None]]:
        async def life(world: World) -> None:
            client = world.start(fatal, moment)

            async def turn(**spec: Any) -> None:
                """A user's edit, and then operators until nothing moves."""
                nonlocal client
                world.redrive(**spec)
                for _ in range(6):
                    try:
                        await world.look()
                    except DeathError:
                        calls[0] += client.calls
                        client = world.start()
                    world.controller()
                    await asyncio.sleep(6.0)

            await turn()
            await turn(suspend=True)
            await turn()
            await turn(rate={"recordsPerSecond": 9})
            world.finish()
            await turn(rate={"recordsPerSecond": 9}, suspend=True)
            status = world.status()
            outcome = {name: status[name] for name in ("phase", "selected", "moved", "guarded", "remaining")}
            assert world.most_pods == 1, f"killed {moment} call {fatal}"
            assert len(world.jobs()) == 1
            if fatal == 0:
                calls[0], expected[0] = client.calls, outcome
            assert outcome == expected[0], f"killed {moment} call {fatal}"
            assert outcome["phase"] == "Succeeded"

        return life

    run(life_of(0))
    total = calls[0]
    assert total > 10
    for fatal in range(1, total + 1):
        run(life_of(fatal))


def test_deleted_redrive_is_forgotten() -> None:
    async def life(world: World) -> None:
        world.redrive()
        world.sight.positions = (Position(offset=4, metadata='{"v":1,"end":10}'),)
        await world.look()
        assert world.watch.latest(KEY) is not None
        del world.kube.objects[REDRIVE.kind, "shop", "mended"]
        assert await world.look() == Result()
        assert world.watch.latest(KEY) is None

    run(life)


def test_unreachable_cluster_is_an_obstacle_with_its_own_reason() -> None:
    async def life(world: World) -> None:
        assert world.sight.seen is not None
        world.sight.seen = replace(world.sight.seen, reachable=False, reason="BrokerUnreachable", message="away")
        world.redrive()
        await world.look()
        assert world.status()["conditions"][0]["reason"] == "BrokerUnreachable"

    run(life)
