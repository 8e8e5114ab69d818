"""A Backfill's operator killed after any of its writes, against an API server in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from fleet_operator.clients.kinds import POD, ROLE_BINDING
from tests.unit.reconcilers.backfill.world import DeathError, Moment, World, covered, run


def ending(world: World) -> tuple[Any, ...]:
    """All that a Backfill leaves."""
    kinds = sorted((kind, name) for kind, _, name in world.kube.objects if kind not in (POD.kind,))
    status = {k: v for k, v in world.status().items() if k not in ("startedAt", "finishedAt", "estimatedEnd")}
    for condition in status["conditions"]:
        condition.pop("lastTransitionTime")
    status.pop("resolvedTime")
    status.pop("applicationUid")
    return kinds, status


def test_operator_killed_at_any_write_makes_no_attempt_twice() -> None:
    """Its writes are those of a life with a driver that dies, a suspension and an end. A death between reads leaves the
    same as one after the write before them."""

    async def whole(world: World, fatal: int = 0, moment: Moment = "before") -> int:
        client = world.start(fatal, moment)
        world.ends = {1: ("after", 143, {})}
        world.backfill()
        suspended = resumed = False
        for _ in range(300):
            try:
                await world.reconcile()
            except DeathError:
                client = world.start()
            world.controller()
            if world.is_final():
                break
            if not suspended and len(world.launched) == 2 and len(world.played) >= 3:
                world.backfill(suspend=True)
                suspended = True
            elif suspended and not resumed and world.status()["phase"] == "Paused":
                world.backfill(suspend=False)
                resumed = True
            await asyncio.sleep(1.0)
        calls = client.calls
        for _ in range(3):
            await world.reconcile()
        return calls

    results: dict[str, Any] = {}

    async def undisturbed(world: World) -> None:
        results["calls"] = await whole(world)
        results["end"] = ending(world)
        assert world.status()["phase"] == "Succeeded"
        assert world.launched == ["again-1", "again-2", "again-3"]

    run(undisturbed)
    deaths: list[tuple[int, Moment]] = [(1, "before"), *((k, "after") for k in range(1, results["calls"] + 1))]
    for fatal, moment in deaths:

        async def killed(world: World, fatal: int = fatal, moment: Moment = moment) -> None:
            await whole(world, fatal, moment)
            assert world.launched == ["again-1", "again-2", "again-3"], (fatal, moment)
            assert ending(world) == results["end"], (fatal, moment)
            assert covered(world.played) == [1] * 20, (fatal, moment)
            assert world.at_work_most == 1

        run(killed)
    assert len(deaths) > 30
    assert ROLE_BINDING.kind in {kind for kind, _ in results["end"][0]}
