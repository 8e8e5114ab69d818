"""Throughput of the worker's consume loop, compared with a bare librdkafka loop and other clients, on one broker.

Each side runs several times in a separate process; sides alternate, so that a slow period of the machine affects all.
Ratios are medians of each round's ratios. Unlike the bare loop, ours includes a group membership with heartbeats,
commits, offset bookkeeping and the watchdog.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.java_side import java
from bench.report import Load, recorded, write
from tests.support.kafka import KafkaBroker

NAMES: Final = {
    "fleet": "worker's consume loop, no-op handler",
    "fleet-reads": "worker's consume loop, handler that reads every field",
    "batch-columns": "library's consumer, values and offsets of each run read as columns",
    "batch-records": "library's consumer, values and offsets of each run read from its records",
    "librdkafka": "librdkafka: poll + consume(499, 0), every field read, a no-op called",
    "raw": "librdkafka: the same, no field read (for information)",
    "java": "Java's ConsumerPerformance (CPU and memory: the whole JVM, start included)",
    "aiokafka": "aiokafka, no-op handler",
    "kafka-python": "kafka-python, no-op handler",
}
RECORDS: Final = {1024: 1_000_000, 100: 2_000_000}
"""Number of records by value size in bytes; slow sides read a part of them."""
SHARE: Final = {"aiokafka": 5, "kafka-python": 10}
PEER_RUNS: Final = 3
"""Most runs of the other clients: they are so much slower that more would only cost time."""
TARGET: Final = 0.85
TIMES_KAFKA_PYTHON: Final = 5.0
RUN_TIMEOUT_S: Final = 300
BLOCK: Final = os.urandom(1 << 20)
"""Source of record values: incompressible and cheap."""

Runs = dict[str, list[dict[str, float]]]


def fill(bootstrap: str, topic: str, partitions: int, records: int, value_bytes: int) -> None:
    """Create the topic and write `records` records with a short key."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1_000_000})
    for number in range(records):
        start = number * 389 % (len(BLOCK) - value_bytes)
        while True:
            try:
                producer.produce(topic, BLOCK[start : start + value_bytes], b"key-%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise SystemExit("the broker did not acknowledge the records in time")


def run_side(side: str, bootstrap: str, topic: str, records: int) -> dict[str, float]:
    """One run of one side in a separate process."""
    records //= SHARE.get(side, 1)
    if side == "java":
        measured = java(bootstrap, topic, records)
    else:
        command = [sys.executable, "-m", "bench.sides", side, bootstrap, topic, str(records)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=RUN_TIMEOUT_S)
        measured = json.loads(done.stdout.splitlines()[-1])
    print(f"  {topic} {side:<12} {measured['per_second']:>10,.0f} records/s", file=sys.stderr, flush=True)
    return measured


def run_rounds(bootstrap: str, topic: str, records: int, rounds: int) -> Runs:
    """All sides in turn, round after round."""
    runs: Runs = {side: [] for side in NAMES}
    print("  a round of warming up the broker, not counted:", file=sys.stderr, flush=True)
    run_side("raw", bootstrap, topic, records)
    for number in range(rounds):
        # The first side changes with every round.
        for side in NAMES if number % 2 == 0 else reversed(NAMES):
            if side in ("java", "aiokafka", "kafka-python") and number >= PEER_RUNS:
                continue
            runs[side].append(run_side(side, bootstrap, topic, records))
    return runs


def ratio(runs: Runs, ours: str, other: str, figure: str = "per_second") -> float:
    """Median of the ratios of ours to the other's in the same round."""
    return statistics.median(
        mine[figure] / theirs[figure] for mine, theirs in zip(runs[ours], runs[other], strict=False)
    )


def summary(runs: Runs, records: int) -> dict[str, Any]:
    """Medians and ratios of all runs with records of one size."""
    sides = {
        side: {
            name: statistics.median(run[name] for run in measured)
            for name in ("per_second", "cpu_per_million", "peak_mib")
        }
        | {
            "lowest": min(run["per_second"] for run in measured),
            "highest": max(run["per_second"] for run in measured),
            "runs": len(measured),
        }
        for side, measured in runs.items()
    }
    return {
        "ratio": ratio(runs, "fleet", "librdkafka"),
        "ratio_reads": ratio(runs, "fleet-reads", "librdkafka"),
        "cpu_ratio": ratio(runs, "fleet", "librdkafka", "cpu_per_million"),
        "ratio_columns": ratio(runs, "batch-columns", "batch-records"),
        "cpu_ratio_columns": ratio(runs, "batch-columns", "batch-records", "cpu_per_million"),
        "times_kafka_python": ratio(runs, "fleet", "kafka-python"),
        "times_aiokafka": ratio(runs, "fleet", "aiokafka"),
        "times_java": ratio(runs, "fleet", "java"),
        "java_told_per_second": statistics.median(run["told_per_second"] for run in runs["java"]),
        "records": records,
        "sides": sides,
    }


def promises(size: dict[str, Any]) -> dict[str, bool]:
    """The product's promises, and whether these figures keep them."""
    return {
        f"at least {TARGET:.0%} of bare librdkafka": size["ratio"] >= TARGET,
        f"at least {TIMES_KAFKA_PYTHON:g} × kafka-python": size["times_kafka_python"] >= TIMES_KAFKA_PYTHON,
        "ahead of aiokafka": size["times_aiokafka"] > 1,
        "ahead of Java's perf tool": size["times_java"] > 1,
    }


def page(result: dict[str, Any]) -> list[str]:
    lines = ["# Throughput of the consume loop"]
    for value_bytes, size in result["sizes"].items():
        lines += [
            "",
            f"## Values of {value_bytes} bytes",
            "",
            f"**{size['ratio']:.2f}** of a bare librdkafka loop's records per second ({size['ratio_reads']:.2f} with a "
            f"handler that reads every field, as that loop does) for {size['cpu_ratio']:.2f} of its CPU time per "
            f"record; {size['times_kafka_python']:.1f} × kafka-python, {size['times_aiokafka']:.1f} × aiokafka, "
            f"{size['times_java']:.1f} × Java's perf tool.",
            "",
            f"Batches by columns: **{size['ratio_columns']:.2f}** of the records per second of the same loop that "
            f"takes values and offsets from records, for {size['cpu_ratio_columns']:.2f} of its CPU time per record.",
            "",
            "| Loop | records/s | lowest | highest | runs | CPU s per 1M records | peak MiB |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for side, name in NAMES.items():
            row = size["sides"][side]
            lines.append(
                f"| {name} | {row['per_second']:,.0f} | {row['lowest']:,.0f} | {row['highest']:,.0f} | {row['runs']} "
                f"| {row['cpu_per_million']:.2f} | {row['peak_mib']:.0f} |"
            )
        kept = ", ".join(f"{words}: {'yes' if kept else 'no'}" for words, kept in promises(size).items())
        lines += [
            "",
            f"Promised: {kept}. (Java is compared by its fetch time, without joining, as on all clocks here; its "
            f"tool's own rate, joining included, was {size['java_told_per_second']:,.0f} records/s.)",
        ]
    return [*lines, "", f"Medians of alternated runs over {result['partitions']} partitions; CRCs are checked by all."]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput", description="The consume loop compared with others."
    )
    parser.add_argument("--runs", type=int, default=5, help="rounds; other clients run in the first three only")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of the number of records; other than 1 nothing is recorded",
    )
    options = parser.parse_args(arguments)
    load, sizes = Load(), {}
    for value_bytes, usual in RECORDS.items():
        records = int(usual * options.scale)
        # One broker per size, so that the first topic's data in the page cache does not affect the second.
        with KafkaBroker() as broker:
            topic = f"bench-{value_bytes}"
            print(f"writing {records:,} records of {value_bytes} B", file=sys.stderr, flush=True)
            fill(broker.bootstrap, topic, options.partitions, records, value_bytes)
            sizes[str(value_bytes)] = summary(run_rounds(broker.bootstrap, topic, records, options.runs), records)
    figures = {"sizes": sizes, "runs": options.runs, "partitions": options.partitions}
    result = recorded("throughput", figures, load, "kafka-python", "aiokafka")
    write(result, page(result), trial=options.scale != 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
