"""A KafkaCluster's Secrets are not watched: they are read again, soon while they are in the way."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.observe.observer_pool import TooManyObserversError
from fleet_operator.planning.fleet.deletion import CLUSTER_HOLD_S, POLL_S
from fleet_operator.planning.labels import CLUSTER_FINALIZER, FINALIZER
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context
from fleet_operator.reconcilers.kafkacluster import CALM_SECONDS, SECRET_SECONDS, KafkaClusterReconciler
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.reconcilers.states import States
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from tests.unit.planning.builders import observation, unreachable
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

KEY = ("shop", "main")
RESYNC_S = 600.0
SASL = {"mechanism": "SCRAM-SHA-512", "secretRef": {"name": "login"}}


class Observers:
    """Notes with what the observer was started, and shows one observation."""

    def __init__(self, seen: ClusterObservation | None) -> None:
        self.seen = seen
        self.logins: list[str | None] = []
        self.refused: list[str] = []
        self.full = ""

    def ensure(self, cluster: Any, settings: Any, connection: str = "") -> None:
        if self.full:
            raise TooManyObserversError(self.full)
        self.logins.append(settings.sasl.password)

    def refuse(self, cluster: Any, reason: str, message: str, connection: str = "") -> None:
        self.refused.append(reason)
        self.seen = replace(unreachable(reason, message), connection=connection)

    def latest(self, cluster: Any) -> ClusterObservation | None:
        return self.seen

    def stop(self, cluster: Any) -> None:
        self.seen = None


def secret(password: str) -> JsonObject:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in (("username", "a"), ("password", password))}
    labels = {"consumerfleet.io/credentials": "true"}
    metadata = {"namespace": "shop", "name": "login", "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


class Place:
    def __init__(self, seen: ClusterObservation | None) -> None:
        self.kube, self.clock = MemoryKube(), VirtualClock(asyncio.get_running_loop())
        self.store = Store(self.kube, self.clock, WATCHED)
        self.observers = Observers(seen)
        self.told: list[Any] = []
        statuses = StatusWriter(self.store, self.clock, Metrics(), writes_per_second=5.0, urgent_fields=URGENT_FIELDS)
        self.context = SimpleNamespace(
            clock=self.clock,
            store=self.store,
            states=States(self.store, self.clock),
            statuses=statuses,
            observers=self.observers,
            events=SimpleNamespace(record=self.told.append),
            metrics=Metrics(),
            resync=lambda: RESYNC_S,
            queues={KAFKA_CLUSTER: SimpleNamespace(add=lambda key: None)},
            ending=AsyncExitStack(),
        )
        self.reconciler = KafkaClusterReconciler(cast("Context", self.context))

    def ready(self) -> tuple[str, str, str]:
        (found,) = (
            each
            for each in (self.store.get(KAFKA_CLUSTER, KEY) or {})["status"]["conditions"]
            if each["type"] == "Ready"
        )
        return found["status"], found["reason"], found["message"]

    async def begin(self, *secrets: JsonObject, **fields: Any) -> None:
        for body in secrets:
            await self.kube.create(body)
        head = {"apiVersion": KAFKA_CLUSTER.api_version, "kind": KAFKA_CLUSTER.kind}
        metadata = {"namespace": "shop", "name": "main", "generation": 1}
        spec = {"bootstrapServers": ["kafka:9092"], "sasl": SASL, **fields}
        self.store.learn(KAFKA_CLUSTER, await self.kube.create({**head, "metadata": metadata, "spec": spec}))


def test_secrets_are_read_again_each_minute_while_all_is_well() -> None:
    """The resync of ten minutes would be too late for a password that ends."""

    async def main() -> None:
        place = Place(observation())
        await place.begin(secret("first"))
        result = await place.reconciler.reconcile(KEY)
        assert result == CALM_SECONDS
        await place.kube.apply(secret("second"))
        await place.reconciler.reconcile(KEY)
        assert place.observers.logins == ["first", "second"]

    run_virtual(main())


def test_connection_beyond_the_bound_is_shown_until_there_is_room() -> None:
    async def main() -> None:
        place = Place(None)
        await place.begin(secret("first"))
        place.observers.full = "too many: delete one"
        result = await place.reconciler.reconcile(KEY)
        assert place.ready() == ("False", "TooManyConnections", "too many: delete one")
        assert result == CALM_SECONDS
        place.observers.full = ""
        await place.reconciler.reconcile(KEY)
        assert place.observers.logins == ["first"]

    run_virtual(main())


def test_spec_that_is_too_large_is_refused_before_anything_is_read() -> None:
    async def main() -> None:
        place = Place(None)
        await place.begin(unknown=["x" * 100] * 1000)
        await place.reconciler.reconcile(KEY)
        status, reason, message = place.ready()
        assert (status, reason) == ("False", "SpecTooLarge")
        assert "more than 65536 are refused" in message
        assert place.observers.refused == ["SpecTooLarge"]

    run_virtual(main())


@pytest.mark.parametrize("reason", [conditions.AUTHENTICATION_FAILED, "TlsFailed"])
def test_secrets_are_read_again_soon_while_the_cluster_refuses_them(reason: str) -> None:
    async def main() -> float | None:
        place = Place(unreachable(reason))
        await place.begin(secret("wrong"))
        return await place.reconciler.reconcile(KEY)

    assert run_virtual(main()) == SECRET_SECONDS


def test_missing_secret_is_looked_for_soon() -> None:
    async def main() -> None:
        place = Place(None)
        await place.begin()
        result = await place.reconciler.reconcile(KEY)
        assert result == SECRET_SECONDS
        assert place.observers.refused == [conditions.SECRET_NOT_FOUND]

    run_virtual(main())


def test_other_failures_of_a_cluster_do_not_hurry_its_secrets() -> None:
    async def main() -> float | None:
        place = Place(unreachable())
        await place.begin(secret("right"))
        return await place.reconciler.reconcile(KEY)

    assert run_virtual(main()) == CALM_SECONDS


def test_coordinators_that_are_missing_are_a_series_until_they_are_back() -> None:
    def problems(metrics: Metrics) -> list[tuple[str, str]]:
        (family,) = metrics.cluster_problems.collect()
        return [(each.labels["condition"], each.labels["reason"]) for each in family.samples]

    async def main() -> None:
        well = observation()
        assert well.offsets_topic is not None
        without_leader = replace(well.offsets_topic, leaders=(None,), replicas=((3,),))
        place = Place(replace(well, offsets_topic=without_leader))
        metrics = place.context.metrics
        await place.begin(secret("right"))
        await place.reconciler.reconcile(KEY)
        assert problems(metrics) == [("CoordinatorsAvailable", "PartitionsOffline")]
        place.observers.seen = well
        await place.reconciler.reconcile(KEY)
        assert problems(metrics) == []
        metrics.cluster_problems.show(KEY, [("CoordinatorsAvailable", "PartitionsOffline")])
        metrics.drop_cluster(*KEY)
        assert problems(metrics) == []

    run_virtual(main())


ENDING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


class KeptPlace(Place):
    """A KafkaCluster with the finalizer, and groups that refer to it."""

    async def group(self, name: str, **metadata: Any) -> JsonObject:
        head = {"apiVersion": CONSUMER_GROUP.api_version, "kind": CONSUMER_GROUP.kind}
        whole = {"namespace": "shop", "name": name, "generation": 1, **metadata}
        found = await self.kube.create({**head, "metadata": whole, "spec": {"clusterRef": {"name": "main"}}})
        self.store.learn(CONSUMER_GROUP, found)
        return found

    async def change(self, **metadata: Any) -> JsonObject:
        body = self.kube.objects["KafkaCluster", *KEY]
        found = await self.kube.apply({**body, "metadata": {**body["metadata"], **metadata}})
        self.store.learn(KAFKA_CLUSTER, found)
        return found

    @property
    def finalizers(self) -> list[str]:
        return list(self.kube.objects["KafkaCluster", *KEY]["metadata"].get("finalizers", ()))


def kept(seen: ClusterObservation | None = None) -> KeptPlace:
    return KeptPlace(seen or observation())


def test_deleted_cluster_stays_with_its_connection_until_the_groups_are_gone_that_need_it() -> None:
    """Deleted in one command, first: without its Secrets too, as in a namespace that ends."""

    async def main() -> None:
        place = kept()
        await place.begin()
        body = await place.group("orders", finalizers=[FINALIZER], **ENDING)
        await place.change(finalizers=[CLUSTER_FINALIZER, "example.org/theirs"], **ENDING)
        for _ in range(3):
            assert await place.reconciler.reconcile(KEY) == POLL_S
            await asyncio.sleep(CLUSTER_HOLD_S)
        assert place.observers.seen is not None
        assert "orders" in place.told[0].note
        place.store.cache(CONSUMER_GROUP).remove(("shop", "orders"), body["metadata"]["uid"], 9999)
        await place.reconciler.reconcile(KEY)
        assert place.finalizers == ["example.org/theirs"]
        assert place.observers.seen is None

    run_virtual(main())


def test_deleted_cluster_waits_a_minute_for_the_deletion_of_groups_that_live() -> None:
    async def main() -> None:
        place = kept()
        await place.begin(secret("right"))
        await place.group("orders", finalizers=[FINALIZER])
        await place.change(finalizers=[CLUSTER_FINALIZER], **ENDING)
        assert await place.reconciler.reconcile(KEY) == POLL_S
        await asyncio.sleep(CLUSTER_HOLD_S)
        await place.reconciler.reconcile(KEY)
        assert place.finalizers == []

    run_virtual(main())


def test_deleted_cluster_is_observed_again_by_an_operator_that_starts_meanwhile() -> None:
    async def main() -> None:
        place = kept()
        place.observers.seen = None
        await place.begin(secret("right"))
        await place.group("orders", finalizers=[FINALIZER], **ENDING)
        await place.change(finalizers=[CLUSTER_FINALIZER], **ENDING)
        await place.reconciler.reconcile(KEY)
        assert place.observers.logins == ["right"]

    run_virtual(main())


def test_cluster_that_no_group_needs_any_more_loses_its_finalizer() -> None:
    async def main() -> None:
        place = kept()
        await place.begin(secret("right"))
        await place.group("orders")
        await place.change(finalizers=[CLUSTER_FINALIZER])
        await place.reconciler.reconcile(KEY)
        assert place.finalizers == []

    run_virtual(main())


def test_secret_that_is_gone_ends_an_observer_that_works_only_when_it_stays_away() -> None:
    async def main() -> None:
        place = Place(observation())
        await place.begin()
        assert await place.reconciler.reconcile(KEY) == SECRET_SECONDS
        assert place.observers.refused == []
        await place.reconciler.reconcile(KEY)
        assert place.observers.refused == [conditions.SECRET_NOT_FOUND]

    run_virtual(main())
