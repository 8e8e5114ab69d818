"""Cost of failing records for the records behind them (M19): rate and latency of successful records during retry
publishes.

A real main worker with a retry policy; failing records go to a retry topic and are not due during the run. Throughput
is of a backlog, latency of a steady rate.
"""

from __future__ import annotations

import argparse
import json
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
from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PARTITIONS: Final = 6
VALUE_BYTES: Final = 100
BACKLOG: Final = 1_000_000
RATE: Final = 1_000
SECONDS: Final = 6.0
POLL_S: Final = 0.02
"""Poll interval for the end of a run, and so the precision of its time."""
SHARES: Final = (0, 1, 10)
"""Failing records, in percent."""

HANDLER: Final = '''
"""Fails values with the prefix F; writes the latencies of the others once all are handled."""
import json
import time
from pathlib import Path

GOOD = EXPECTED
LOG = Path("LOG_NAME")
noted = []


def handle(record):
    now = time.time_ns()
    value = record.value
    if value[:1] == b"F":
        raise ValueError("asked to fail")
    noted.append((now - int(value[1:21])) / 1e6)
    if len(noted) == 1:
        handle.began = now
    if len(noted) == GOOD:
        part = LOG.with_suffix(".part")
        part.write_text(json.dumps({"waited_ms": noted, "began_ns": handle.began}))
        part.rename(LOG)
'''


class Run:
    """A fleet of one main worker, and records of which a given percentage fails."""

    def __init__(self, kafka: Kafka, folder: Path, share: int, records: int) -> None:
        self.kafka = kafka
        self.share = share
        self.records = records
        self.failing = records * share // 100
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self.fleet = RetryFleet(kafka, folder, name, sequence=("1h",), partitions=PARTITIONS)
        self._log = folder / "noted.json"
        handler = HANDLER.replace("EXPECTED", str(records - self.failing)).replace("LOG_NAME", str(self._log))
        (folder / "handler.py").write_text(handler)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000}
        )

    def produce(self, number: int) -> None:
        """Write one record; the failing ones are spread evenly."""
        fails = number * self.share // 100 != (number + 1) * self.share // 100
        value = (b"F" if fails else b"G") + b"%020d" % time.time_ns()
        self._producer.produce(
            self.fleet.source, value.ljust(VALUE_BYTES, b"."), b"%d" % number, partition=number % PARTITIONS
        )
        self._producer.poll(0)

    def flush(self) -> None:
        if self._producer.flush(60):
            raise SystemExit("the broker did not acknowledge the records in time")

    def result(self) -> tuple[dict[str, Any], float]:
        """The handler's results, and the seconds from its first record until all are handled or in the retry topic.

        The worker does not wait for the retry topic.
        """

        def over() -> dict[str, Any]:
            noted: dict[str, Any] = json.loads(self._log.read_text())
            published = sum(self.kafka.end_offsets(self.fleet.retry_topic("1h")).values())
            assert published == self.failing, (
                f"{published} records published to the retry topic, {self.failing} should have"
            )
            return noted

        found = eventually(over, timeout_s=180, what="all records to be handled", poll_s=POLL_S)
        return found, (time.time_ns() - found["began_ns"]) / 1e9


def throughput(kafka: Kafka, share: int) -> float:
    """Records per second of a backlog, until all are handled or in their retry topic."""
    with tempfile.TemporaryDirectory(prefix="bench-retry-publish-") as scratch:
        run = Run(kafka, Path(scratch), share, BACKLOG)
        for number in range(BACKLOG):
            run.produce(number)
        run.flush()
        with run.fleet.worker(handler__decode__value="Bytes"):
            _, seconds = run.result()
    rate = BACKLOG / seconds
    print(f"  {share:>3} % backlog: {rate:10,.0f}/s", file=sys.stderr, flush=True)
    return rate


def latency(kafka: Kafka, share: int) -> dict[str, float]:
    """Latency in milliseconds from producing to the handler, of successful records at a steady rate."""
    pause = threading.Event().wait
    with tempfile.TemporaryDirectory(prefix="bench-retry-publish-") as scratch:
        run = Run(kafka, Path(scratch), share, int(RATE * SECONDS))
        with run.fleet.worker(handler__decode__value="Bytes") as worker:
            worker.wait_ready()
            began = time.monotonic()
            for number in range(run.records):
                ahead = began + number / RATE - time.monotonic()
                if ahead > 0:
                    pause(ahead)
                run.produce(number)
            run.flush()
            found, _ = run.result()
    # The first second is warm-up.
    figures = percentiles(found["waited_ms"][RATE:])
    print(f"  {share:>3} % at {RATE}/s: p99 {figures['p99']:8.1f} ms", file=sys.stderr, flush=True)
    return figures


def page(result: dict[str, Any]) -> list[str]:
    lines = [
        "# What a retry publish costs the records behind it (M19)",
        "",
        "A backlog until all of it is handled or in its retry topic; and how long records that succeed wait next "
        "to those that fail:",
        "",
        f"| failing | backlog, records/s | p50 ms at {RATE}/s | p99 ms | max ms |",
        "|---:|---:|---:|---:|---:|",
    ]
    for share, row in result["shares"].items():
        waited = " | ".join(f"{row['latency_ms'][name]:.1f}" for name in ("p50", "p99", "max"))
        lines.append(f"| {share} % | {row['per_second']:,.0f} | {waited} |")
    return [
        *lines,
        "",
        f"Medians of {result['runs']} runs. One worker, a handler of one record at a time that does nothing else, "
        f"{PARTITIONS} partitions, one replica, values of {VALUE_BYTES} B; a backlog of {BACKLOG:,} records, then "
        f"{SECONDS:g} s at a steady rate. Records are handled while retry publishes are on their way; commits wait "
        "for them.",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.retry_publish_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    options = parser.parse_args(arguments)
    load = Load()
    rates: dict[int, list[float]] = {share: [] for share in SHARES}
    waits: dict[int, list[dict[str, float]]] = {share: [] for share in SHARES}
    with KafkaBroker() as broker:
        kafka = Kafka(broker.bootstrap)
        for number in range(options.runs):
            for share in SHARES if number % 2 == 0 else reversed(SHARES):
                rates[share].append(throughput(kafka, share))
                waits[share].append(latency(kafka, share))
    shares = {
        str(share): {
            "per_second": statistics.median(rates[share]),
            "latency_ms": {
                name: statistics.median(run[name] for run in waits[share]) for name in ("p50", "p90", "p99", "max")
            },
        }
        for share in SHARES
    }
    settings = {"backlog": BACKLOG, "rate": RATE, "seconds": SECONDS, "partitions": PARTITIONS}
    result = recorded("retry_publish_cost", {"shares": shares, "runs": options.runs, **settings}, load)
    write(result, page(result), trial=options.trial)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
