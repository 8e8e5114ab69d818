"""The handler of a Backfill's attempts: that of its beginning, or in turns the two that are compared."""

from __future__ import annotations

from fleet_operator.clients.kinds import CONFIG_MAP
from tests.unit.reconcilers.backfill.world import World, covered, run


def test_two_images_are_compared_in_two_passes() -> None:
    async def life(world: World) -> None:
        world.backfill(
            compare={"callable": "shop:next", "image": "candidate:1"}, sink={"parquet": {"path": "s3a://bucket/x"}}
        )
        await world.live(100)
        assert (world.status()["phase"], covered(world.played)) == ("Succeeded", [2] * 20)
        images = [body["spec"]["image"] for _, body in sorted(world.applications().items())]
        assert images == ["consumer-fleet-spark:0.3.0", "candidate:1"]
        assert (world.status()["offsetsCovered"], world.status()["offsetsTotal"]) == (40, 40)

    run(life)


def test_handler_is_that_of_the_beginning_for_every_attempt() -> None:
    async def life(world: World) -> None:
        world.ends = {1: ("after", 143, {})}
        world.backfill()
        await world.live(until=lambda: "lastEnded" in world.status())
        world.config_map("source", {"shop.py": "def handle(record): raise"})
        await world.live(100)
        copy = world.get(CONFIG_MAP, "again-backfill-handler")
        assert copy is not None
        assert copy["data"] == {"shop.py": "def handle(record): ..."}
        assert world.status()["phase"] == "Succeeded"

    run(life)
