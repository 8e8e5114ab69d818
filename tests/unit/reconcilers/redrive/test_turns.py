"""Turns of the Redrives of one group: one that cannot begin holds up nobody."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, REDRIVE
from fleet_operator.planning import times
from tests.unit.reconcilers.redrive.world import World, run


async def both(world: World, count: int = 4) -> None:
    for _ in range(count):
        for name in ("old", "young"):
            await world.reconcile(name)
            world.controller()


def state_of(world: World, name: str) -> tuple[str, str]:
    """Phase and reason."""
    status = world.status(name)
    (complete,) = [each for each in status["conditions"] if each["type"] == "Complete"]
    return status["phase"], complete["reason"]


def suspend_group(world: World, *, suspend: bool) -> None:
    spec = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]
    world.put(CONSUMER_GROUP, "orders", {**spec, "suspend": suspend})


async def settled(world: World) -> None:
    """Further visits write nothing but what the API server refuses."""
    before = [each for each in world.kube.writes if "ConfigMap" not in str(each)]
    await both(world)
    assert [each for each in world.kube.writes if "ConfigMap" not in str(each)] == before


def test_redrive_of_unknown_past_does_not_hold_up_the_one_created_in_its_place() -> None:
    async def life(world: World) -> None:
        began = times.from_text("2026-01-01T00:00:00Z")
        world.keep(CONSUMER_GROUP, "orders", {"offsets": {"began": began, "inherited": True}})
        world.redrive("old", at=1)
        world.start()
        world.redrive("young", at=2)
        world.kube.objects[REDRIVE.kind, "shop", "young"]["metadata"]["creationTimestamp"] = "2026-01-01T05:00:00Z"
        await both(world)
        assert state_of(world, "old") == ("Pending", "MemoryLost")
        assert state_of(world, "young") == ("Running", "Running")
        await settled(world)

    run(life)


def test_refused_redrive_does_not_hold_up_a_younger_one_and_begins_once_it_can() -> None:
    async def life(world: World) -> None:
        metadata = {"name": "old-redrive", "namespace": "shop", "uid": "foreign", "resourceVersion": "1"}
        foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}
        world.kube.objects[CONFIG_MAP.kind, "shop", "old-redrive"] = foreign
        world.redrive("old", at=1)
        world.redrive("young", at=2)
        await world.reconcile("old")
        assert state_of(world, "old") == ("Pending", "RefusedByApiServer")
        await both(world)
        assert state_of(world, "young") == ("Running", "Running")
        await settled(world)
        del world.kube.objects[CONFIG_MAP.kind, "shop", "old-redrive"]
        await both(world)
        assert state_of(world, "old") == ("Pending", "AnotherRedriveRuns")
        world.finish()
        await both(world)
        assert (state_of(world, "old")[0], state_of(world, "young")[0]) == ("Running", "Succeeded")
        assert world.most_pods == 1

    run(life)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("spec", "phase"), [({"dryRun": True}, "Running"), ({}, "Pending")])
def test_suspended_group_holds_up_no_dry_run(begun: bool, spec: dict[str, Any], phase: str) -> None:
    async def life(world: World) -> None:
        world.redrive("old", at=1)
        if begun:
            await world.reconcile("old")
            world.controller()
        suspend_group(world, suspend=True)
        await world.reconcile("old")
        world.controller()
        world.redrive("young", at=2, **spec)
        await both(world)
        assert state_of(world, "old") == ("Paused" if begun else "Pending", "GroupSuspended")
        assert state_of(world, "young")[0] == phase
        suspend_group(world, suspend=False)
        await both(world)
        first, other = ("young", "old") if spec else ("old", "young")
        assert state_of(world, first) == ("Running", "Running")
        assert state_of(world, other) == ("Pending", "AnotherRedriveRuns")
        assert world.most_pods == 1

    run(life)
