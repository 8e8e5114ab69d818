"""Memory of a retry worker that owns hundreds of waiting partitions with large records, and its first due record.

Every partition of a topic with a long delay holds committed records, from which the worker rebuilds its duplicate
window, and waiting records. One record in a topic with a short delay is due when the worker starts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from bench.lateness import first_retry_headers
from bench.report import Load, recorded, write
from fleet_consumer.contract.naming import retry_group
from fleet_consumer.contract.worker_config import PAUSED_BYTES_MAX
from fleet_consumer.worker.config.settings import PAUSED_BYTES
from fleet_consumer.worker.consume.intake import REBUILD_BYTES
from tests.broker.retry_fleet import RetryFleet
from tests.broker.workers import COMMAND, Kafka, Worker
from tests.observe.polls import commit
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PARTITIONS: Final = 200
HISTORY: Final = 20
"""Records in each partition that were committed before the worker starts."""
WAITING: Final = 40
"""Waiting records in each partition; in all many times the budget."""
VALUE_BYTES: Final = 50_000
LONG_DELAY: Final = "1h"
SHORT_DELAY: Final = "1s"
SAMPLES: Final = 60
"""Number of memory samples after the first due record, one every half second."""
BUDGETS_MIB: Final = (8, PAUSED_BYTES_MAX // 2**20, 128)
"""Memory bounds of paused partitions; the second is the default."""

HANDLER: Final = '''
"""Writes down when it was called."""
import os
import time

LOG = os.open("LOG_NAME", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def handle(record):
    os.write(LOG, b"%.3f\\n" % time.time())
'''


def run_once(kafka: Kafka, *, partitions: int, budget_mib: int) -> dict[str, float]:
    """One run: the records, then a worker; returns seconds to the first due record, and memory in MiB."""
    command = ("env", f"{PAUSED_BYTES}={budget_mib * 2**20}", COMMAND)
    with tempfile.TemporaryDirectory(prefix="bench-waiting-") as scratch:
        folder = Path(scratch)
        name = f"bench-{uuid.uuid4().hex[:12]}"
        fleet = RetryFleet(kafka, folder, name, sequence=(SHORT_DELAY, LONG_DELAY), partitions=partitions)
        log = folder / "handled.txt"
        (folder / "handler.py").write_text(HANDLER.replace("LOG_NAME", str(log)))
        changes: dict[str, Any] = {"handler__decode__value": "Bytes", "consumer__commitIntervalSeconds": 5}
        with fleet.retry_worker(command=command, **changes) as worker:
            worker.wait_ready()
            idle = resident_mib(worker)
        waiting = fleet.retry_topic(LONG_DELAY)
        fill(kafka.bootstrap, waiting, name, partitions, HISTORY + WAITING)
        fill(kafka.bootstrap, fleet.retry_topic(SHORT_DELAY), name, 1, 1)
        committed = {(waiting, number): HISTORY for number in range(partitions)}
        commit(kafka.bootstrap, retry_group(name), committed)
        began = time.time()
        with fleet.retry_worker(command=command, **changes) as worker:
            first = eventually(lambda: handled(log), timeout_s=300, what="the record that is due", poll_s=0.05)[0]
            seen = []
            for _ in range(SAMPLES):
                worker_died = not worker.running
                assert not worker_died
                seen.append(resident_mib(worker))
                time.sleep(0.5)
            eventually(lambda: waits(worker, partitions), timeout_s=300, what="every partition to wait", poll_s=0.5)
            peak = peak_mib(worker)
            assert len(handled(log)) == 1, "a waiting record was handled"
    figures = {"first_due_s": first - began, "idle_mib": idle, "peak_mib": peak, "settled_mib": seen[-1]}
    print("  " + ", ".join(f"{key} {value:.1f}" for key, value in figures.items()), file=sys.stderr, flush=True)
    return figures


def fill(bootstrap: str, topic: str, group: str, partitions: int, each: int) -> None:
    """Write `each` large waiting records to each partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    for number in range(each):
        for partition in range(partitions):
            value = os.urandom(64) + bytes(VALUE_BYTES - 64)
            while True:
                try:
                    producer.produce(
                        topic, value, b"key", partition=partition, headers=first_retry_headers(group, partition, number)
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
    if producer.flush(120):
        raise SystemExit("the broker did not acknowledge the records in time")


def handled(log: Path) -> list[float]:
    """The times at which records were handled."""
    return [float(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []


def waits(worker: Worker, partitions: int) -> bool:
    """True once the worker reports the wait of each partition."""
    return len(worker.member()["retry"]["waiting"]) >= partitions


def resident_mib(worker: Worker) -> float:
    """Current memory of the worker process."""
    return status_mib(worker, "VmRSS:")


def peak_mib(worker: Worker) -> float:
    """Peak memory of the worker process."""
    return status_mib(worker, "VmHWM:")


def status_mib(worker: Worker, field: str) -> float:
    """One field of the process's status in /proc."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.partition(field)[2].split()[0]) / 1024


def page(result: dict[str, Any]) -> list[str]:
    budgets = list(result["figures"])

    def row(what: str, key: str, form: str) -> str:
        return f"| {what} | " + " | ".join(form.format(result["figures"][budget][key]) for budget in budgets) + " |"

    return [
        "# Memory of waiting partitions",
        "",
        f"One retry worker owns {result['partitions']} partitions with a delay of {result['delay']}. Each holds "
        f"{result['history']} committed and {result['waiting']} waiting records of {result['value_bytes']:,} bytes: "
        f"{result['waiting_mib']:,.0f} MiB wait in all, and {result['history_mib']:,.0f} MiB lie behind the commits.",
        "",
        "`FLEET_PAUSED_BYTES_MAX` bounds what paused partitions hold; 32 MiB is the default.",
        "",
        "| bound | " + " | ".join(f"{budget} MiB" for budget in budgets) + " |",
        "|---|" + "---:|" * len(budgets),
        row("memory before there was a record", "idle_mib", "{:.0f} MiB"),
        row("peak, from start to when every partition waits", "peak_mib", "{:.0f} MiB"),
        row("once all wait", "settled_mib", "{:.0f} MiB"),
        row("from starting the process to the first record that is due", "first_due_s", "{:.1f} s"),
        "",
        f"Medians of {result['runs']} runs of each; the peak is the highest of all.",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.waiting_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    options = parser.parse_args(arguments)
    load = Load()
    with KafkaBroker() as broker:
        kafka = Kafka(broker.bootstrap)
        runs = {
            str(budget): [
                run_once(kafka, partitions=options.partitions, budget_mib=budget) for _ in range(options.runs)
            ]
            for budget in BUDGETS_MIB
        }
    figures = {
        budget: {key: statistics.median(run[key] for run in of) for key in of[0]}
        | {"peak_mib": max(run["peak_mib"] for run in of)}
        for budget, of in runs.items()
    }
    settings = {
        "partitions": options.partitions,
        "history": HISTORY,
        "waiting": WAITING,
        "value_bytes": VALUE_BYTES,
        "delay": LONG_DELAY,
        "rebuild_mib": REBUILD_BYTES / 2**20,
        "waiting_mib": options.partitions * WAITING * VALUE_BYTES / 2**20,
        "history_mib": options.partitions * HISTORY * VALUE_BYTES / 2**20,
    }
    result = recorded("waiting_memory", {"figures": figures, "runs": options.runs, **settings}, load)
    write(result, page(result), trial=options.trial)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
