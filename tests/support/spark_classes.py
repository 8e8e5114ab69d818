"""A short job that loads the classes which Spark's drivers in the tests load; `tests/support/spark.py` runs it.

It has the packages of Spark's environment only. Its argument is a folder to write to.
"""

import contextlib
import sys

from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
target = f"{sys.argv[1]}/rows"
session.range(8).repartition(2).mapInArrow(lambda batches: batches, "id long").write.parquet(target)
assert session.read.parquet(target).count() == 8
# The classes of the Kafka source are loaded before nobody answers.
brief = {f"kafka.{name}.timeout.ms": "1000" for name in ("request", "default.api")}
topic = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "none", **brief}
with contextlib.suppress(Exception):
    session.read.format("kafka").options(**topic).load().count()
session.stop()
