"""A Redrive that was done is not done again, whatever became of its object and of its status."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, JOB, OPERATOR_STATE, REDRIVE, JsonObject
from fleet_operator.planning import times
from fleet_operator.planning.offsets.records import Committed
from fleet_operator.reconcilers.states import state_name
from tests.unit.reconcilers.redrive.world import World, run

STATE = state_name(REDRIVE, "fixed")
BEGAN = times.from_text("2026-01-01T00:00:00Z")


async def finished(world: World) -> None:
    """A Redrive that has succeeded, whose Job is gone."""
    world.redrive()
    await world.reconcile()
    world.controller()
    world.finish()
    for _ in range(2):
        await world.reconcile()
    assert world.status()["phase"] == "Succeeded"
    world.kube.objects.pop((JOB.kind, "shop", "fixed-redrive"), None)


def remake(world: World, created: str | None = None, **spec: Any) -> None:
    """The object again, as a tool that applies what Git keeps makes it; what belonged to the former one is gone."""
    own = ("fixed", "fixed-redrive", state_name(REDRIVE, "fixed"))
    for address in [each for each in world.kube.objects if each[2] in own]:
        del world.kube.objects[address]
    world.redrive(**spec)
    metadata = world.kube.objects[REDRIVE.kind, "shop", "fixed"]["metadata"]
    metadata["uid"] = "uid-of-another"
    metadata["creationTimestamp"] = created or metadata["creationTimestamp"]
    world.start()


def write_status(world: World, status: JsonObject) -> None:
    found = world.kube.objects[REDRIVE.kind, "shop", "fixed"]
    world.kube.version += 1
    found["status"] = status
    found["metadata"]["resourceVersion"] = str(world.kube.version)


async def settled(world: World) -> str:
    for _ in range(3):
        await world.reconcile()
        world.controller()
    return str(world.status()["phase"])


def test_object_that_is_made_again_with_the_same_spec_shows_the_end() -> None:
    async def life(world: World) -> None:
        await finished(world)
        pods = world.pods_made
        remake(world)
        assert await settled(world) == "Succeeded"
        assert (world.jobs(), world.pods_made) == ([], pods)

    run(life)


def test_object_with_another_spec_is_another_run() -> None:
    async def life(world: World) -> None:
        await finished(world)
        remake(world, maxRecords=3)
        assert await settled(world) == "Running"

    run(life)


def test_rate_is_not_what_makes_a_run_another_one() -> None:
    async def life(world: World) -> None:
        await finished(world)
        remake(world, rate={"recordsPerSecond": 7}, ttlSecondsAfterFinished=60)
        assert await settled(world) == "Succeeded"
        assert world.jobs() == []

    run(life)


def test_status_that_somebody_writes_ends_and_begins_nothing() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        write_status(world, {**world.status(), "phase": "Succeeded", "redrivenTo": 1000})
        assert await settled(world) == "Running"
        assert "redrivenTo" not in world.status()
        world.finish()
        assert await settled(world) == "Succeeded"
        world.kube.objects.pop((JOB.kind, "shop", "fixed-redrive"), None)
        write_status(world, {})
        world.start()
        assert await settled(world) == "Succeeded"
        assert world.jobs() == []

    run(life)


@pytest.mark.parametrize(
    ("created", "inherited", "reason", "begins"),
    [
        ("2026-01-01T00:05:00Z", True, "MemoryLost", False),
        ("2026-01-01T00:05:00Z", None, "NotYetObserved", False),
        ("2026-01-01T00:05:00Z", False, "Running", True),
        ("2026-01-01T01:00:00Z", True, "Running", True),
    ],
)
def test_run_that_may_be_older_than_the_memory_of_its_group_waits(
    created: str, inherited: bool | None, reason: str, begins: bool
) -> None:
    """Kafka kept the commits, and nobody knows what was done before. A younger run is new."""

    async def life(world: World) -> None:
        await finished(world)
        for address in [each for each in world.kube.objects if each[0] == OPERATOR_STATE.kind]:
            del world.kube.objects[address]
        world.keep(CONSUMER_GROUP, "orders", {"offsets": {"began": BEGAN, "inherited": inherited}})
        remake(world, created)
        phase = await settled(world)
        (complete,) = (each for each in world.status()["conditions"] if each["type"] == "Complete")
        assert (phase, complete["reason"]) == ("Running" if begins else "Pending", reason)
        assert bool(world.jobs()) is begins

    run(life)


def test_nothing_begins_before_the_group_was_reconciled() -> None:
    """Its Kafka group's commits, at the first observation, decide whether an old run may begin."""

    async def life(world: World) -> None:
        del world.kube.objects[OPERATOR_STATE.kind, "shop", state_name(CONSUMER_GROUP, "orders")]
        world.redrive()
        world.start()
        assert await settled(world) == "Pending"
        world.keep(CONSUMER_GROUP, "orders", {"offsets": {"began": BEGAN, "inherited": False}})
        assert await settled(world) == "Running"

    run(life)


def test_object_that_takes_the_place_of_its_namesake_goes_on_with_its_run() -> None:
    """With `kubectl replace --force`: progress, and what counts against maxRecords, is committed under the run's id."""

    async def life(world: World) -> None:
        def config() -> JsonObject:
            return dict(json.loads((world.get(CONFIG_MAP) or {})["data"]["redrive.json"]))

        world.redrive(maxRecords=100)
        for _ in range(2):
            await world.reconcile()
            world.controller()
        assert config()["id"] == "uid-of-fixed"
        job, config_map = (JOB, "fixed-redrive"), (CONFIG_MAP, "fixed-redrive")
        for kind, name in ((REDRIVE, "fixed"), job, config_map, (OPERATOR_STATE, STATE)):
            del world.kube.objects[kind.kind, "shop", name]
            await world.reconcile()
        world.controller()
        world.redrive(maxRecords=100)
        world.kube.objects[REDRIVE.kind, "shop", "fixed"]["metadata"]["uid"] = "uid-of-another"
        world.sight.positions = (Committed(4, '{"v":1,"end":10,"selected":3,"moved":2,"guarded":1}'),)
        for _ in range(3):
            await asyncio.sleep(6.0)
            await world.reconcile()
            world.controller()
        (made,) = world.jobs()
        assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-of-another"
        assert config()["id"] == "uid-of-fixed"
        assert "runId" not in world.status()
        world.finish()
        await world.reconcile()
        assert world.status()["phase"] == "Succeeded"

    run(life)
