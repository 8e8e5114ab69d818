"""Later runs of a Redrive: they take up what the first one was about."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fleet_operator.clients.kinds import CONFIG_MAP
from tests.unit.reconcilers.redrive.world import World, run


def test_later_run_ends_where_the_first_one_began() -> None:
    """Of a run that was suspended for weeks Kafka has forgotten the ends, and more records have failed since."""

    def end(world: World) -> int:
        config: dict[str, Any] = json.loads((world.get(CONFIG_MAP) or {})["data"]["redrive.json"])
        at = config["filter"]["toTime"]
        assert isinstance(at, int)
        return at

    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        first, began = end(world), world.clock.wall()
        assert first >= began * 1000
        world.controller()
        world.redrive(suspend=True)
        await world.reconcile()
        world.controller()
        await asyncio.sleep(30 * 86_400)
        world.redrive(rate={"recordsPerSecond": 7})
        for _ in range(4):
            await world.reconcile()
            world.controller()
        assert '"recordsPerSecond": 7' in (world.get(CONFIG_MAP) or {})["data"]["redrive.json"]
        assert abs(end(world) - first) < 2_000, "a status has whole seconds"

    run(life)
