"""Tables seen by Spark itself, in the environment that has it.

table_tool.py rows FORMAT PLACE CONF      prints each row, then the types and the number of files
table_tool.py twice FORMAT PLACE CONF     publishes groups of rows, some of them again, and prints the numbers
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

ICEBERG = "Iceberg"


@dataclass(frozen=True)
class Column:
    name: str = "n"
    type: str = "int"
    source: str = "Value"
    field: None = None
    required: bool = False


@dataclass(frozen=True)
class TableOf:
    format: str
    path: str
    name: str | None
    mode: str
    partition_by: tuple[str, ...] = ()
    columns: tuple[Column, ...] = (Column(),)


def session(conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def table(spark: SparkSession, kind: str, place: str) -> DataFrame:
    if kind == ICEBERG:
        return spark.table(place)
    return spark.read.format(kind.lower()).load(place)


def show(spark: SparkSession, kind: str, place: str) -> None:
    found = table(spark, kind, place)
    for row in found.collect():
        print(json.dumps(row.asDict(), default=str))
    files = spark.table(f"{place}.files").count() if kind == ICEBERG else len(found.inputFiles())
    print(json.dumps({"types": dict(found.dtypes), "files": files}))


def publish_twice(spark: SparkSession, kind: str, place: str, root: str) -> None:
    """The first group twice, a second one, and the first again; then one of another Backfill that replaces all."""
    from fleet_consumer.backfill.tables import TABLES

    def made(of: str, mode: str) -> Any:
        sink: Any = type("Sink", (), {"table": TableOf(kind, root, place if kind == ICEBERG else None, mode)})
        config: Any = type("Config", (), {"id": of, "sink": sink})
        one = TABLES[kind](spark, config, root)
        one.prepare()
        return one

    def rows(first: int, end: int) -> DataFrame:
        return spark.createDataFrame([(number,) for number in range(first, end)], "n int")

    def count(of: str) -> None:
        where = place if kind == ICEBERG else f"{root}/{of}" if kind == "Parquet" else root
        found = sorted(row["n"] for row in table(spark, kind, where).collect())
        print(json.dumps({"count": len(found), "distinct": len(set(found)), "least": found[0]}))

    if kind == ICEBERG:
        # It has a column that the rows do not have, and another order.
        spark.sql(f"CREATE TABLE {place} (more string, n int) USING iceberg")
    one = made("one", "Append")
    for first, end, number, is_first in ((0, 10, 4, True), (0, 10, 4, True), (10, 30, 9, False), (10, 30, 9, False)):
        one.publish(one.divided(rows(first, end), 0), number, first=is_first)
        count("one")
    if kind != "Parquet":
        two = made("two", "Replace")
        for _ in range(2):
            two.publish(two.divided(rows(100, 105), 0), 3, first=True)
            count("two")
        two.publish(two.divided(rows(105, 107), 0), 6, first=False)
        count("two")


def main(order: str, kind: str, place: str, conf: str, root: str = "") -> None:
    spark = session(json.loads(conf))
    if order == "rows":
        show(spark, kind, place)
    else:
        publish_twice(spark, kind, place, root)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
