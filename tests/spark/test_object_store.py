"""The tests' own object store, and the jars of tables: Spark writes to it, and reads what it wrote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.spark.scene import RUN_TIMEOUT_S
from tests.support.object_store import ObjectStore
from tests.support.spark import ensure_driver_classes, ensure_spark, submit_arguments, table_arguments

TABLES = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
JOB = """
import sys
from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
files, delta = (sys.argv[1] + name for name in ("files", "delta"))
for count in (8, 5):
    session.range(count).repartition(1).write.mode("overwrite").parquet(files)
for version in (1, 1, 2):
    marks = {"txnAppId": "job", "txnVersion": version}
    session.range(5).write.format("delta").mode("append").options(**marks).save(delta)
session.range(3).writeTo("lake.db.numbers").using("iceberg").option("snapshot-property.job", "1").create()
found = session.sql("select summary['job'] from lake.db.numbers.snapshots").collect()
print(session.read.parquet(files).count(), session.read.format("delta").load(delta).count(), *(row[0] for row in found))
"""


def run(store: ObjectStore, folder: Path) -> str:
    """The last line of the job; its jars and settings are those of tests of Backfills."""
    conf = table_arguments({**store.settings, **TABLES, "spark.sql.catalog.lake.warehouse": store.url("warehouse")})
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYSPARK_PYTHON": str(ensure_spark()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **store.environment,
        **submit_arguments(folder, ensure_driver_classes(), conf),
    }
    words = [str(ensure_spark()), "-c", JOB, store.url("")]
    done = subprocess.run(words, env=own, cwd=folder, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout.strip().splitlines()[-1]


def test_files_and_tables_are_written_to_the_object_store_and_read_again(tmp_path: Path) -> None:
    with ObjectStore() as store:
        assert run(store, tmp_path) == "5 10 1"
        objects = {path.relative_to(store.folder).parts[0] for path in store.folder.rglob("*.parquet")}
        assert objects == {"files", "delta", "warehouse"}
        assert len([*(store.folder / "files").glob("*.parquet")]) == 1, "what was overwritten is gone"
    assert not store.directory.exists()


def test_objects_stay_while_the_store_is_stopped() -> None:
    with ObjectStore() as store:
        (store.folder / "kept").write_text("here")
        before = store.endpoint
        store.stop()
        store.start()
        assert (store.endpoint, (store.folder / "kept").read_text()) == (before, "here")
