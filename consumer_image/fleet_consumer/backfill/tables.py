"""Tables of a sink: rows that slices have staged become part of a table, by Spark's own writers, each exactly once.

A slice writes its rows as files of its own, which its repetition replaces. Some slices together are published: the
ledger says which, before and after, so that a publication which a death interrupts is tried again with the same rows,
and the table says whether it has them: Delta by its transaction (`txnAppId`, `txnVersion`), Iceberg by a property of
the snapshot, Parquet by the name of the folder.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.backfill.errors import BackfillFailed, summary
from fleet_consumer.backfill.rows import columns_of, schema_of
from fleet_consumer.contract.backfill_config import BackfillConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES: Final = 128 << 20
"""Size of a staged file's part that becomes one file of the table."""
STAGING: Final = "_fleet"
"""Folder of a sink's own files; Spark and Delta pass by names that begin so."""
DELTA: Final = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The default is for tables of thousands of files, and costs each look at the table seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
}
ICEBERG_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
CLASSES: Final = {"Delta": DELTA["spark.sql.catalog.spark_catalog"], "Iceberg": ICEBERG_CATALOG}
"""Classes that the image must have."""
BACKFILL: Final = "fleet.backfill"
SLICES: Final = "fleet.slices"
"""Properties of a snapshot: whose rows it added, and up to which slice (exclusive)."""


def folder_of_slice(number: int) -> str:
    """The name of the folder with the rows of a slice, or with those of a publication up to that slice."""
    return f"slice={number:06d}"


def number_of_slice(folder: str) -> int:
    """The number of the slice whose folder has this name, -1 for other names."""
    found = re.fullmatch(r"slice=(\d+)", folder)
    return int(found[1]) if found else -1


def table_settings(config: BackfillConfig, root: str, given: Callable[[str], bool]) -> Mapping[str, str]:
    """Settings of the session for the sink's table; `given` says whether the Backfill sets one itself."""
    table = config.sink.table
    if table is None or table.format == "Parquet":
        return {}
    if table.format == "Delta":
        return DELTA
    catalog = f"spark.sql.catalog.{(table.name or '').partition('.')[0]}"
    if given(catalog):
        return {}
    own = {"type": "hadoop", "warehouse": root, "cache-enabled": "false"}
    return {catalog: ICEBERG_CATALOG, **{f"{catalog}.{name}": value for name, value in own.items()}}


class Table(ABC):
    """The table of one Backfill. `prepare` is called once, before any record is handled."""

    def __init__(self, spark: SparkSession, config: BackfillConfig, root: str) -> None:
        table = config.sink.table
        assert table is not None, "the sink is a table"
        self._spark, self._id, self._root, self._table = spark, config.id, root, table
        self._columns = columns_of(config)
        self._others: Mapping[str, str] = {}  # columns of the table that the rows do not have

    def prepare(self) -> None:
        """Make the table if it is not there, or check its columns. Raises BackfillFailed."""
        from pyspark.errors import AnalysisException

        self._check_classes()
        wanted = self._spark.createDataFrame([], schema_of(self._columns))
        try:
            known = self._known(wanted)
        except AnalysisException as error:
            raise BackfillFailed("TableRefused", f"{self._place}: {summary(str(error))}", final=True) from error
        self._others = {name: kind for name, kind in known.items() if name not in wanted.columns}
        for field in wanted.schema.fields:
            kind = known.get(field.name)
            if kind is None or kind != field.dataType.simpleString():
                seen = "has no such column" if kind is None else f"has it as {kind}"
                message = f"{self._place} {seen}: {field.name} {field.dataType.simpleString()}; make the columns agree"
                raise BackfillFailed("TableRefused", message, final=True)

    @abstractmethod
    def publish(self, rows: DataFrame, end: int, *, first: bool) -> None:
        """Add the rows of the slices before `end` that are not published yet, unless the table has them. `first`: there
        was no publication before."""

    def divided(self, rows: DataFrame, size: int) -> DataFrame:
        """The rows as the table takes them, in files of a useful size; `size` is that of the staged ones in bytes."""
        from pyspark.sql.functions import lit

        for name, kind in self._others.items():
            rows = rows.withColumn(name, lit(None).cast(kind))
        files = max(1, math.ceil(size / FILE_BYTES))
        columns = self._table.partition_by
        return rows.repartition(files, *columns) if columns else rows.coalesce(files)

    @property
    def _place(self) -> str:
        return f"the table {self._table.name or self._root}"

    @abstractmethod
    def _known(self, wanted: DataFrame) -> Mapping[str, str]:
        """The columns of the table, which is made if it is not there."""

    def _check_classes(self) -> None:
        wanted = CLASSES.get(self._table.format)
        jvm: Any = self._spark.sparkContext._jvm
        try:
            if wanted is not None:
                jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(wanted)
        except Exception as error:
            message = f"the Spark image has no libraries for tables of {self._table.format}: build one FROM it that has"
            raise BackfillFailed("TableFormatMissing", message, final=True) from error


class ParquetTable(Table):
    """Files in a folder of the Backfill; the folder of a publication is named after its last slice."""

    def publish(self, rows: DataFrame, end: int, *, first: bool) -> None:
        written = rows.write.mode("overwrite").partitionBy(*self._table.partition_by)
        written.parquet(f"{self._root}/{self._id}/{folder_of_slice(end - 1)}")

    def _known(self, wanted: DataFrame) -> Mapping[str, str]:
        return _types(wanted)


class DeltaTable(Table):
    """A Delta table at the sink's path."""

    def publish(self, rows: DataFrame, end: int, *, first: bool) -> None:
        replaces = first and self._table.mode == "Replace"
        written = rows.write.format("delta").mode("overwrite" if replaces else "append")
        written.option("txnAppId", self._id).option("txnVersion", str(end)).save(self._root)

    def _known(self, wanted: DataFrame) -> Mapping[str, str]:
        # Adds no rows, and makes a table that is not there.
        made = wanted.write.format("delta").mode("ignore").partitionBy(*self._table.partition_by)
        made.save(self._root)
        return _types(self._spark.read.format("delta").load(self._root))


class IcebergTable(Table):
    """A table of a catalog."""

    def publish(self, rows: DataFrame, end: int, *, first: bool) -> None:
        from pyspark.sql.functions import lit

        # Drivers take turns: what this one does not see, no other one is about to add.
        if any(found.get(BACKFILL) == self._id and int(found.get(SLICES)) >= end for found in self._summaries()):
            return
        written = rows.writeTo(str(self._table.name))
        for name, value in {BACKFILL: self._id, SLICES: str(end)}.items():
            written = written.option(f"snapshot-property.{name}", value)
        if first and self._table.mode == "Replace":
            written.overwrite(lit(True))
        else:
            written.append()

    def _known(self, wanted: DataFrame) -> Mapping[str, str]:
        columns = schema_of(dict(_types(wanted)))
        division = ", ".join(f"`{name}`" for name in self._table.partition_by)
        by = f" PARTITIONED BY ({division})" if division else ""
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self._table.name} ({columns}) USING iceberg{by}")
        return _types(self._spark.table(str(self._table.name)))

    def _summaries(self) -> list[Any]:
        """The properties of the table's snapshots, as Java's maps."""
        jvm: Any = self._spark.sparkContext._jvm
        loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._spark._jsparkSession, self._table.name)
        return [snapshot.summary() for snapshot in loaded.snapshots()]


TABLES: Final[Mapping[str, type[Table]]] = {"Parquet": ParquetTable, "Delta": DeltaTable, "Iceberg": IcebergTable}


def _types(rows: DataFrame) -> Mapping[str, str]:
    return {field.name: field.dataType.simpleString() for field in rows.schema.fields}
