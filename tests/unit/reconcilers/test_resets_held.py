"""OffsetResets whose ground changes under them: another cluster, an edit that changes nothing, a state that is lost."""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import pytest

from fleet_consumer.net import NetError
from fleet_operator.api.v1alpha1 import OffsetReset
from fleet_operator.clients.kinds import CONSUMER_GROUP, OFFSET_RESET, OPERATOR_STATE
from fleet_operator.clients.kube import KubeConflictError
from fleet_operator.planning.offsets.records import Committed, marker_of
from fleet_operator.planning.offsets.targets import Member
from fleet_operator.planning.state.runs import entry_of
from tests.unit.reconcilers.test_offsetreset import KEY, NAME, PLACES, World, life

MORNING = "2025-11-23T08:00:00Z"


async def until_committing(world: World) -> None:
    """The offsets are on record, and the brokers are away."""

    def away(*_: Any, **__: Any) -> Any:
        raise NetError("the brokers are away")

    setting = world.kafka.set_offsets
    world.kafka.set_offsets = away  # type: ignore[method-assign]
    world.reset(to="Latest")
    assert (await world.live(), world.holds()) == ("Committing", True)
    world.kafka.set_offsets = setting  # type: ignore[method-assign]


@pytest.mark.parametrize(("client_id", "phase"), [("orders-fleet-0", "StoppingWorkers"), ("orders-0", "Pending")])
def test_workers_without_static_membership_are_told_from_other_programs(client_id: str, phase: str) -> None:
    """By their client id, which is the name of their pod."""

    async def history(world: World) -> None:
        read_offsets = world.kafka.read_offsets

        def read(*asked: Any, **options: Any) -> Any:
            return replace(read_offsets(*asked, **options), state="Stable", members=(Member(None, client_id),))

        world.kafka.read_offsets = read  # type: ignore[method-assign]
        world.reset()
        assert await world.live() == phase

    life(history)


def test_reset_that_was_done_for_another_kafka_group_is_done_for_this_one() -> None:
    """Both objects are deleted and made again, the ConsumerGroup with another group id."""

    async def history(world: World) -> None:
        world.reset()
        assert await world.live() == "Succeeded"
        group = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        world.kube.version += 1
        group["metadata"] |= {"uid": "second", "resourceVersion": str(world.kube.version)}
        group["spec"]["groupId"] = "orders-v2"
        world.kafka.commits = {}
        world.replace()
        assert await world.live() == "Pending", "nothing is known of this Kafka group yet"
        world.remember_group()
        world.start()
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 2)

    life(history)


def test_leader_that_was_suspended_does_not_take_back_an_end() -> None:
    """It decided to commit, its successor did and ended the reset, and its cache has caught up before it goes on."""

    async def history(world: World) -> None:
        world.reset()
        while world.phase() != "StoppingWorkers":
            await world.reconcile(NAME)
            await asyncio.sleep(5.0)
        await world.reconcile(NAME)
        await asyncio.sleep(1.0)
        before, suspended = world.kube.before, list[str]()

        def resumed(verb: str, kind: str, name: str) -> None:
            """The finalizer is the first write of a reset that is to be committed."""
            if (verb, kind) == ("apply", OFFSET_RESET.kind) and not suspended:
                suspended.append(name)
                end_by_successor(world)
            before(verb, kind, name)

        world.kube.before = resumed
        with suppress(KubeConflictError):
            await world.reconciler.reconcile(KEY)
        assert suspended
        world.kube.before = before
        world.start()
        assert await world.live() == "Succeeded"
        assert world.kafka.commits["orders", 1].offset == 77

    life(history)


def end_by_successor(world: World) -> None:
    run = OffsetReset.model_validate(world.get(OFFSET_RESET, NAME))
    reset, group = state_of(world), world.kube.objects[OPERATOR_STATE.kind, "shop", "orders.consumergroup"]
    reset["data"]["facts"] |= {"phase": "Succeeded"}
    group["data"]["runs"] = [asdict(entry_of(run, phase="Succeeded"))]
    world.kafka.commits = {
        ("orders", 0): Committed(10, marker_of(run)),
        ("orders", 1): Committed(77, "fleet-read_offsets=2"),
    }
    for state in (reset, group):
        world.kube.version += 1
        state["metadata"]["resourceVersion"] = str(world.kube.version)
        world.store.learn(OPERATOR_STATE, copy.deepcopy(state))


def state_of(world: World) -> Any:
    return world.kube.objects[OPERATOR_STATE.kind, "shop", f"{NAME}.offsetreset"]


@pytest.mark.parametrize("same", ["2025-11-23T08:00:00.000Z", "2025-11-23T09:00:00+01:00"])
def test_edit_that_the_api_server_takes_for_none_does_not_set_offsets_again(same: str) -> None:
    async def history(world: World) -> None:
        read_offsets = world.kafka.read_offsets

        def read(*asked: Any, **options: Any) -> Any:
            return replace(read_offsets(*asked, **options), found=dict.fromkeys(PLACES, 20))

        world.kafka.read_offsets = read  # type: ignore[method-assign]
        world.reset(to="Time", time=MORNING)
        assert await world.live() == "Succeeded"
        world.kafka.commits = dict.fromkeys(PLACES, Committed(80, "fleet-read_offsets=2"))
        body = world.kube.objects[OFFSET_RESET.kind, "shop", NAME]
        body["spec"]["time"], body["metadata"]["generation"] = same, 2
        world.start()
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 1)

    life(history)


@pytest.mark.parametrize("restarted", [False, True])
def test_offsets_that_were_read_on_another_cluster_are_read_again(restarted: bool) -> None:
    async def history(world: World) -> None:
        world.kafka.commits = {}
        read_offsets, seen = world.kafka.read_offsets, world.kafka.seen
        assert seen is not None
        ends = {seen.cluster_id: 90, "made again": 500}

        def read(*asked: Any, **options: Any) -> Any:
            assert world.kafka.seen is not None
            cluster_id = str(world.kafka.seen.cluster_id)
            found = read_offsets(*asked, **options)
            return replace(found, ends=dict.fromkeys(PLACES, ends[cluster_id]), cluster_id=cluster_id)

        world.kafka.read_offsets = read  # type: ignore[method-assign]
        await until_committing(world)
        world.kafka.seen = replace(seen, cluster_id="made again")
        if restarted:
            world.start()
        assert await world.live(times=20) == "Succeeded"
        assert {each.offset for each in world.kafka.commits.values()} == {500}

    life(history)


def test_fleet_is_held_while_the_state_of_its_reset_cannot_be_read() -> None:
    async def history(world: World) -> None:
        await until_committing(world)
        state_of(world)["data"]["version"] = 2
        world.start()
        await world.reconcile(NAME)
        found = world.get(OFFSET_RESET, NAME)
        assert found is not None
        assert found["status"]["conditions"][0]["reason"] == "StateUnreadable"
        assert world.holds()

    life(history)


def test_reset_that_its_group_remembers_to_be_done_holds_nothing_whoever_reads_its_state() -> None:
    async def history(world: World) -> None:
        world.reset()
        assert await world.live() == "Succeeded"
        state_of(world)["data"]["version"] = 2
        world.start()
        await world.reconcile(NAME)
        assert not world.holds()

    life(history)


@pytest.mark.parametrize("deleted", [False, True])
def test_state_that_lost_its_owner_is_that_of_the_object_of_its_name(deleted: bool) -> None:
    """An orphaning deletion leaves it so, and so do backups."""

    async def history(world: World) -> None:
        await until_committing(world)
        state_of(world)["metadata"]["ownerReferences"] = []
        if deleted:
            world.kube.objects[OFFSET_RESET.kind, "shop", NAME]["metadata"]["deletionTimestamp"] = MORNING
        world.start()
        held = []
        for _ in range(12):
            if (OFFSET_RESET.kind, "shop", NAME) in world.kube.objects:
                await world.reconcile(NAME)
            held.append(world.holds())
            await asyncio.sleep(5.0)
        assert held[0]
        assert not world.holds()
        assert {each.offset for each in world.kafka.commits.values()} == {90}
        left = world.kube.objects.get((OFFSET_RESET.kind, "shop", NAME), {"metadata": {}})
        assert not left["metadata"].get("finalizers")

    life(history)


def test_end_that_cannot_be_remembered_is_shown_and_its_object_stays() -> None:
    async def history(world: World) -> None:
        world.reset(ttlSecondsAfterFinished=60)
        assert await world.live() == "Succeeded"
        state_of(world)["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "x", "uid": "x"}]
        world.start()
        await asyncio.sleep(120.0)
        assert await world.live() == "Succeeded"
        assert [event.reason for event in world.told][-1] == "NameTaken"

    life(history)
