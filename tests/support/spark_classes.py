"""A short job that loads the classes which Spark's drivers in the tests load; `tests/support/spark.py` runs it.

It has the packages of Spark's environment only. Its argument is a folder to write to.
"""

import sys

from pyspark.sql import SparkSession

session = SparkSession.builder.getOrCreate()
target = f"{sys.argv[1]}/rows"
session.range(8).repartition(2).mapInArrow(lambda batches: batches, "id long").write.parquet(target)
assert session.read.parquet(target).count() == 8
session.stop()
