"""Throughput of the worker's consume loop beside a bare librdkafka loop, on one real broker, alternated.

Each side runs in a process of its own, several times, one side after the other so that a slow spell of the machine
meets both. The ratio of the medians comes first; then records and CPU seconds. Ours carries what the other does not:
a group membership with heartbeats, commits, the bookkeeping of offsets, the watchdog's marks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from e2e.local_cluster.versions import KAFKA
from tests.support.kafka import KafkaBroker

RESULTS: Final = Path(__file__).parent / "results"
TOPIC: Final = "bench"
VALUE_BYTES: Final = 1024
SIDES: Final = ("fleet", "fleet-reads", "librdkafka", "raw")
RUN_TIMEOUT_S: Final = 300
BLOCK: Final = os.urandom(1 << 20)
"""Where values are cut from: incompressible, and cheap to make."""


def fill(bootstrap: str, partitions: int, records: int) -> None:
    """Create the topic and write `records` records of 1 KiB with a short key."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, partitions, 1)]).values():
        future.result()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1_000_000})
    for number in range(records):
        start = number * 389 % (len(BLOCK) - VALUE_BYTES)
        while True:
            try:
                producer.produce(TOPIC, BLOCK[start : start + VALUE_BYTES], b"key-%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(60):
        raise SystemExit("the broker did not take the records in time")


def run_side(side: str, bootstrap: str, records: int) -> dict[str, float]:
    """One run of one side in its own process."""
    command = [sys.executable, "-m", "bench.sides", side, bootstrap, TOPIC, str(records)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=RUN_TIMEOUT_S)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"  {side:<12} {measured['per_second']:>10,.0f} records/s", file=sys.stderr, flush=True)
    return measured


def summary(runs: dict[str, list[dict[str, float]]], records: int, partitions: int) -> dict[str, Any]:
    """Medians and ratios of all runs."""
    sides = {
        side: {
            name: statistics.median(run[name] for run in measured)
            for name in ("per_second", "cpu_per_million", "peak_mib")
        }
        | {"lowest": min(run["per_second"] for run in measured), "highest": max(run["per_second"] for run in measured)}
        for side, measured in runs.items()
    }
    return {
        "benchmark": "throughput",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "ratio": sides["fleet"]["per_second"] / sides["librdkafka"]["per_second"],
        "ratio_reads": sides["fleet-reads"]["per_second"] / sides["librdkafka"]["per_second"],
        "cpu_ratio": sides["fleet"]["cpu_per_million"] / sides["librdkafka"]["cpu_per_million"],
        "sides": sides,
        "runs": len(runs["fleet"]),
        "records": records,
        "value_bytes": VALUE_BYTES,
        "partitions": partitions,
        "versions": {
            "consumer-fleet": version("consumer-fleet"),
            "confluent-kafka": confluent_kafka.version(),
            "librdkafka": confluent_kafka.libversion()[0],
            "python": platform.python_version(),
            "kafka": KAFKA,
        },
        "machine": f"{os.cpu_count()} cores, broker on the same machine",
    }


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    lines = [
        "# Throughput of the consume loop",
        "",
        f"**{result['ratio']:.2f}** of a bare librdkafka loop's records per second, "
        f"{result['cpu_ratio']:.2f} of its CPU time per record; **{result['ratio_reads']:.2f}** with a handler that "
        "reads every field, as the librdkafka loop does.",
        "",
        f"No-op handler, {result['value_bytes']} B values, {result['records']:,} records in {result['partitions']} "
        f"partitions, medians of {result['runs']} alternated runs; {result['machine']}; load of anything else on the "
        "machine is in the spread.",
        "",
        "| Loop | records/s | lowest | highest | CPU s per 1M records | peak MiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    names = {
        "fleet": "worker's consume loop, no-op handler",
        "fleet-reads": "worker's consume loop, handler that reads every field",
        "librdkafka": "librdkafka: poll + consume(499, 0), every field read, a no-op called",
        "raw": "librdkafka: the same, no field read (for information)",
    }
    for side, name in names.items():
        row = result["sides"][side]
        lines.append(
            f"| {name} | {row['per_second']:,.0f} | {row['lowest']:,.0f} | {row['highest']:,.0f} "
            f"| {row['cpu_per_million']:.2f} | {row['peak_mib']:.0f} |"
        )
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return "\n".join([*lines, "", f"{result['date']}; {versions}.", ""])


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; prints the page and writes it, with the numbers, to bench/results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="The consume loop beside bare librdkafka.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with KafkaBroker() as broker:
        print(f"writing {options.records:,} records", file=sys.stderr, flush=True)
        fill(broker.bootstrap, options.partitions, options.records)
        for number in range(options.runs):
            # Whoever goes first changes with every round.
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                runs[side].append(run_side(side, broker.bootstrap, options.records))
    result = summary(runs, options.records, options.partitions)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "throughput.json").write_text(json.dumps(result, indent=2) + "\n")
    page = markdown(result)
    (RESULTS / "throughput.md").write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
