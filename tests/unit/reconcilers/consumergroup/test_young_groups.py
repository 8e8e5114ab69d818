"""A ConsumerGroup that was created a moment ago: its children are looked for live if it may have some."""

from __future__ import annotations

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, OPERATOR_STATE, STATEFUL_SET, JsonObject
from fleet_operator.planning import times
from fleet_operator.reconcilers.consumergroup.gather import gather
from fleet_operator.reconcilers.states import state_name
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import World, run

FLEET = (STATEFUL_SET, "orders-fleet")


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Ready", "status": "False"}]}])
@pytest.mark.parametrize("begun", [False, True])
def test_young_group_is_asked_for_its_fleet_once_it_has_a_state(
    begun: bool, status: JsonObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is written before the first child. A status can be lost, in a restore for example."""

    async def life(world: World) -> None:
        asked = world.record_reads(monkeypatch)
        spec = builders.consumer_group().spec.model_dump(by_alias=True, mode="json", exclude_none=True)
        world.put(CONSUMER_GROUP, "orders", spec)
        group = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        group["metadata"]["creationTimestamp"] = times.to_text(world.clock.wall())
        group["status"] = status
        if not begun:
            del world.kube.objects[OPERATOR_STATE.kind, "shop", state_name(CONSUMER_GROUP, "orders")]
        world.deliver()
        found = world.store.get(CONSUMER_GROUP, ("shop", "orders"))
        assert found is not None
        await gather(world.context, found)
        assert (FLEET in asked) is begun

    run(life)


def test_group_that_was_seen_before_its_first_child_is_not_asked_for_its_fleet_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An object with that name is somebody else's by then, and the creation of the fleet meets it."""

    async def life(world: World) -> None:
        asked = world.record_reads(monkeypatch)
        spec = builders.consumer_group().spec.model_dump(by_alias=True, mode="json", exclude_none=True)
        world.put(CONSUMER_GROUP, "orders", spec)
        group = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        group["metadata"]["creationTimestamp"] = times.to_text(world.clock.wall())
        state = world.kube.objects.pop((OPERATOR_STATE.kind, "shop", state_name(CONSUMER_GROUP, "orders")))
        world.deliver()
        found = world.store.get(CONSUMER_GROUP, ("shop", "orders"))
        assert found is not None
        await gather(world.context, found)
        world.store.learn(OPERATOR_STATE, state)
        await gather(world.context, found)
        assert FLEET not in asked

    run(life)
