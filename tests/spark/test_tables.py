"""Results as tables: typed, each output once whatever dies, on a disk and on an object store."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.spark.scene import RUN_TIMEOUT_S, Place, Scene
from tests.support.object_store import ObjectStore
from tests.support.spark import ensure_driver_classes, submit_arguments, table_arguments
from tests.support.suites import ROOT

pytestmark = pytest.mark.together

TOOL = Path(__file__).with_name("table_tool.py")
HANDLER = """
import json, time
from fleet_consumer import Produce

def handle(record):
    number = record.value["n"]
    time.sleep(record.value.get("s", 0))
    row = {"n": number, "word": "é" * (number % 3), "half": number / 2, "price": f"{number}.25"}
    row |= {"even": number % 2 == 0, "at": 1_769_860_800_000 + number, "day": f"2026-01-{1 + number % 3:02d}"}
    row |= {"more": {"n": [number]}}
    return Produce("done", json.dumps(row | record.value.get("change", {})), key=record.key)
"""


def column(name: str, kind: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "from": "Value", "field": None, "required": False} | changes


COLUMNS = [
    column("n", "bigint", required=True),
    column("word", "string"),
    column("half", "double"),
    column("price", "decimal(12,2)"),
    column("even", "boolean"),
    column("at", "timestamp"),
    column("day", "date"),
    column("more", "string"),
    column("place", "bigint", **{"from": "Offset"}),
    column("key", "string", **{"from": "Key"}),
]
TYPES = {each["name"]: each["type"] for each in COLUMNS}


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as started:
        yield started


def sink(kind: str, path: str, **changes: Any) -> dict[str, Any]:
    name = "lake.shop.flights" if kind == "Iceberg" else None
    table = {"format": kind, "path": path, "name": name, "mode": "Append", "partitionBy": [], "columns": COLUMNS}
    return {"topic": None, "parquet": None, "table": table | changes}


def settings(kind: str, root: str, store: ObjectStore | None = None) -> dict[str, str]:
    """The settings of a session that reads such a table."""
    own = {} if store is None else store.settings
    if kind == "Delta":
        own = {**own, "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
    if kind == "Iceberg":
        catalog = "spark.sql.catalog.lake"
        own = {**own, catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop"}
        own[f"{catalog}.warehouse"] = root
    return {**own, "spark.sql.session.timeZone": "UTC"}


def asked(place: Place, folder: Path, *words: str, environment: Mapping[str, str] = {}) -> list[Any]:
    """The lines that the tool prints."""
    scratch = folder / "tool"
    scratch.mkdir(exist_ok=True)
    own = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT / "consumer_image")}
    own |= {"PYSPARK_PYTHON": str(place.python), "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(scratch)}
    own |= submit_arguments(scratch, ensure_driver_classes(), table_arguments({})) | dict(environment)
    command = [str(place.python), str(TOOL), *words]
    done = subprocess.run(command, cwd=scratch, env=own, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-6000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("Parquet", True), ("Delta", True), ("Iceberg", False)],
)
def test_table_has_each_output_once_though_its_driver_was_killed(
    place: Place, tmp_path: Path, store: ObjectStore, kind: str, stored: bool
) -> None:
    count = 3_000
    root = store.url(tmp_path.name) if stored else str(tmp_path / "sink")
    conf = table_arguments(store.settings if stored else {})
    environment = store.environment if stored else {}
    with Scene(place, tmp_path, handler=HANDLER, conf=conf, environment=environment) as scene:
        scene.send(count - 200)
        scene.send(200, first=count - 200, s=0.02)
        changes: dict[str, Any] = {"sink": sink(kind, root, partitionBy=["day"]), "sliceRecords": 400}
        driver = scene.start(**changes)
        scene.await_ledger(lambda ledger: ledger.slices_done >= 2, "two slices")
        driver.kill()
        scene.run(2, **changes)
        ledger = scene.ledger
        assert (ledger.ended, ledger.counts.records_in, ledger.counts.failed) == (True, count, 0)
        assert ledger.published == ledger.slices_done
        read = {"Iceberg": "lake.shop.flights", "Parquet": f"{root}/{scene.id}"}.get(kind, root)
        conf = json.dumps(settings(kind, root, store if stored else None))
        *rows, about = asked(place, tmp_path, "rows", kind, read, conf, environment=environment)
    assert Counter(row["n"] for row in rows) == dict.fromkeys(range(count), 1)
    assert {name: about["types"][name] for name in TYPES} == TYPES
    # One publication of a table in three parts; not the files of each slice.
    assert about["files"] <= 3, about
    one = next(row for row in rows if row["n"] == 1_001)
    assert (one["word"], one["half"], one["price"], one["even"]) == ("éé", 500.5, "1001.25", False)
    assert (one["at"], one["day"]) == ("2026-01-31 12:00:01.001000", "2026-01-03")
    assert (one["more"], one["place"], one["key"]) == ('{"n":[1001]}', 500, "k1001")
    if not stored:
        assert list((tmp_path / "sink" / "_fleet" / scene.id).glob("slice=*")) == []


@pytest.mark.parametrize("kind", ["Parquet", "Delta", "Iceberg"])
def test_group_that_the_table_has_is_not_added_again(place: Place, tmp_path: Path, kind: str) -> None:
    root = str(tmp_path / "sink")
    conf = json.dumps(settings(kind, root))
    found = asked(place, tmp_path, "twice", kind, "lake.shop.flights", conf, root)
    counts = [(each["count"], each["distinct"], each["least"]) for each in found]
    once = [(10, 10, 0), (10, 10, 0), (30, 30, 0), (30, 30, 0)]
    assert counts == once + ([] if kind == "Parquet" else [(5, 5, 100), (5, 5, 100), (7, 7, 100)])


def test_outputs_that_do_not_fit_are_failed_records(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path, handler=HANDLER) as scene:
        scene.send(40)
        scene.send(2, first=40, change={"price": "1.005"})
        scene.send(1, first=42, change={"n": None})
        changes: dict[str, Any] = {"sink": sink("Parquet", str(scene.sink))}
        driver = scene.run(code=20, **changes)
        assert driver.result["reason"] == "HandlerFailed"
        said = driver.result["message"]
        assert "partition 0 offset 20: " in said
        assert "OutputRefused: column 'price' of the table must be decimal(12,2), not str '1.005'" in said
        scene.run(2, onError="Skip", **changes)
        counts = scene.ledger.counts
        assert (counts.records_in, counts.failed, counts.records_out) == (43, 3, 40)
        assert sorted(row["n"] for row in scene.rows()) == list(range(40))


def test_table_of_other_columns_is_refused_before_any_record(place: Place, tmp_path: Path) -> None:
    with Scene(place, tmp_path, handler=HANDLER, conf=table_arguments({})) as scene:
        scene.send(10)
        scene.run(sink=sink("Delta", str(scene.sink)))
        scene.api.put("bf-ledger", {})
        other = [column("n", "string"), *COLUMNS[1:]]
        driver = scene.run(2, code=20, sink=sink("Delta", str(scene.sink), columns=other))
        assert driver.result["reason"] == "TableRefused"
        assert "has the type bigint, but the Backfill writes string" in driver.result["message"]
        scene.api.put("bf-ledger", {})
        twice = [column("n", "int"), column("N", "int")]
        driver = scene.run(3, code=20, sink=sink("Delta", f"{scene.sink}-2", columns=twice))
        assert driver.result["reason"] == "TableRefused"
        assert scene.ledger.counts.records_in == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (sink("Delta", "/nowhere"), "TableFormatMissing"),
        (sink("Iceberg", "/nowhere"), "TableFormatMissing"),
        (sink("Parquet", "s3a://lake/x"), "SinkUnsupported"),
        ({"topic": None, "parquet": "s3a://lake/x"}, "SinkUnsupported"),
    ],
)
def test_image_without_the_libraries_says_so_at_once(
    place: Place, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with Scene(place, tmp_path, handler=HANDLER) as scene:
        scene.send(4)
        driver = scene.run(code=20, sink=changes)
        assert driver.result["reason"] == reason
        assert scene.ledger.counts.records_in == 0
