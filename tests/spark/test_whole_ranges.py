"""A Backfill over a whole range: everything once, in order, as the group's handler made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.scene import Place, Scene, every, origins

pytestmark = pytest.mark.together


def test_parquet_holds_every_output_once(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        scene.send(9_000)
        scene.run(sink=scene.parquet, sliceRecords=2_000)
        rows = scene.rows()
        assert origins(rows) == every({0: 4_500, 1: 4_500})
        ledger = scene.ledger
        assert ledger.ended
        assert ledger.problem is None
        assert not ledger.remaining
        assert (ledger.counts.records_in, ledger.counts.records_out) == (9_000, 9_000)
        assert len({row["slice"] for row in rows}) == ledger.slices_done == 5
