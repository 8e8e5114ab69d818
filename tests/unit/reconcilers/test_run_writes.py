"""Writes of the memory of a run: for decisions that rest on it, and not for each count that is shown."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from fleet_operator.clients.kinds import BACKFILL, OPERATOR_STATE, REDRIVE
from fleet_operator.planning.offsets.records import Committed
from tests.unit.reconcilers.backfill import world as backfills
from tests.unit.reconcilers.redrive import world as redrives
from tests.unit.runtime.memory_kube import MemoryKube

COUNTED = 100
"""Changes of the counts of one run."""


def writes(kube: MemoryKube) -> Counter[str]:
    """The number of writes by kind."""
    return Counter(kind for _, kind, _ in kube.writes)


def test_hundred_slices_of_a_backfill_are_a_bounded_number_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfills, "END", COUNTED * backfills.SLICE // backfills.PARTITIONS)

    async def life(world: backfills.World) -> None:
        world.backfill()
        await world.live(1000)
        ledger = world.ledger()
        assert ledger is not None
        assert (world.status()["phase"], ledger.slices_done) == ("Succeeded", COUNTED)
        made = writes(world.kube)
        assert made[BACKFILL.kind] >= COUNTED, "each slice is shown"
        assert made[OPERATOR_STATE.kind] <= 30

    backfills.run(life)


def test_hundred_batches_of_a_redrive_are_a_bounded_number_of_writes() -> None:
    async def life(world: redrives.World) -> None:
        world.redrive()
        for batch in range(1, COUNTED + 1):
            await world.reconcile()
            world.controller()
            counts = {"selected": batch, "moved": batch, "guarded": 0, "movedBefore": 0, "failedAgain": 0}
            world.sight.positions = (Committed(batch, json.dumps({"v": 1, "end": COUNTED, **counts})),)
            await asyncio.sleep(5.0)
        world.finish()
        await world.reconcile()
        assert world.status()["phase"] == "Succeeded"
        made = writes(world.kube)
        assert made[REDRIVE.kind] >= COUNTED - 5, "each batch is shown"
        assert made[OPERATOR_STATE.kind] <= 5

    redrives.run(life)
