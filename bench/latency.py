"""Latency from producing a record to its handler at a steady rate, compared with librdkafka's group consumer.

The sides take turns on the same broker, with the same producer, one record at a time. The latency includes producer,
broker and consumer; only the consumer differs between the sides.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from typing import IO, Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.latency_sides import END, READY, STAMP, WARM
from bench.report import Load, recorded, write
from tests.support.kafka import KafkaBroker

NAMES: Final = {"fleet": "worker's consume loop", "librdkafka": "librdkafka's group consumer"}
PARTITIONS: Final = 6
VALUE_BYTES: Final = 100
RATES: Final = (100, 2_000)
"""Records per second: few enough that each arrives alone, and enough that batches form."""
SECONDS: Final = 4.0
WARM_EVERY_S: Final = 0.05
JOIN_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 60.0
FIGURES: Final = ("p50", "p90", "p99", "max", "cpu_per_million")


class Source:
    """Writes records that contain their production time."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic = topic
        self._pad = os.urandom(VALUE_BYTES - STAMP.size)

    def write(self, partition: int, stamp: int) -> None:
        self._producer.produce(self._topic, STAMP.pack(stamp) + self._pad, partition=partition)
        self._producer.poll(0)

    def warm_until_ready(self, out: IO[bytes]) -> None:
        """Write to all partitions from time to time, until the side reports that it reads all of them."""
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while not select.select([out], [], [], WARM_EVERY_S)[0]:
            if time.monotonic() > deadline:
                raise SystemExit("the consumer did not start in time")
            for partition in range(PARTITIONS):
                self.write(partition, WARM)
        if out.readline().decode().strip() != READY:
            raise SystemExit("the consumer did not start")

    def steady(self, rate: int, seconds: float) -> None:
        """Write at a steady rate, then the end markers."""
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            ahead = began + number / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            self.write(number % PARTITIONS, time.monotonic_ns())
        for partition in range(PARTITIONS):
            self.write(partition, END)
        if self._producer.flush(30):
            raise SystemExit("the broker did not acknowledge the records in time")


def run_side(side: str, bootstrap: str, rate: int, seconds: float) -> dict[str, float]:
    """One run of one side, on a new topic."""
    topic = f"bench-latency-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result()
    command = [sys.executable, "-m", "bench.latency_sides", side, bootstrap, topic, str(PARTITIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        try:
            source = Source(bootstrap, topic)
            source.warm_until_ready(process.stdout)
            source.steady(rate, seconds)
            printed, _ = process.communicate(timeout=END_TIMEOUT_S)
        finally:
            process.kill()
    measured: dict[str, float] = json.loads(printed)
    print(f"  {rate:>5}/s {side:<12} p99 {measured['p99']:8.2f} ms", file=sys.stderr, flush=True)
    return measured


def summary(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians of all runs at one rate."""
    return {
        side: {name: statistics.median(run[name] for run in measured) for name in FIGURES}
        for side, measured in runs.items()
    }


def page(result: dict[str, Any]) -> list[str]:
    lines = [
        "# Latency from produce to handler",
        "",
        "| records/s | Consumer | p50 ms | p90 ms | p99 ms | max ms |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for rate, sides in result["rates"].items():
        for side, name in NAMES.items():
            row = sides[side]
            shown = " | ".join(f"{row[figure]:.2f}" for figure in FIGURES[:4])
            lines.append(f"| {rate} | {name} | {shown} |")
    return [
        *lines,
        "",
        f"Medians of {result['runs']} alternated runs of {result['seconds']:g} s; {VALUE_BYTES} B values, "
        f"{PARTITIONS} partitions, one replica, no lingering in the producer.",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    options = parser.parse_args(arguments)
    load, rates = Load(), {}
    with KafkaBroker() as broker:
        for rate in RATES:
            runs: dict[str, list[dict[str, float]]] = {side: [] for side in NAMES}
            for number in range(options.runs):
                for side in NAMES if number % 2 == 0 else reversed(NAMES):
                    runs[side].append(run_side(side, broker.bootstrap, rate, options.seconds))
            rates[str(rate)] = summary(runs)
    result = recorded("latency", {"rates": rates, "runs": options.runs, "seconds": options.seconds}, load)
    write(result, page(result), trial=options.trial)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
