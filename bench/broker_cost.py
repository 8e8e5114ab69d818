"""Open files, memory maps, memory and disk of a broker for each partition: `python -m bench.broker_cost`.

The broker has no clients. Each partition is idle and has one segment with one record. Used heap is what remains after a
full collection.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.report import Load, recorded, write
from tests.support.kafka import KafkaBroker
from tests.support.kafka_topics import make_topics

SIZES: Final = (0, 1_000, 5_000)
OF_A_TOPIC: Final = 100
HEAP: Final = ("-Xmx1024m",)
CALL_S: Final = 60.0
MIB: Final = 2**20
COLUMNS: Final = {
    "open_files": "open files",
    "maps": "memory maps",
    "heap_mib": "used heap, MiB",
    "rss_mib": "resident memory, MiB",
    "disk_mib": "disk, MiB",
}


def sample(broker: KafkaBroker) -> dict[str, float]:
    """Present figures of the broker's process and data."""
    process = Path("/proc") / str(broker.pid)
    _diagnose(broker, "GC.run")
    # One line a generation, or one line of the whole heap, by collector.
    used = re.findall(r"(?:generation|heap)\s+total \d+K, used (\d+)K", _diagnose(broker, "GC.heap_info"))
    resident = re.search(r"^VmRSS:\s+(\d+) kB", (process / "status").read_text(), re.MULTILINE)
    assert used
    assert resident is not None
    files = [path.stat() for path in (broker.directory / "data").rglob("*")]
    return {
        "open_files": len(os.listdir(process / "fd")),
        "maps": len((process / "maps").read_text().splitlines()),
        "heap_mib": round(sum(map(int, used)) / 1024, 1),
        "rss_mib": round(int(resident[1]) / 1024, 1),
        "disk_mib": round(sum(each.st_blocks for each in files) * 512 / MIB, 1),
    }


def _diagnose(broker: KafkaBroker, command: str) -> str:
    done = subprocess.run(
        ["jcmd", str(broker.pid), command], check=True, capture_output=True, text=True, timeout=CALL_S
    )
    return done.stdout


def fill(broker: KafkaBroker, topics: Sequence[str]) -> None:
    """Write one record to each partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for topic in topics:
        for partition in range(OF_A_TOPIC):
            producer.produce(topic, b"value", partition=partition)
    assert producer.flush(CALL_S) == 0


def measure() -> list[dict[str, float]]:
    """Figures by number of partitions."""
    rows: list[dict[str, float]] = []
    with KafkaBroker(jvm_options=HEAP) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        made = 0
        for size in SIZES:
            topics = [f"idle-{number}" for number in range(made // OF_A_TOPIC, size // OF_A_TOPIC)]
            for topic in topics:
                make_topics(admin, [NewTopic(topic, OF_A_TOPIC, 1)])
            fill(broker, topics)
            made = size
            rows.append({"partitions": size, **sample(broker)})
            print(f"  {rows[-1]}", file=sys.stderr, flush=True)
    return rows


def for_each(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Growth for each partition between the smallest and the largest number."""
    first, *_, last = rows
    return {name: round((last[name] - first[name]) / (last["partitions"] - first["partitions"]), 4) for name in COLUMNS}


def page(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "# Cost of partitions for a broker"
    yield ""
    yield "One broker without clients and with idle partitions, each with one record in one segment. Used heap is what"
    yield f"remains after a full collection; the limit of the heap is {HEAP[0].removeprefix('-Xmx')}. Resident memory"
    yield "includes heap that is free at that moment, so it depends on the limit."
    yield ""
    yield f"| partitions | {' | '.join(COLUMNS.values())} |"
    yield f"|---:|{'---:|' * len(COLUMNS)}"
    for row in figures["rows"]:
        cells = [f"{row[name]:,}" for name in ("partitions", *COLUMNS)]
        yield f"| {' | '.join(cells)} |"
    each = figures["for_each"]
    yield f"| for each partition | {' | '.join(f'{each[name]:.3f}' for name in COLUMNS)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.broker_cost", description=__doc__)
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    options = parser.parse_args()
    load = Load()
    rows = measure()
    figures = {"rows": rows, "for_each": for_each(rows)}
    write(recorded("broker_cost", figures, load), list(page(figures)), trial=options.trial)


if __name__ == "__main__":
    main()
