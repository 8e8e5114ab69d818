"""Tables as sinks: the rows staged by slices are added to a table with Spark's writers, each row exactly once.

A slice stages its rows in files; a repeated slice replaces its files. The rows of several slices are committed
together. Before a commit, the ledger records its slices, so an interrupted commit is repeated with the same rows. The
table shows whether it already has the rows: Delta by its transaction (`txnAppId`, `txnVersion`), Iceberg by a property
of the snapshot, Parquet by the name of the folder.

A commit for each slice would lose rows: a repeated slice may have other offsets under the same number, and Delta
ignores a commit whose version is not higher than the last.

Decision: docs/decisions/0060-tables.md.
"""

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
"""Target number of staged bytes per file of the table."""
STAGING: Final = "_fleet"
"""Folder of staged files; Spark and Delta ignore names that begin with an underscore."""
DELTA: Final = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's default is meant for tables with thousands of files; with it, loading a small table takes seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
}
ICEBERG_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
CLASSES: Final = {"Delta": DELTA["spark.sql.catalog.spark_catalog"], "Iceberg": ICEBERG_CATALOG}
"""Required Java class of the Spark image, keyed by the table's format."""
BACKFILL: Final = "fleet.backfill"
SLICES: Final = "fleet.slices"
"""Properties of an Iceberg snapshot: the id of the Backfill that added rows, and the end (exclusive) of its slices."""


def folder_of_slice(number: int) -> str:
    """Return the name of the folder for the rows of a slice, or for the rows of a commit that ends with this slice."""
    return f"slice={number:06d}"


def number_of_slice(folder: str) -> int:
    found = re.fullmatch(r"slice=(\d+)", folder)
    return int(found[1]) if found else -1


def table_settings(config: BackfillConfig, root: str, given: Callable[[str], bool]) -> Mapping[str, str]:
    """Return the Spark settings that the sink's table needs. `given(name)` is True if the Spark configuration already
    has the setting, for example from `sparkConf`. A catalog that is already configured is not changed."""
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

    def __init__(self, spark: "SparkSession", config: BackfillConfig, root: str) -> None:
        table = config.sink.table
        assert table is not None, "the sink is a table"
        self._spark, self._id, self._root, self._table = spark, config.id, root, table
        self._columns = columns_of(config)
        self._others: Mapping[str, str] = {}  # types of table columns that the rows lack, by name

    def prepare(self) -> None:
        """Create the table if it is missing, and check its columns. Raises BackfillFailed."""
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
                seen = "is missing" if kind is None else f"has the type {kind}"
                message = (
                    f"column {field.name} of {self._place} {seen}, but the Backfill writes "
                    f"{field.dataType.simpleString()}; change the table or its columns"
                )
                raise BackfillFailed("TableRefused", message, final=True)

    @abstractmethod
    def publish(self, rows: "DataFrame", end: int, *, first: bool) -> None:
        """Add the rows of the unpublished slices before `end`, unless the table already has them. `first` is True for
        the Backfill's first commit."""

    def divided(self, rows: "DataFrame", size: int) -> "DataFrame":
        """Return the rows with all columns of the table, split into files. `size`: staged size of the rows in bytes."""
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
    def _known(self, wanted: "DataFrame") -> Mapping[str, str]:
        """Return the types of the table's columns by name. Creates the table if it is missing."""

    def _check_classes(self) -> None:
        wanted = CLASSES.get(self._table.format)
        jvm: Any = self._spark.sparkContext._jvm
        try:
            if wanted is not None:
                jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(wanted)
        except Exception as error:
            message = f"the Spark image has no libraries for {self._table.format} tables; build an image that has them"
            raise BackfillFailed("TableFormatMissing", message, final=True) from error


class ParquetTable(Table):
    """Parquet files in the Backfill's folder. Each commit has a subfolder, named after the commit's last slice."""

    def publish(self, rows: "DataFrame", end: int, *, first: bool) -> None:
        written = rows.write.mode("overwrite").partitionBy(*self._table.partition_by)
        written.parquet(f"{self._root}/{self._id}/{folder_of_slice(end - 1)}")

    def _known(self, wanted: "DataFrame") -> Mapping[str, str]:
        return _types(wanted)


class DeltaTable(Table):
    """A Delta table at the sink's path."""

    def publish(self, rows: "DataFrame", end: int, *, first: bool) -> None:
        replaces = first and self._table.mode == "Replace"
        written = rows.write.format("delta").mode("overwrite" if replaces else "append")
        written.option("txnAppId", self._id).option("txnVersion", str(end)).save(self._root)

    def _known(self, wanted: "DataFrame") -> Mapping[str, str]:
        # Creates the table if it is missing; adds no rows.
        made = wanted.write.format("delta").mode("ignore").partitionBy(*self._table.partition_by)
        made.save(self._root)
        return _types(self._spark.read.format("delta").load(self._root))


class IcebergTable(Table):
    """A table in an Iceberg catalog."""

    def publish(self, rows: "DataFrame", end: int, *, first: bool) -> None:
        from pyspark.sql.functions import lit

        # Only one driver runs at a time, so no other driver can add these rows between check and write.
        if any(found.get(BACKFILL) == self._id and int(found.get(SLICES)) >= end for found in self._summaries()):
            return
        written = rows.writeTo(str(self._table.name))
        for name, value in {BACKFILL: self._id, SLICES: str(end)}.items():
            written = written.option(f"snapshot-property.{name}", value)
        if first and self._table.mode == "Replace":
            written.overwrite(lit(True))
        else:
            written.append()

    def _known(self, wanted: "DataFrame") -> Mapping[str, str]:
        columns = schema_of(dict(_types(wanted)))
        division = ", ".join(f"`{name}`" for name in self._table.partition_by)
        by = f" PARTITIONED BY ({division})" if division else ""
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self._table.name} ({columns}) USING iceberg{by}")
        return _types(self._spark.table(str(self._table.name)))

    def _summaries(self) -> list[Any]:
        jvm: Any = self._spark.sparkContext._jvm
        loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._spark._jsparkSession, self._table.name)
        return [snapshot.summary() for snapshot in loaded.snapshots()]


TABLES: Final[Mapping[str, type[Table]]] = {"Parquet": ParquetTable, "Delta": DeltaTable, "Iceberg": IcebergTable}


def _types(rows: "DataFrame") -> Mapping[str, str]:
    return {field.name: field.dataType.simpleString() for field in rows.schema.fields}
