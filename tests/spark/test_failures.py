"""Failed records by `onError`, and attempts that cannot work."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.backfill_ledger import ALIVE_KEY, Control, GuardWord
from tests.spark.scene import Place, Scene, every, origins
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def seeded(scene: Scene) -> None:
    """Two hundred records, of which two fail and three are skipped."""
    scene.send(50)
    scene.send(2, first=50, do="fail")
    scene.send(3, first=52, do="skip")
    scene.send(145, first=55)


SKIPPED = {(0, 26), (1, 26), (0, 27)}
"""The places of the records that `seeded` has skipped."""


def test_slice_under_way_gives_signs_of_progress(place: Place, tmp_path: Path) -> None:
    """One of two tasks waits until the end of the other was seen."""
    release = tmp_path / "release"
    handler = f"""
import os, threading

def handle(record):
    while record.partition == 0 and not os.path.exists({str(release)!r}):
        threading.Event().wait(0.1)
"""
    with Scene(place, tmp_path / "a", handler=handler) as scene:
        scene.send(20)
        driver = scene.start()
        sign = eventually(lambda: scene.api.data("bf-ledger").get(ALIVE_KEY), what="a sign of progress in a slice")
        assert sign == "1"
        assert scene.ledger.slices_done == 0
        release.touch()
        assert driver.wait() == 0, driver.tail()
        assert scene.ledger.counts.records_in == 20


def test_fail_stops_at_the_record_and_the_next_attempt_goes_on_there(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        seeded(scene)
        driver = scene.run(code=20, sink=scene.parquet, sliceRecords=40)
        result = driver.result
        assert result["reason"] == "HandlerFailed"
        assert f"topic '{scene.topic}' partition 0 offset 25: ValueError: asked to fail: 50" in result["message"]
        ledger = scene.ledger
        assert ledger.ended
        assert ledger.problem is not None
        assert (ledger.problem.reason, ledger.problem.final) == ("HandlerFailed", True)
        # What was done stays: in partition 0 all before the record.
        assert ledger.slices_done == 2
        done = ledger.remaining[1][0][0]
        assert ledger.remaining == {0: ((25, 100),), 1: ((done, 100),)}
        assert origins(scene.rows()) == every({0: 25, 1: done})
        assert ledger.counts.records_in == 25 + done
        (tmp_path / "live" / "handler.py").write_text(scene.handler.replace('"fail"', '"never"'))
        scene.run(attempt=2, sink=scene.parquet, sliceRecords=40)
        assert [row["value"] for row in scene.rows() if '"n": 50' in row["value"]]
        assert origins(scene.rows()) == [at for at in every({0: 100, 1: 100}) if at not in SKIPPED]


def test_skip_and_the_failed_topic(place: Place, tmp_path: Path) -> None:
    """One run skips the failed records, another writes them to the failed topic with the Backfill's id."""
    with Scene(place, tmp_path) as scene:
        seeded(scene)
        scene.run(sink=scene.parquet, onError="Skip")
        counts = scene.ledger.counts
        assert (counts.records_in, counts.failed, counts.dropped, counts.records_out) == (197, 2, 3, 195)
        assert len(scene.rows()) == 195
        failed = f"{scene.name}-failed"
        scene.kafka.create(failed, partitions=2)
        scene.api.put("second", {})
        scene.run(onError="FailedTopic", ledger="second", id="id-two")
        written = scene.kafka.read(failed)
        assert sorted(json.loads(each.value or b"")["n"] for each in written) == [50, 51]
        headers = written[0].headers
        assert headers["kr-reason"] == b"manual"
        assert headers["kr-backfill-id"] == b"id-two"
        assert headers["kr-error-class"] == b"ValueError"
        assert headers["kr-origin-topic"] == scene.topic.encode()
        assert headers["kr-group"] == scene.name.encode()
        assert headers["kr-origin-offset"] == b"25"
        assert headers["n"] in (b"50", b"51"), "the record's own headers are kept"


def test_large_record_among_small_ones_and_a_sink_that_refuses_it(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path, topic_config={"max.message.bytes": "10000000"}) as scene:
        sink = f"{scene.name}-sink"
        scene.kafka.create(sink, partitions=1, config={"max.message.bytes": "500000"})
        scene.send(400)
        # It does not compress: the sink's limit is one of compressed batches.
        scene.send(1, first=400, pad=_noise(5_000_000))
        scene.send(399, first=401)
        changes: dict[str, Any] = {"sink": {"topic": sink, "parquet": None}, "onError": "Skip", "sliceRecords": 300}
        scene.run(**changes)
        counts = scene.ledger.counts
        assert (counts.records_in, counts.failed, counts.records_out) == (800, 1, 799)
        numbers = Counter(json.loads(each.value or b"")["n"] for each in scene.kafka.read(sink))
        assert sorted(numbers) == [n for n in range(800) if n != 400]
        assert max(numbers.values()) == 1
        scene.api.put("second", {})
        driver = scene.run(code=20, ledger="second", id="id-two", **{**changes, "onError": "Fail"})
        assert driver.result["reason"] == "HandlerFailed"
        assert "partition 0 offset 200" in driver.result["message"]
        assert "refuses" in driver.result["message"]
        again = Counter(json.loads(each.value or b"")["n"] for each in scene.kafka.read(sink))
        assert set(again) == set(numbers), "what the part of the task had written comes again"


def test_range_whose_records_were_deleted(place: Place, tmp_path: Path) -> None:
    """Noticed before anything of a slice is handled, and final."""
    with Scene(place, tmp_path) as scene:
        scene.send(300)
        document = scene.document()
        scene.kafka.delete_before(scene.topic, {0: 40})
        driver = scene.run(code=20, ranges=document["ranges"], sink=scene.parquet)
        assert driver.result["reason"] == "RangeExpired"
        assert "partition 0, offsets 0 to 150: the log begins at 40" in driver.result["message"]
        assert scene.ledger.problem is not None
        assert scene.ledger.counts.records_in == 0
        scene.api.put("second", {})
        ranges = {"0": [40, 150], "1": [0, 150]}
        scene.run(ranges=ranges, sink=scene.parquet, ledger="second", id="id-two")
        scene.api.put("third", {})
        away = scene.run(code=20, topic=f"{scene.name}-none", ranges={"0": [0, 9]}, ledger="third")
        assert away.result["reason"] == "SourceTopicNotFound"


def test_handler_that_cannot_be_imported_ends_with_the_first_task(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path, handler="import no_such_module_at_all\n") as scene:
        scene.send(2)
        driver = scene.run(code=20)
        assert driver.result["reason"] == "HandlerImportFailed"
        assert "no_such_module_at_all" in driver.result["message"]
        problem = scene.ledger.problem
        assert problem is not None
        assert (problem.reason, problem.final, scene.ledger.slices_done) == ("HandlerImportFailed", True, 0)


def test_guard_pauses_between_slices_and_releases(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        scene.send(200)

        def state(number: int, *, pause: bool) -> Control:
            return Control(guard=GuardWord(pause=pause, message="live is 80 s behind", checked=str(number)))

        scene.set_control(state(1, pause=True))
        driver = scene.start(sliceRecords=100)
        ledger = scene.await_ledger(lambda found: found.throttled_by == "Guard", "the guard's pause")
        assert ledger.throttle_message == "live is 80 s behind"
        assert ledger.slices_done == 0
        assert driver.process.poll() is None
        scene.set_control(state(2, pause=False))
        assert driver.wait() == 0, driver.tail()
        assert scene.ledger.throttled_by == ""
        assert scene.ledger.counts.records_in == 200


def _noise(size: int) -> str:
    import random

    return random.Random(7).randbytes(size // 2).hex()
