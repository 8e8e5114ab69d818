"""Thousands of runs of one ConsumerGroup: each finds its place without reading the others, and the later ones are
reconciled less often."""

from __future__ import annotations

import pytest

from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.reconcilers.consumergroup.gather import gather
from fleet_operator.reconcilers.run import QUEUED_SECONDS, WATCH_SECONDS
from tests.unit.reconcilers.redrive.world import World, run
from tests.unit.reconcilers.test_offsetreset import World as ResetWorld
from tests.unit.reconcilers.test_offsetreset import life

COUNT = 300


class Reads:
    """Counts the objects that are read out of caches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        loads = json_text.loads

        def counted(text: bytes) -> JsonObject:
            self.count += 1
            found: JsonObject = loads(text)
            return found

        monkeypatch.setattr(json_text, "loads", counted)


def test_redrive_finds_its_place_without_reading_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def history(world: World) -> None:
        for number in range(COUNT):
            world.redrive(f"number-{number:04}")
        await world.reconcile("number-0000")
        reads = Reads(monkeypatch)
        world.deliver()
        before = reads.count
        result = await world.reconciler.reconcile(("shop", f"number-{COUNT - 1:04}"))
        assert reads.count - before < 30
        assert world.status(f"number-{COUNT - 1:04}")["phase"] == "Pending"
        assert result == pytest.approx(QUEUED_SECONDS)
        assert await world.reconciler.reconcile(("shop", "number-0001")) == pytest.approx(WATCH_SECONDS)
        before, group = reads.count, world.store.get(CONSUMER_GROUP, ("shop", "orders"))
        assert group is not None
        assert len((await gather(world.context, group)).redrive_facts) == COUNT
        assert reads.count - before < 30

    run(history)


def test_reset_finds_its_place_and_its_group_the_hold_without_reading_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def history(world: ResetWorld) -> None:
        for number in range(COUNT):
            world.reset(f"number-{number:04}")
        await world.live("number-0000", times=3)
        last = ("shop", f"number-{COUNT - 1:04}")
        await world.reconcile(last[1])
        reads = Reads(monkeypatch)
        result = await world.reconciler.reconcile(last)
        assert world.holds()
        assert reads.count < 30
        assert result == pytest.approx(QUEUED_SECONDS)

    life(history)
