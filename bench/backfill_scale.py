"""The number of executors that one driver of a Backfill keeps busy, from measured costs of slices.

A slice has one task per executor core, and its tasks handle records for `slice.maxSeconds`. Between two slices the
executors wait: the driver plans, queries the brokers, writes its ledger twice, and starts the job. The job is measured
with empty tasks, the plan and the ledger's text with 1,000 partitions; the response times of the API server and the
brokers are assumed. A driver is saturated if executors work for less than nine tenths of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.report import ROOT, Load, additions, recorded, write
from e2e.local_cluster.kafka_node import find_java
from fleet_consumer.backfill.slices import Pace, plan_slice, without
from fleet_consumer.contract.backfill_ledger import Ledger, ledger_text, parse_ledger
from tests.support.spark import ensure_spark, submit_arguments

TASKS: Final = (2, 50, 100, 200)
CORES: Final = 2
EXECUTORS: Final = (1, 2, 5, 10, 20, 50, 100, 200)
PARTITIONS: Final = 1_000
SLICE_S: Final = 15.0
REQUEST_S: Final = 0.02
"""Assumed time of a ConfigMap request. Each slice writes the ledger twice and reads its control once."""
BROKERS_S: Final = 0.1
"""Assumed time of the lookup of partition bounds, with one request per broker."""
SATURATED: Final = 0.9


def slices_of_nothing() -> list[dict[str, float]]:
    """Costs of slices of empty tasks, by number of tasks."""
    python = ensure_spark()
    packages = next(python.parents[1].glob("lib/python*/site-packages/pyspark"))
    with tempfile.TemporaryDirectory(prefix="fleet-scale-") as scratch:
        own = {"PATH": os.environ["PATH"], "HOME": scratch, "TMPDIR": scratch, "SPARK_LOCAL_IP": "127.0.0.1"}
        own |= {"SPARK_HOME": str(packages), "JAVA_HOME": str(find_java().resolve().parents[1])}
        own |= {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(python),
            **submit_arguments(
                Path(scratch), (), f"--master local-cluster[1,{CORES},600]", "--conf spark.executor.memory=600m"
            ),
        }
        words = [str(python), "-m", "bench.backfill_scale_job", *map(str, TASKS)]
        done = subprocess.run(words, cwd=scratch, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def planning_s(tasks: int) -> float:
    """Seconds to plan a slice of 1,000 partitions, compute the remaining ranges and write the ledger's text twice."""
    ranges = dict.fromkeys(range(PARTITIONS), (0, 10_000_000))
    ledger = Ledger(attempt=1, remaining={part: (span,) for part, span in ranges.items()})
    pace = Pace(slice_records=10_000_000, slice_seconds=15, tasks=tasks, ordered=True, observed=1e5)
    began, rounds = time.perf_counter(), 3
    for _ in range(rounds):
        planned = plan_slice(ledger.remaining, pace, ranges)
        without(ledger.remaining, [(each.partition, each.first, each.end) for task in planned for each in task])
        for _ in range(2):
            parse_ledger(ledger_text(ledger))
    return (time.perf_counter() - began) / rounds


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fixed seconds per slice and seconds per task, by least squares."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return max(0.0, mean_y - slope * mean_x), slope


def measured() -> dict[str, Any]:
    """Measured costs, and the share of time in which executors work, by their number."""
    return scaled(slices_of_nothing())


def scaled(slices: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The scale table for these costs."""
    fixed, each = fitted([(found["tasks"], found["java"] + found["python"]) for found in slices])
    _, task = fitted([(found["tasks"], CORES * found["seconds"]) for found in slices])
    table = []
    for executors in EXECUTORS:
        planning = planning_s(executors)
        idle = fixed + each * executors + planning + 3 * REQUEST_S + BROKERS_S
        share = SLICE_S / (SLICE_S + idle + task)
        table.append({"executors": executors, "planning": planning, "idle": idle, "share": share})
    return {"slices": list(slices), "fixed": fixed, "task": each, "executor": task, "table": table}


def page(figures: dict[str, Any]) -> list[str]:
    found = figures["scale"]
    saturated = next((row["executors"] for row in found["table"] if row["share"] < SATURATED), None)
    lines = [
        "# Executors of a Backfill",
        "",
        f"The driver uses {found['fixed'] * 1000:.0f} ms of processor time for a slice, and",
        f"{found['task'] * 1000:.1f} ms for each of its tasks; an executor spends {found['executor'] * 1000:.0f} ms on",
        f"a task that does nothing. The table is simulated from that: slices of {SLICE_S:.0f} s, {PARTITIONS:,}",
        f"partitions, executors of one core. Assumed are {REQUEST_S * 1000:.0f} ms for each of three requests to the",
        f"API server, and {BROKERS_S * 1000:.0f} ms for the answer of the brokers.",
        "",
        "| Executors | Between two slices | Of it planning | Executors work |",
        "|---|---|---|---|",
    ]
    for row in found["table"]:
        share, planning = f"{row['share']:.1%}", f"{row['planning'] * 1000:.0f} ms"
        lines.append(f"| {row['executors']} | {row['idle']:.2f} s | {planning} | {share} |")
    if saturated is None:
        end = f"No driver is saturated by up to {EXECUTORS[-1]} executors"
    else:
        end = f"A driver is saturated from {saturated} executors on"
    lines += ["", f"{end}, which is where they work for less than {SATURATED:.0%} of the time."]
    lines += ["", f"20 million additions in a Python function take {figures['additions_s']:.1f} s here."]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m bench.backfill_scale", description=__doc__).parse_args(arguments)
    load = Load()
    figures = {"scale": measured(), "additions_s": additions()}
    write(recorded("backfill_scale", figures, load), page(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
