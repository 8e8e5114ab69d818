"""A Redrive whose ConsumerGroup is there and cannot be read."""

from __future__ import annotations

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP
from tests.unit.reconcilers.redrive.world import World, run


@pytest.mark.parametrize(("what", "reason"), [("spec", "GroupInvalid"), ("state", "StateUnreadable")])
def test_group_that_cannot_be_read_is_not_said_to_be_missing(what: str, reason: str) -> None:
    async def life(world: World) -> None:
        if what == "spec":
            world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]["consumer"] = 7
        else:
            world.keep(CONSUMER_GROUP, "orders", {"version": 99})
        world.redrive()
        await world.reconcile()
        (complete,) = (each for each in world.status()["conditions"] if each["type"] == "Complete")
        assert complete["reason"] == reason
        assert world.jobs() == []

    run(life)
