"""Share of time that a busy consumer waits for the network (M17), with 1 ms of processing per 500 records.

The next records are requested before `poll` returns, so fetching continues during processing. Waiting is all time in
which `poll` had no records to return. The time in `poll` in which the polling thread did not compute, which includes
waiting for a processor, is reported separately.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

from bench.report import Load, recorded, write
from bench.throughput import fill
from fleet_consumer import Consumer, ConsumerSettings
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.net import ConnectionSettings
from tests.support.kafka import KafkaBroker

TOPIC: Final = "bench-wait"
RECORDS: Final = 1_000_000
VALUE_BYTES: Final = 1024
PARTITIONS: Final = 6
PROCESSING_S: Final = 0.001
PER_RECORDS: Final = 500
WARM_UP_RECORDS: Final = 100_000
PROMISE: Final = 0.05
TIMEOUT_S: Final = 120


def process(count: int) -> None:
    """Compute, without releasing the GIL, for the processing time of `count` records."""
    until = time.perf_counter() + PROCESSING_S * count / PER_RECORDS
    while time.perf_counter() < until:
        pass


class Waits:
    """Time spent by consumers of this process in `FetchThread.wait`, the only place where `poll` waits for records."""

    def __init__(self) -> None:
        self.seconds = 0.0
        wait = FetchThread.wait

        def timed(thread: FetchThread, timeout_s: float, changed: threading.Event) -> None:
            before = time.perf_counter()
            wait(thread, timeout_s, changed)
            self.seconds += time.perf_counter() - before

        FetchThread.wait = timed  # type: ignore[method-assign,assignment]


def side(bootstrap: str, records: int) -> dict[str, float]:
    """Consume to the end; returns shares of the time since the warm-up."""
    connection = ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="bench")
    consumer = Consumer(ConsumerSettings(connection=connection, group_id=f"bench-{uuid.uuid4().hex}"))
    consumer.subscribe([TOPIC])
    waits = Waits()
    taken, idle, in_poll, polls, began = 0, 0.0, 0.0, 0, 0.0
    while taken < records:
        before, cpu_before = time.perf_counter(), time.thread_time()
        count = len(consumer.poll(5.0))
        spent = time.perf_counter() - before
        if taken >= WARM_UP_RECORDS:
            if not began:
                began, waits.seconds = before, 0.0
            in_poll += spent
            idle += max(0.0, spent - (time.thread_time() - cpu_before))
            polls += 1
        taken += count
        process(count)
    whole = time.perf_counter() - began
    consumer.close()
    return {
        "wait_share": waits.seconds / whole,
        "idle_share": idle / whole,
        "poll_share": in_poll / whole,
        "polls": polls,
        "seconds": whole,
    }


def page(result: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{run['wait_share']:.1%}" for run in result["each"])
    return [
        "# Waiting for the network (M17)",
        "",
        f"**{result['wait_share']:.1%}** of the time, once running, `poll` waited for records. In all "
        f"{result['poll_share']:.1%} were spent in `poll`, {result['idle_share']:.1%} without computing.",
        "",
        f"Processing took {PROCESSING_S * 1000:g} ms for every {PER_RECORDS} records of {VALUE_BYTES} bytes. "
        f"Promised: below {PROMISE:.0%}: {'yes' if result['wait_share'] < PROMISE else 'no'}.",
        "",
        f"Median of {len(result['each'])} runs: {shares}.",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.poll_wait", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--side", metavar="BOOTSTRAP", help="run the consumer of one run (used by the benchmark itself)"
    )
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    options = parser.parse_args(arguments)
    if options.side is not None:
        print(json.dumps(side(options.side, RECORDS)))
        return 0
    load = Load()
    with KafkaBroker() as broker:
        fill(broker.bootstrap, TOPIC, PARTITIONS, RECORDS, VALUE_BYTES)
        command = [sys.executable, "-m", "bench.poll_wait", "--side", broker.bootstrap]
        each = [
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S).stdout)
            for _ in range(options.runs)
        ]
    figures = {
        name: statistics.median(run[name] for run in each) for name in ("wait_share", "idle_share", "poll_share")
    }
    result = recorded("poll_wait", {**figures, "promise": PROMISE, "each": each}, load)
    write(result, page(result), trial=options.trial)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
