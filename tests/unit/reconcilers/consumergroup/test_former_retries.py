"""A ConsumerGroup that had retries: its state tells so, whatever its spec and status say."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, JsonObject
from fleet_operator.planning.fleet.deletion import doomed_groups
from fleet_operator.reconcilers.consumergroup.gather import Gathered, gather
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import World, run

RETRY = {"policyRef": {"name": "standard"}}


async def gathered(world: World, state: JsonObject, **spec: Any) -> Gathered:
    """The facts of the group with this spec and state."""
    body = builders.consumer_group(**spec).spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    world.put(CONSUMER_GROUP, "orders", body)
    world.keep(CONSUMER_GROUP, "orders", state)
    world.deliver()
    group = world.store.get(CONSUMER_GROUP, ("shop", "orders"))
    assert group is not None
    return await gather(world.context, group)


@pytest.mark.parametrize(
    ("spec", "state", "had"),
    [
        ({}, {}, False),
        ({}, {"retries": {"sizing": {"count": 0}}}, False),
        ({"retry": RETRY}, {}, True),
        ({}, {"retries": {"published_at": builders.NOW}}, True),
    ],
)
def test_group_that_never_had_retries_is_not_asked_for_its_policies(
    spec: JsonObject, state: JsonObject, had: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question would be a request in every reconcile."""

    async def life(world: World) -> None:
        asked = world.record_reads(monkeypatch)
        found = await gathered(world, state, **spec)
        assert (found.had_retries, (CONFIG_MAP, "orders-fleet-retry") in asked) == (had, had)

    run(life)


def test_retry_group_of_former_retries_is_deleted_on_request() -> None:
    async def life(world: World) -> None:
        state = {"retries": {"published_at": builders.NOW}}
        found = await gathered(world, state, deletion={"group": "Delete"})
        assert found.group.spec.retry is None
        assert doomed_groups(found.group, had_retries=found.had_retries) == ("orders", "orders.retry")

    run(life)
