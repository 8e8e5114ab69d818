"""A Backfill over a whole range: everything once, in order, as the group's handler makes it."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from fleet_consumer.contract.backfill_ledger import Control
from tests.spark.scene import Place, Scene, every, origins

pytestmark = pytest.mark.together

KINDS = """
import asyncio
import json
import os
from pathlib import Path
from typing import Any
from fleet_consumer import Produce, Skip

FOLDER = Path(__file__).parent

def setup(context):
    (FOLDER / f"setup-{os.getpid()}").write_text(f"{context.purpose} {context.group_id}")

def handle_batch(records):
    assert [record.offset for record in records] == sorted(record.offset for record in records)
    assert len({record.partition for record in records}) == 1
    with (FOLDER / "sizes").open("a") as sizes:
        sizes.write(f"{len(records)}\\n")
    return [Produce("done", json.dumps(record.value["n"])) for record in records]

async def slow(record):
    await asyncio.sleep(0)
    if record.value["n"] == 7:
        await asyncio.sleep(60)
    return [Produce("done", json.dumps(record.value["n"])), Produce("done", None, key="second")]
"""


def test_parquet_holds_every_output_once(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        scene.send(30_000)
        live = confluent_kafka.Consumer({"bootstrap.servers": place.bootstrap, "group.id": scene.name})
        live.commit(offsets=[confluent_kafka.TopicPartition(scene.topic, 0, 17)], asynchronous=False)
        began = time.monotonic()
        scene.run(sink=scene.parquet, sliceRecords=8_000)
        seconds = time.monotonic() - began
        rows = scene.rows()
        assert origins(rows) == every({0: 15_000, 1: 15_000})
        for part in (0, 1):
            # Rows of one partition stand in the order of its offsets.
            assert [row["offset"] for row in rows if row["partition"] == part] == list(range(15_000))
        expected = {json.dumps({"n": number, "seen": True}) for number in range(30_000)}
        assert _digest(row["value"] for row in rows) == _digest(expected)
        row = rows[0]
        assert (row["topic"], row["out_topic"], row["output"]) == (scene.topic, "done", 0)
        assert row["key"] == f"k{json.loads(row['value'])['n']}"
        assert row["headers"] == [{"key": "h", "value": "\x00\xff"}]
        assert abs(row["timestamp"] - time.time() * 1000) < 600_000
        ledger = scene.ledger
        assert ledger.ended
        assert ledger.problem is None
        assert not ledger.remaining
        assert (ledger.counts.records_in, ledger.counts.records_out) == (30_000, 30_000)
        assert len({row["slice"] for row in rows}) == ledger.slices_done
        assert ledger.slices_done >= 4
        # The live group was neither joined nor moved.
        assert place.kafka.committed(scene.name, scene.topic) == {0: 17}
        groups = place.kafka.groups_with_members()
        assert not {each for each in groups if "backfill" in each or each == scene.name}
        live.close()
        print(f"30,000 records in {seconds:.1f} s, the last slice at {ledger.records_per_second:.0f} records/s")


def test_batches_filters_and_free_order(place: Place, tmp_path: Path) -> None:
    """Four tasks at a time over two partitions, with a filter by key and header, and a batch handler set up once."""
    handler = {"handler.python": {"callable": "handler:handle_batch", "path": str(tmp_path / "live")}}
    with Scene(place, tmp_path, handler=KINDS, worker=handler) as scene:
        scene.send(4_000)
        changes: dict[str, Any] = {
            "ordering": "None",
            "parallelism": 4,
            "sliceRecords": 1_500,
            "filter.keyRegex": "^k[0-9]*[05]$",
            "sink": scene.parquet,
        }
        scene.run(**changes)
        rows = scene.rows()
        assert sorted(int(row["value"]) for row in rows) == list(range(0, 4_000, 5))
        counts = scene.ledger.counts
        assert (counts.records_in, counts.filtered, counts.records_out) == (800, 3_200, 800)
        sizes = [int(line) for line in (tmp_path / "live" / "sizes").read_text().split()]
        assert sum(sizes) == 800
        assert max(sizes) > 10
        ran = list((tmp_path / "live").glob("setup-*"))
        assert 1 <= len(ran) <= 2, "setup runs once in each Python process, and two tasks run at once"
        assert ran[0].read_text() == f"backfill {scene.name}"
        scene.run(attempt=2)  # a further attempt finds nothing to do
        assert scene.ledger.counts == counts


def test_asynchronous_handler_with_timeout(place: Place, tmp_path: Path) -> None:
    python = {"callable": "handler:slow", "path": str(tmp_path / "live")}
    worker = {"handler.python": python, "handler.timeoutSeconds": 1}
    source = KINDS.replace("def setup", "async def setup")
    with Scene(place, tmp_path, handler=source, worker=worker) as scene:
        scene.send(600)
        chosen: dict[str, Any] = {"filter.headerEquals": {"n": "7"}}
        scene.run(sink=scene.parquet, onError="Skip", **chosen)
        assert scene.ledger.counts.failed == 1
        scene.api.put("second", {})
        scene.run(sink=scene.parquet, onError="Skip", ledger="second", id=f"{scene.id}-b")
        rows = scene.rows(of=f"{scene.id}-b")
        assert sorted(int(row["value"]) for row in rows if row["output"] == 0) == [n for n in range(600) if n != 7]
        assert len([row for row in rows if row["output"] == 1 and row["key"] == "second"]) == 599


def test_rate_limit_binds(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path) as scene:
        scene.send(1_200)
        scene.set_control(Control(records_per_second=200))
        driver = scene.start(sliceSeconds=2)
        ledger = scene.await_ledger(lambda found: found.throttled_by == "Rate", "a slice that the rate has slowed")
        assert ledger.slices_done >= 1
        assert driver.wait() == 0
        ledger = scene.ledger
        assert ledger.counts.records_in == 1_200
        # About 400 offsets fit into two seconds at this rate.
        assert ledger.slices_done >= 3
        # No lower bound: the limit promises none, and a busy machine has none.
        assert 0 < ledger.records_per_second <= 220


def _digest(values: object) -> str:
    assert hasattr(values, "__iter__")
    return hashlib.sha256("\n".join(sorted(values)).encode()).hexdigest()
