"""The Spark side of the scale benchmark: costs of slices by number of tasks.

It runs in the environment with Spark. The tasks are empty, and executors are separate processes, so that the driver's
CPU time is its own. Prints one JSON object per number of tasks: seconds of a slice, and CPU seconds of the driver's
JVM and of its Python process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import AccumulatorParam, TaskContext
from pyspark.sql import SparkSession

ROUNDS = 3


class Reports(AccumulatorParam):  # type: ignore[misc]
    def zero(self, value: dict[int, Any]) -> dict[int, Any]:
        return {}

    def addInPlace(self, value1: dict[int, Any], value2: dict[int, Any]) -> dict[int, Any]:  # noqa: N802
        value1.update(value2)
        return value1


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(counts: list[int]) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    reports = spark.sparkContext.accumulator({}, Reports())

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        reports.add({context.partitionId(): list(range(20))})
        return iter(())

    def play(tasks: int) -> None:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(run, "n long")
        rows.write.format("noop").mode("append").save()
        reports.value = {}

    play(max(counts))
    for tasks in counts:
        began, java, python = time.monotonic(), processor_seconds(jvm), processor_seconds(os.getpid())
        for _ in range(ROUNDS):
            play(tasks)
        figures = {
            "seconds": time.monotonic() - began,
            "java": processor_seconds(jvm) - java,
            "python": processor_seconds(os.getpid()) - python,
        }
        print(json.dumps({"tasks": tasks, **{name: value / ROUNDS for name, value in figures.items()}}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
