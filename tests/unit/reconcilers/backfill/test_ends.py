"""Ends of a Backfill: lost settings, its time after the end, and the last word of its driver."""

from __future__ import annotations

import asyncio

from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP
from tests.unit.reconcilers.backfill.world import KEY, World, run


def test_lost_settings_end_a_backfill() -> None:
    async def life(world: World) -> None:
        world.ends = {1: ("after", 143, {})}
        world.backfill()
        await world.live(until=lambda: "lastEnded" in world.status())
        del world.kube.objects[CONFIG_MAP.kind, "shop", "again-backfill"]
        await world.live(100)
        assert (world.status()["phase"], world.reason()) == ("Failed", "SettingsLost")

    run(life)


def test_finished_backfill_is_deleted_after_its_time() -> None:
    async def life(world: World) -> None:
        world.backfill(ttlSecondsAfterFinished=30)
        await world.live()
        await world.look()
        assert world.get(BACKFILL, "again") is not None
        await asyncio.sleep(31)
        await world.look()
        assert world.get(BACKFILL, "again") is None

    run(life)


def test_last_word_of_a_driver_is_read_although_no_watch_has_brought_it() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        world.deliver()
        world.finish(1, 21, reason="BrokerUnreachable", message="nobody there")
        await world.reconciler.reconcile(KEY)  # the caches still have a pod that runs
        assert world.status()["lastEnded"]["reason"] == "BrokerUnreachable"

    run(life)
