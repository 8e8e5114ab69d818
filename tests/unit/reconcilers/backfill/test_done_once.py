"""A Backfill that was done is not done again, whatever became of its object."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.clients.kinds import BACKFILL, CONSUMER_GROUP, OPERATOR_STATE
from fleet_operator.planning import times
from fleet_operator.reconcilers.states import state_name
from tests.unit.reconcilers.backfill.world import World, run
from tests.unit.reconcilers.redrive.world import keep_state

BEGAN = times.from_text("2026-01-01T00:00:10Z")


def remake(world: World, **spec: Any) -> None:
    """The object again, as a tool that applies what Git keeps makes it; what belonged to the former one is gone."""
    group = (OPERATOR_STATE.kind, "shop", state_name(CONSUMER_GROUP, "orders"))
    for address in [each for each in world.kube.objects if each[2].startswith("again") and each != group]:
        del world.kube.objects[address]
    world.backfill(**spec)
    world.kube.objects[BACKFILL.kind, "shop", "again"]["metadata"]["uid"] = "uid-of-another"
    world.start()


@pytest.mark.parametrize(
    ("changes", "launched"),
    [
        ({}, ["again-1"]),
        ({"ttlSecondsAfterFinished": 60}, ["again-1"]),
        ({"range": {"last": {"seconds": 30}}}, ["again-1", "again-1"]),
    ],
)
def test_object_that_is_made_again_runs_only_where_it_asks_for_something_else(
    changes: dict[str, Any], launched: list[str]
) -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live()
        assert world.reason() == "AllHandled"
        remake(world, **changes)
        await world.live()
        assert (world.status()["phase"], world.reason(), world.launched) == ("Succeeded", "AllHandled", launched)

    run(life)


@pytest.mark.parametrize(
    ("inherited", "reason"), [(True, "MemoryLost"), (None, "NotYetObserved"), (False, "AllHandled")]
)
def test_run_that_may_be_older_than_the_memory_of_its_group_waits(inherited: bool | None, reason: str) -> None:
    async def life(world: World) -> None:
        keep_state(world.kube, CONSUMER_GROUP, "orders", {"offsets": {"began": BEGAN, "inherited": inherited}})
        world.backfill()
        world.start()
        await world.live(20)
        assert (world.reason(), bool(world.launched)) == (reason, inherited is False)

    run(life)
