"""A run that was done is not done again where its group's list of runs is full, and where a state is garbage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet_operator.clients.kinds import BACKFILL, CONSUMER_GROUP, OFFSET_RESET, OPERATOR_STATE
from fleet_operator.planning.state.runs import ENTRIES_MAX
from fleet_operator.reconcilers.offsetreset import find_hold
from tests.unit.reconcilers.backfill.test_done_once import remake
from tests.unit.reconcilers.backfill.world import World, run
from tests.unit.reconcilers.redrive.world import DeathError, keep_state
from tests.unit.reconcilers.test_offsetreset import World as ResetWorld
from tests.unit.reconcilers.test_offsetreset import life as reset_life

STATE = "orders.consumergroup"


def past(count: int, kind: str) -> dict[str, Any]:
    """The content of a group's state with so many runs whose objects are gone."""
    head = {"kind": kind, "digest": "0" * 16, "phase": "Succeeded", "at": "2025-12-01T00:00:00Z"}
    runs = [head | {"name": f"night-{number}"} for number in range(count)]
    return {"offsets": {"began": 1.0, "inherited": True}, "runs": runs}


def die_at_write_of_the_list(kube: Any, number: int) -> None:
    """Kill the operator before it writes the group's state for the time of this number, counted from 1."""
    before, writes = kube.before, list[str]()

    def fatal(verb: str, kind: str, name: str) -> None:
        before(verb, kind, name)
        if (verb, kind, name) == ("replace", OPERATOR_STATE.kind, STATE):
            writes.append(name)
            if len(writes) == number:
                raise DeathError

    kube.before = fatal


@pytest.mark.parametrize("count", [ENTRIES_MAX - 1, ENTRIES_MAX])
def test_backfill_whose_operator_died_between_both_memories_is_not_run_again(count: int) -> None:
    async def life(world: World) -> None:
        keep_state(world.kube, CONSUMER_GROUP, "orders", past(count, "Backfill"))
        world.start()
        world.backfill()
        die_at_write_of_the_list(world.kube, 1)
        with pytest.raises(DeathError):
            await world.live()
        world.start()
        await world.live()
        for _ in range(5):
            await world.reconcile()
            await asyncio.sleep(30.0)
        remake(world)
        await world.live()
        assert world.launched == ["again-1"]

    run(life)


@pytest.mark.parametrize("count", [ENTRIES_MAX - 1, ENTRIES_MAX])
def test_reset_whose_operator_died_between_both_memories_is_not_said_to_have_failed(count: int) -> None:
    async def life(world: ResetWorld) -> None:
        world.keep(CONSUMER_GROUP, "orders", past(count, "OffsetReset"))
        world.start()
        world.reset()
        die_at_write_of_the_list(world.kube, 2)
        with pytest.raises(DeathError):
            await world.live()
        world.start()
        await world.live()
        assert world.phase() == "Succeeded"
        world.replace()
        assert (await world.live(), world.kafka.sets) == ("Succeeded", 1)

    reset_life(life)


def test_run_that_only_its_own_state_remembers_survives_a_forced_replacement() -> None:
    async def life(world: World) -> None:
        keep_state(world.kube, CONSUMER_GROUP, "orders", past(0, "Backfill"))
        world.start()
        world.backfill()
        await world.live()
        for _ in range(3):
            await world.reconcile()
        state = world.kube.objects[OPERATOR_STATE.kind, "shop", STATE]
        state["data"]["runs"] = past(ENTRIES_MAX, "Backfill")["runs"]
        world.kube.version += 1
        state["metadata"]["resourceVersion"] = str(world.kube.version)
        del world.kube.objects[BACKFILL.kind, "shop", "again"]
        await world.reconcile()
        for address in [each for each in world.kube.objects if each[2].startswith("again")]:
            del world.kube.objects[address]
        world.backfill()
        world.kube.objects[BACKFILL.kind, "shop", "again"]["metadata"]["uid"] = "uid-of-another"
        await world.reconcile()
        await asyncio.sleep(61.0)
        await world.reconcile()
        await world.live()
        assert (world.status()["phase"], world.launched) == ("Succeeded", ["again-1"])

    run(life)


@pytest.mark.parametrize("phase", [{}, []])
def test_garbage_in_the_state_of_one_run_stops_neither_its_group_nor_others(phase: Any) -> None:
    async def life(world: ResetWorld) -> None:
        world.reset()
        world.keep(OFFSET_RESET, "again", {"version": 1, "digest": "x", "facts": {"phase": phase}})
        world.start()
        world.deliver()
        find_hold(world.context, ("shop", "orders"), begun=True)
        world.reset("other")
        await world.reconcile("other")

    reset_life(life)
