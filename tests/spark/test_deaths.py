"""Drivers that are killed at bad moments: the next attempt goes on at the ledger, and repeats one slice at most."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.backfill_ledger import LEDGER_KEY, Control, Ledger, ledger_text, parse_ledger
from tests.spark.scene import LEDGER, Place, Scene, every, origins

pytestmark = pytest.mark.together


def test_files_are_exact_after_kills(place: Place, tmp_path: Path) -> None:
    """Killed while a slice runs, and again after a slice's files were committed and before the ledger says so."""
    with Scene(place, tmp_path) as scene:
        scene.send(12_000)
        first = scene.start(sink=scene.parquet, sliceRecords=3_000)
        scene.await_ledger(lambda found: found.slices_done == 1 and found.slice_offsets > 0, "the second slice")
        first.kill()
        done = scene.ledger.slices_done
        assert scene.ledger.remaining

        def die(name: str, data: dict[str, str]) -> None:
            ledger = parse_ledger(data[LEDGER_KEY]) if LEDGER_KEY in data else Ledger(attempt=0, remaining={})
            if name == LEDGER and ledger.attempt == 2 and ledger.slices_done == done + 1 and not ledger.slice_offsets:
                scene.api.away = True

        scene.api.on_write = die
        before = scene.api.data(LEDGER)[LEDGER_KEY]
        second = scene.start(attempt=2, sink=scene.parquet, sliceRecords=2_000)
        scene.await_ledger(lambda found: found.slices_done == done + 1, "a slice of the second attempt")
        second.kill()
        # As if it had died a moment before that write: the slice's files are there, and the ledger does not know.
        scene.api.put(LEDGER, {LEDGER_KEY: before})
        scene.api.away = False
        scene.run(attempt=3, sink=scene.parquet, sliceRecords=5_000)
        assert origins(scene.rows()) == every({0: 6_000, 1: 6_000})
        assert scene.ledger.counts.records_in == 12_000
        assert scene.ledger.attempt == 3


def test_a_topic_has_only_one_slice_twice(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        scene.send(6_000)
        sink = f"{scene.name}-sink"
        scene.kafka.create(sink)
        changes: dict[str, Any] = {"sink": {"topic": sink, "parquet": None}, "sliceRecords": 2_000}
        driver = scene.start(**changes)
        begun = scene.await_ledger(lambda found: found.slices_done == 1 and found.slice_offsets > 0, "slice 2")
        driver.kill()
        scene.run(attempt=2, **changes)
        written = scene.kafka.read(sink)
        names = ("kr-origin-partition", "kr-origin-offset", "kr-backfill-output", "kr-backfill-id", "kr-backfill-topic")
        seen = Counter(tuple(each.headers[name] for name in names) for each in written)
        expected = {
            (str(part).encode(), str(offset).encode(), b"0", scene.id.encode(), b"done")
            for part, offset in every({0: 3_000, 1: 3_000})
        }
        assert set(seen) == expected
        twice = [key for key, count in seen.items() if count > 1]
        assert max(seen.values()) <= 2
        left = {(part, offset) for part, spans in begun.remaining.items() for a, b in spans for offset in range(a, b)}
        assert {(int(part or 0), int(offset or 0)) for part, offset, *_ in twice} <= left
        assert len(twice) <= begun.slice_offsets
        assert scene.ledger.counts.records_out == 6_000
        assert written[0].headers["h"] == b"\x00\xff"


def test_older_attempt_ends_when_a_newer_one_has_the_ledger(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        scene.send(2_000)
        driver = scene.start(sliceRecords=500, sliceSeconds=1)
        scene.await_ledger(lambda found: found.slice_offsets > 0, "a slice")
        taken = ledger_text(Ledger(attempt=5, remaining={0: ((0, 1_000),)}))
        scene.api.put(LEDGER, {LEDGER_KEY: taken})
        assert driver.wait() == 22, driver.tail()
        assert driver.result["reason"] == "Superseded"
        assert scene.api.data(LEDGER)[LEDGER_KEY] == taken
        late = scene.run(attempt=4, code=22)
        assert "attempt 5" in late.result["message"]


def test_api_server_that_is_away_ends_nothing(place: Place, tmp_path: Path) -> None:
    """It is away for a while, and one answer to a write is lost after it was applied."""
    with Scene(place, tmp_path) as scene:
        scene.send(3_000)
        driver = scene.start(sliceRecords=1_000, sink=scene.parquet)
        scene.await_ledger(lambda found: found.slices_done == 1, "the first slice")
        scene.api.lose_next_answer = True
        scene.await_ledger(lambda found: found.slices_done == 2, "the second slice")
        scene.api.away = True
        asked = scene.api.requests

        def waits() -> bool:
            return scene.api.requests >= asked + 3

        from tests.support.waiting import eventually

        eventually(waits, what="requests while the API server is away")
        scene.api.away = False
        assert driver.wait() == 0, driver.tail()
        assert origins(scene.rows()) == every({0: 1_500, 1: 1_500})
        assert scene.ledger.counts.records_in == 3_000


def test_suspended_and_resumed_with_a_slow_handler(place: Place, tmp_path: Path) -> None:
    """A slice ends after its seconds although it is not done, so a new control takes effect within them."""
    source = (
        "import threading\n"
        "from fleet_consumer import Produce\n"
        "def handle(record):\n"
        "    threading.Event().wait(0.05)\n"
        "    return Produce('done', str(record.offset))\n"
    )
    with Scene(place, tmp_path, handler=source) as scene:
        scene.send(200)
        driver = scene.start(sink=scene.parquet, sliceSeconds=2)
        scene.await_ledger(lambda found: found.slice_offsets == 200, "the first slice, with everything")
        scene.set_control(Control(suspend=True))
        assert driver.wait() == 0, driver.tail()
        assert driver.result["reason"] == "Suspended"
        ledger = scene.ledger
        assert ledger.ended
        assert ledger.problem is None
        assert ledger.slices_done == 1
        assert 0 < ledger.counts.records_in < 150, "2 s at 40 records/s"
        assert ledger.offsets_left == 200 - ledger.counts.records_in
        scene.set_control(Control())
        scene.run(attempt=2, sink=scene.parquet, sliceSeconds=2)
        assert origins(scene.rows()) == every({0: 100, 1: 100})
        assert scene.ledger.slices_done > 2
        shutil.rmtree(scene.sink)
