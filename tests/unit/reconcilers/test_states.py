"""OperatorStates: who owns them, what a conflict means, and what outlives a replaced object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, OPERATOR_STATE, JsonObject
from fleet_operator.clients.kube import KubeConflictError
from fleet_operator.planning import times
from fleet_operator.planning.state.group import FleetState, GroupState, UpgradeState
from fleet_operator.planning.state.runs import RunState
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.reconcilers.states import States, StateTakenError
from fleet_operator.runtime.store import Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

KEY = ("shop", "orders")
PINNED = GroupState(upgrade=UpgradeState(image="worker:1"))
OTHER = GroupState(upgrade=UpgradeState(image="worker:2"))


def owner(uid: str = "first", **spec: Any) -> JsonObject:
    metadata = {"namespace": "shop", "name": "orders", "uid": uid, "resourceVersion": "1"}
    spec = {"clusterRef": {"name": "main"}, "groupRef": {"name": "orders"}} | spec
    return {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "ConsumerGroup", "metadata": metadata, "spec": spec}


class Place:
    """An API server, and the states of one operator after the other."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.begin()

    def begin(self) -> None:
        """Another process, whose caches have been filled."""
        self.store = Store(self.kube, self.clock, WATCHED)
        for body in self.kube.objects.values():
            self.store.learn(OPERATOR_STATE, body)
        self.states = States(self.store, self.clock)

    def read(self, of: JsonObject) -> GroupState:
        return self.states.read(of, GroupState)

    @property
    def stored(self) -> JsonObject:
        return self.kube.objects[OPERATOR_STATE.kind, "shop", "orders.consumergroup"]


def run(life: Callable[[Place], Awaitable[None]]) -> None:
    async def begin() -> None:
        await life(Place())

    run_virtual(begin())


def test_state_belongs_to_its_object_and_outlives_the_process() -> None:
    async def life(place: Place) -> None:
        assert place.read(owner()) == GroupState()
        await place.states.save(owner(), PINNED, before=None)
        assert place.read(owner()) == PINNED
        (reference,) = place.stored["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["uid"], reference["controller"]) == ("ConsumerGroup", "first", True)
        place.begin()
        assert place.read(owner()) == PINNED
        await place.states.save(owner(), OTHER, before=None)
        assert place.read(owner()) == OTHER

    run(life)


def test_state_says_since_when_it_exists_by_the_clock_of_the_api_server() -> None:
    async def life(place: Place) -> None:
        assert place.states.made_at(owner()) is None
        await place.states.save(owner(), PINNED, before=None)
        place.stored["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        place.begin()
        assert place.states.made_at(owner()) == times.from_text("2026-01-01T00:00:00Z")

    run(life)


def test_write_of_another_process_is_met_by_a_conflict_and_read_then() -> None:
    async def life(place: Place) -> None:
        await place.states.save(owner(), PINNED, before=None)
        former = place.states
        place.begin()
        await place.states.save(owner(), OTHER, before=None)
        with pytest.raises(KubeConflictError):
            await former.save(owner(), PINNED, before=None)
        assert place.read(owner()) == OTHER
        assert former.read(owner(), GroupState) == OTHER

    run(life)


def test_leader_that_was_suspended_does_not_write_over_what_its_successor_wrote() -> None:
    """Its cache has caught up before its write, and its decision rests on what was there before."""

    async def life(place: Place) -> None:
        await place.states.save(owner(), PINNED, before=GroupState())
        former, store = place.states, place.store
        decided_upon = former.read(owner(), GroupState)
        place.begin()
        await place.states.save(owner(), OTHER, before=PINNED)
        store.learn(OPERATOR_STATE, place.stored)
        with pytest.raises(KubeConflictError):
            await former.save(owner(), replace(PINNED, fleet=FleetState(wanted="r2")), before=decided_upon)
        assert place.read(owner()) == OTHER
        await former.save(owner(), PINNED, before=former.read(owner(), GroupState))
        place.begin()
        assert place.read(owner()) == PINNED

    run(life)


@pytest.mark.parametrize("gone", [False, True], ids=["state still there", "state collected"])
@pytest.mark.parametrize("spec", [{"groupId": "orders-v2"}, {"clusterRef": {"name": "other"}}])
def test_object_of_another_kafka_group_takes_nothing_over_from_its_namesake(spec: dict[str, Any], gone: bool) -> None:
    async def life(place: Place) -> None:
        await place.states.save(owner(), PINNED, before=None)
        place.states.drop_state(CONSUMER_GROUP, KEY)
        if gone:
            body = place.kube.objects.pop((OPERATOR_STATE.kind, "shop", "orders.consumergroup"))
            place.store.cache(OPERATOR_STATE).remove(
                ("shop", "orders.consumergroup"), body["metadata"]["uid"], place.kube.version
            )
        assert place.read(owner("second")) == PINNED
        assert place.read(owner("second", **spec)) == GroupState()
        assert place.read(owner("first", **spec)) == GroupState(), "one that was adopted"
        await place.states.save(owner("second", **spec), OTHER, before=GroupState())
        assert place.read(owner("second", **spec)) == OTHER

    run(life)


def test_state_that_was_made_unseen_is_read_before_anything_rests_on_an_empty_one() -> None:
    async def life(place: Place) -> None:
        blind = States(Store(place.kube, place.clock, WATCHED), place.clock)
        await place.states.save(owner(), PINNED, before=None)
        with pytest.raises(KubeConflictError):
            await blind.save(owner(), OTHER, before=None)
        assert blind.read(owner(), GroupState) == PINNED

    run(life)


def test_object_that_takes_the_place_of_its_namesake_takes_over_what_was_known() -> None:
    """`kubectl replace --force`: the state is still there, or was deleted with its owner a moment ago."""

    async def life(place: Place) -> None:
        await place.states.save(owner("first"), PINNED, before=None)
        assert place.read(owner("second")) == PINNED
        await place.states.save(owner("second"), OTHER, before=None)
        assert place.stored["metadata"]["ownerReferences"][0]["uid"] == "second"
        place.states.drop_state(CONSUMER_GROUP, KEY)
        body = place.kube.objects.pop((OPERATOR_STATE.kind, "shop", "orders.consumergroup"))
        place.store.cache(OPERATOR_STATE).remove(
            ("shop", "orders.consumergroup"), body["metadata"]["uid"], place.kube.version
        )
        assert place.read(owner("third")) == OTHER
        await asyncio.sleep(61)
        assert place.read(owner("third")) == GroupState()

    run(life)


def test_state_without_an_owner_belongs_to_the_run_or_cluster_of_its_name() -> None:
    """After an orphaning deletion, and after a restore. A ConsumerGroup takes it over with its fleet, by annotation."""

    async def life(place: Place) -> None:
        reset = owner() | {"kind": "OffsetReset"}
        await place.states.save(reset, RunState(digest="a"), before=None)
        stored = place.kube.objects[OPERATOR_STATE.kind, "shop", "orders.offsetreset"]
        stored["metadata"]["ownerReferences"] = []
        place.begin()
        assert place.states.read(reset, RunState).digest == "a"
        await place.states.save(reset, RunState(digest="b"), before=None)
        (reference,) = place.kube.objects[OPERATOR_STATE.kind, "shop", "orders.offsetreset"]["metadata"][
            "ownerReferences"
        ]
        assert reference["kind"] == "OffsetReset"

    run(life)


@pytest.mark.parametrize("gone", [False, True], ids=["state still there", "state collected"])
def test_kafka_cluster_that_was_made_again_accepts_the_cluster_that_it_finds(gone: bool) -> None:
    async def life(place: Place) -> None:
        former, present = (owner(uid) | {"kind": "KafkaCluster"} for uid in ("first", "second"))
        await place.states.save(former, ClusterIdentity(cluster_id="old"), before=None)
        place.states.drop_state(KAFKA_CLUSTER, KEY)
        if gone:
            body = place.kube.objects.pop((OPERATOR_STATE.kind, "shop", "orders.kafkacluster"))
            place.store.cache(OPERATOR_STATE).remove(
                ("shop", "orders.kafkacluster"), body["metadata"]["uid"], place.kube.version
            )
        assert place.states.read(present, ClusterIdentity) == ClusterIdentity()
        await place.states.save(present, ClusterIdentity(cluster_id="new"), before=None)
        assert place.states.read(present, ClusterIdentity) == ClusterIdentity(cluster_id="new")

    run(life)


@pytest.mark.parametrize("references", [[], [{"kind": "Deployment", "name": "orders", "uid": "x"}]])
def test_foreign_object_of_the_name_is_neither_read_nor_written(references: list[Any]) -> None:
    async def life(place: Place) -> None:
        await place.states.save(owner(), PINNED, before=None)
        place.stored["metadata"]["ownerReferences"] = references
        place.begin()
        assert place.read(owner()) == GroupState()
        with pytest.raises(StateTakenError, match=r"orders\.consumergroup.*remove it"):
            await place.states.save(owner(), OTHER, before=None)
        assert place.stored["data"]["upgrade"] == {"image": "worker:1"}

    run(life)
