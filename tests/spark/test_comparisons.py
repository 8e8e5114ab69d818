"""Two handlers over the same records: in one pass, and in two where their images differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.scene import Place, Scene, every, origins

pytestmark = pytest.mark.together

LIVE = """
import json
from fleet_consumer import Produce
from shared import who

PURPOSE = []

def setup(context):
    PURPOSE.append(context.purpose)

def handle(record):
    import late
    assert PURPOSE == ["compare"]
    n = record.value["n"]
    record.value["n"] = None
    if n == WRONG:
        raise ValueError("live fails")
    return Produce("done", json.dumps({"n": n, "at": who(), "by": late.WHO if n == 5 else "", "odd": n % 10 == ODD}))
"""


def sides(scene: Scene) -> dict[str, Any]:
    """Two folders with modules of the same names; records 3, 13, … differ, 5 by a module that is imported late."""
    for folder, who, odd, wrong in (("live", "live", "None", "7"), ("candidate", "candidate", "3", "8")):
        own = scene.folder / folder
        own.mkdir(exist_ok=True)
        own.joinpath("handler.py").write_text(LIVE.replace("WRONG", wrong).replace("ODD", odd))
        own.joinpath("shared.py").write_text(f"def who():\n    return {who!r}\n")
        own.joinpath("late.py").write_text(f"WHO = {who!r}\n")
    return {
        "candidate": {"callable": "handler:handle", "path": str(scene.folder / "candidate")},
        "ignoreFields": ["at"],
        "handlers": "Both",
    }


DIFFER = {3, 13, 23, 33, 43, 53, 5, 7, 8}


def test_side_by_side(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        compare = sides(scene)
        scene.send(60)
        scene.run(sink=scene.parquet, compare=compare, sliceRecords=20)
        found = scene.ledger.comparison
        assert found is not None
        assert (found.equal, found.different, found.failed_live_only, found.failed_candidate_only) == (51, 7, 1, 1)
        assert len(found.samples) == 9
        rows = scene.rows("differences")
        numbers = {row["offset"] * 2 + row["partition"]: row for row in rows}
        assert set(numbers) == DIFFER
        assert numbers[7]["live"] is None
        assert numbers[7]["live_error"] == "Exhausted: ValueError: live fails"
        assert json.loads(json.loads(numbers[3]["candidate"])["outputs"][0]["value"])["odd"] is True
        by = [json.loads(json.loads(numbers[5][side])["outputs"][0]["value"]) for side in ("live", "candidate")]
        assert [(each["at"], each["by"]) for each in by] == [("live", "live"), ("candidate", "candidate")]
        assert scene.ledger.counts.failed == 0


def test_two_passes(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        compare = sides(scene)
        scene.send(60)
        scene.run(sink=scene.parquet, compare={**compare, "handlers": "Live"}, sliceRecords=20)
        assert scene.ledger.comparison is None
        assert not scene.ledger.remaining
        # The image of the second pass has no live handler.
        (scene.folder / "live" / "handler.py").unlink()
        scene.run(attempt=2, sink=scene.parquet, compare={**compare, "handlers": "Candidate"}, sliceRecords=30)
        ledger = scene.ledger
        found = ledger.comparison
        assert ledger.handlers == "Candidate"
        assert found is not None
        assert (found.equal, found.different, found.failed_live_only, found.failed_candidate_only) == (51, 7, 1, 1)
        assert {row["offset"] * 2 + row["partition"] for row in scene.rows("differences")} == DIFFER
        assert origins(scene.rows("live")) == every({0: 30, 1: 30})
        assert ledger.slices_left == 0
        assert ledger.counts.records_in == 60
