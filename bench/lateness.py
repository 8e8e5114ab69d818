"""Lateness of waiting records: real retry workers, a thousand waiting records in each partition.

Compared with the same records with two delays in one topic, with the due time computed per record, which shows why
each delay has its own topic. Decision: docs/decisions/0015-lateness.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from bench.group_lab import percentiles
from bench.report import Load, recorded, write
from tests.broker.retry_fleet import RetryFleet
from tests.broker.workers import COMMAND, Kafka
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PARTITIONS: Final = 4
WAITING: Final = 1_000
"""Records in each partition, which all wait at the same time, because they arrive within less than their delay."""
SPREAD_S: Final = 10.0
"""Time over which they arrive, at an even rate."""
HANDLER_MS: Final = 1.0
DELAY_S: Final = 15
SHORT_DELAY_S: Final = 5
"""Delay of every other record in the mixed topic."""
GOAL_MS: Final = 250.0
SIDES: Final = {
    "one-delay": "a topic for each delay",
    "mixed": "both delays in one topic",
}

HANDLER: Final = '''
"""Records the lateness of each record, then waits."""
import os
import threading
import time

LOG = os.open("LOG_NAME", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pause = threading.Event().wait


def handle(record):
    late = time.time() * 1000 - record.delivery.timestamp - int(record.value.split()[0])
    os.write(LOG, b"%.3f\\n" % late)
    pause(HANDLER_S)
'''


def run_side(kafka: Kafka, side: str) -> dict[str, float]:
    """One run: a retry worker joins, then the records are written; returns their lateness in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="bench-lateness-") as scratch:
        folder = Path(scratch)
        name = f"bench-{uuid.uuid4().hex[:12]}"
        fleet = RetryFleet(kafka, folder, name, sequence=(f"{DELAY_S}s",), partitions=PARTITIONS)
        log = folder / "late.txt"
        handler = HANDLER.replace("LOG_NAME", str(log)).replace("HANDLER_S", str(HANDLER_MS / 1000))
        (folder / "handler.py").write_text(handler)
        command = (COMMAND,) if side == "one-delay" else (sys.executable, "-m", "bench.lateness_mixed")
        with fleet.retry_worker(command=command, handler__decode__value="Bytes") as worker:
            worker.wait_ready()
            fill(kafka.bootstrap, fleet.retry_topic(f"{DELAY_S}s"), name, mixed=side == "mixed")
            total = WAITING * PARTITIONS
            late = eventually(lambda: seen(log, total), timeout_s=120, what="every record to be handled", poll_s=0.5)
    figures = {**percentiles(late), "earliest": min(late), "records": float(len(late))}
    print(
        f"  {side:<10} p99 {figures['p99']:10.1f} ms, earliest {figures['earliest']:.1f}", file=sys.stderr, flush=True
    )
    return figures


def fill(bootstrap: str, topic: str, group: str, *, mixed: bool) -> None:
    """Write the records at an even rate, like the retry publishes of a main worker."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    pause, began = threading.Event().wait, time.monotonic()
    delays = (SHORT_DELAY_S, DELAY_S) if mixed else (DELAY_S, DELAY_S)
    for number in range(WAITING):
        ahead = began + number * SPREAD_S / WAITING - time.monotonic()
        if ahead > 0:
            pause(ahead)
        for partition in range(PARTITIONS):
            value = b"%d of %d" % (delays[number % 2] * 1000, number)
            headers = first_retry_headers(group, partition, number)
            producer.produce(topic, value, b"key-%d" % number, partition=partition, headers=headers)
        producer.poll(0)
    if producer.flush(30):
        raise SystemExit("the broker did not acknowledge the records in time")


def first_retry_headers(group: str, partition: int, offset: int) -> list[tuple[str, str | bytes | None]]:
    """Headers of a record at its first retry."""
    now = str(int(time.time() * 1000))
    headers = {
        "kr-attempt": "1",
        "kr-first-failed-at": now,
        "kr-group": group,
        "kr-origin-topic": group,
        "kr-origin-partition": str(partition),
        "kr-origin-offset": str(offset),
        "kr-origin-timestamp": now,
    }
    return list(headers.items())


def seen(log: Path, total: int) -> list[float]:
    """The lateness of each record in milliseconds, once all are handled."""
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) >= total, f"{len(lines)} of {total}"
    return [float(line) for line in lines]


def summary(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians of all runs; the earliest record of all runs."""
    figures = ("p50", "p90", "p99", "max", "records")
    return {
        side: {
            **{
                f"{name}_ms" if name != "records" else name: statistics.median(run[name] for run in measured)
                for name in figures
            },
            "earliest_ms": min(run["earliest"] for run in measured),
        }
        for side, measured in runs.items()
    }


def page(result: dict[str, Any]) -> list[str]:
    lines = [
        "# Lateness of waiting records",
        "",
        "Time from when a record was due (its append time and the delay) to when its handler was called.",
        "",
        "| | p50 ms | p90 ms | p99 ms | max ms | earliest ms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for side, name in SIDES.items():
        row = result["sides"][side]
        shown = " | ".join(f"{row[figure]:,.1f}" for figure in ("p50_ms", "p90_ms", "p99_ms", "max_ms", "earliest_ms"))
        lines.append(f"| {name} | {shown} |")
    ours = result["sides"]["one-delay"]
    kept = "yes" if ours["p99_ms"] <= GOAL_MS and ours["earliest_ms"] >= 0 else "no"
    return [
        *lines,
        "",
        f"Promised: p99 within {GOAL_MS:g} ms, never early: {kept}.",
        "",
        f"{result['waiting']} records wait in each of {result['partitions']} partitions of one retry worker; they "
        f"arrived evenly over {result['spread_s']:g} s, and a handler takes {result['handler_ms']:g} ms for each. The "
        f"delay is {result['delay_s']} s; in the mixed topic every other record's is {result['short_delay_s']} s. "
        f"Medians of {result['runs']} runs.",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lateness", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    options = parser.parse_args(arguments)
    load = Load()
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with KafkaBroker() as broker:
        kafka = Kafka(broker.bootstrap)
        for number in range(options.runs):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                runs[side].append(run_side(kafka, side))
    settings = {
        "waiting": WAITING,
        "partitions": PARTITIONS,
        "spread_s": SPREAD_S,
        "handler_ms": HANDLER_MS,
        "delay_s": DELAY_S,
        "short_delay_s": SHORT_DELAY_S,
    }
    result = recorded("lateness", {"sides": summary(runs), "runs": options.runs, **settings}, load)
    write(result, page(result), trial=options.trial)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
