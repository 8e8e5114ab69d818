"""Backfills on Spark's local master, beside plain Python loops and a live worker over the same records.

Everything runs on one machine, one side after the other, in rounds, and the side that begins changes from round to
round. A ratio is that of the two sides of one round. The rate of a Backfill is that from the end of its first slice, of
5,000 records, to the end of its last one, with all that is between slices: Spark's start and end are stated apart. Each
side takes half a minute, because Java still compiles its code during the first ten seconds. Three rounds take as long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.report import ROOT, Load, additions, recorded, write
from tests.broker.workers import Fleet, Kafka
from tests.spark.scene import Place, Scene
from tests.support.kafka import KafkaBroker
from tests.support.spark import ensure_spark
from tests.support.writing import SureProducer

HANDLERS: Final = {"single": "handle", "batch": "handle_batch"}
RECORDS: Final = {1: 1_500_000, 2: 3_000_000}
"""The records of a run by its cores."""
SPREAD: Final = 2_000_000
"""The records of the topics that differ in partitions alone."""
SLICE: Final = 10_000_000
"""The default of `slice.maxRecords`; that of `slice.maxSeconds` is 15."""
PARTITIONS: Final = (2, 40, 200)
MANY: Final = 12
WAITING: Final = 12_000
"""Records of the handler that waits: with 32 calls of 50 ms that is 19 s."""
CALLS: Final = 32
SAMPLE_S: Final = 0.1
HANDLER: Final = (Path(__file__).with_name("backfill_handler.py")).read_text()


def flight(number: int) -> bytes:
    """A record of about 330 bytes."""
    row = {"year": 2013, "dep_time": 517, "carrier": "UA", "flight": number, "origin": "EWR", "dest": "IAH"}
    row |= {"dep_delay": 2.0, "arr_delay": 11.0, "tailnum": "N14228", "air_time": 227.0, "distance": 1400}
    return json.dumps({**row, "time_hour": "2013-01-01T05:00:00Z", "note": "x" * 120}).encode()


class Measured(NamedTuple):
    """One run of a side: records a second, microseconds of processor time for each record, and with a Backfill the
    seconds before its first slice and after its last."""

    rate: float
    processor: float
    start: float = 0.0


class ProcessorTime(threading.Thread):
    """The processor time of the whole machine while a side runs, as nothing else does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._samples: list[tuple[float, float]] = []
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(SAMPLE_S):
            user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
            ticks = user + nice + system + irq + soft
            self._samples.append((time.time(), ticks / os.sysconf("SC_CLK_TCK")))

    def __enter__(self) -> ProcessorTime:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self.join()

    def between(self, began: float, ended: float) -> float:
        """The seconds of it between two times, which are seconds since the epoch."""
        inside = [busy for at, busy in self._samples if began <= at <= ended]
        return inside[-1] - inside[0]


class Bench:
    """A broker with the records, and the sides."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self._place = Place(Kafka(broker.bootstrap), broker.bootstrap, ensure_spark())
        self._folder = folder
        self._runs = 0

    def topic(self, partitions: int, records: int) -> str:
        """A topic with so many records in so many partitions."""
        name = f"flights-{partitions}-{records}"
        self._place.kafka.create(name, partitions=partitions)
        room = {"queue.buffering.max.messages": records + 1, "queue.buffering.max.kbytes": 2 << 20}
        producer = SureProducer({"bootstrap.servers": self._place.bootstrap, "linger.ms": 50, **room})
        for number in range(records):
            producer.produce(name, flight(number), partition=number % partitions)
            if number % 1_000 == 0:
                producer.poll(0)
        assert producer.flush(120) == 0
        return name

    def backfill(self, topic: str, partitions: int, records: int, cores: int, name: str, **worker: Any) -> Measured:
        """One Backfill without a sink over the first records of each partition."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        python = {"callable": f"handler:{name}", "path": str(folder / "live")}
        ranges = {str(part): [0, records // partitions] for part in range(partitions)}
        settings = {"handler.python": python, **worker}
        master = f"local[{cores}]"
        with (
            ProcessorTime() as time_of,
            Scene(self._place, folder, handler=HANDLER, worker=settings, master=master) as scene,
        ):
            began = time.monotonic()
            driver = scene.run(topic=topic, ranges=ranges, parallelism=cores, sliceRecords=SLICE, sliceSeconds=15)
            seconds = time.monotonic() - began
            lines = [json.loads(line) for line in driver.log.read_text().splitlines() if '"slice done"' in line]
        ends = [datetime.fromisoformat(line["time"]).timestamp() for line in lines]
        handled = sum(line["records"] for line in lines)
        assert handled == records // partitions * partitions, handled
        counted, between = handled - lines[0]["records"], ends[-1] - ends[0]
        busy = time_of.between(ends[0], ends[-1])
        return Measured(counted / between, busy / counted * 1e6, seconds - between)

    def loop(self, topic: str, partitions: int, records: int, cores: int, name: str) -> Measured:
        """Plain loops over the same records, in so many processes, from the first record on."""
        words = [
            sys.executable,
            "-m",
            "bench.backfill_peers",
            "--bootstrap",
            self._place.bootstrap,
            "--topic",
            topic,
            "--handler",
            name,
        ]
        running = []
        with ProcessorTime() as time_of:
            for core in range(cores):
                ends = json.dumps(dict.fromkeys(range(core, partitions, cores), records // partitions))
                running.append(subprocess.Popen([*words, "--ends", ends], cwd=ROOT, stdout=subprocess.PIPE, text=True))
            began, ended = zip(*(json.loads(each.communicate()[0].splitlines()[-1]) for each in running), strict=True)
        busy = time_of.between(min(began), max(ended))
        return Measured(records / (max(ended) - min(began)), busy / records * 1e6)

    def live(self, topic: str) -> float:
        """Records a second of one live worker with the handler that waits, by its commits."""
        self._runs += 1
        folder = self._folder / f"live-{self._runs}"
        folder.mkdir()
        fleet = Fleet(self._place.kafka, folder, folder.name)
        (folder / "handler.py").write_text(HANDLER)
        python = {"callable": "handler:wait", "path": str(folder)}
        changes: dict[str, Any] = {"topics": [topic], "handler__python": python, "handler__concurrency": CALLS}
        seen: list[tuple[float, int]] = []
        with fleet.worker(**changes):
            while not seen or seen[-1][1] < WAITING:
                threading.Event().wait(0.2)
                done = sum(self._place.kafka.committed(fleet.name, topic).values())
                if done and (not seen or done > seen[-1][1]):
                    seen.append((time.monotonic(), done))
        (began, first), (ended, last) = seen[0], seen[-1]
        return (last - first) / (ended - began)


def measured(bench: Bench, runs: int) -> dict[str, list[float]]:
    """Each side's figure of each round."""
    topic = bench.topic(MANY, max(RECORDS.values()))
    others = {count: bench.topic(count, SPREAD) for count in PARTITIONS}
    waiting = bench.topic(4, WAITING)
    found: dict[str, list[float]] = {}

    def note(side: str, value: float) -> None:
        found.setdefault(side, []).append(value)
        print(f"  {side}: {value:,.1f}", file=sys.stderr, flush=True)

    for number in range(runs):
        turn = -1 if number % 2 else 1
        for cores in RECORDS:
            for kind, name in HANDLERS.items():
                for side in ("loop", "backfill")[::turn]:
                    run = getattr(bench, side)(topic, MANY, RECORDS[cores], cores, name)
                    for what, value in run._asdict().items():
                        note(f"{kind}/{cores}/{side}/{what}", value)
        for count, other in list(others.items())[::turn]:
            run = bench.backfill(other, count, SPREAD, 2, "handle")
            note(f"partitions/{count}/rate", run.rate)
            note(f"partitions/{count}/processor", run.processor)
        calls = {"handler.concurrency": CALLS}
        note("waiting/backfill", bench.backfill(waiting, 4, WAITING, 1, "wait", **calls).rate)
        note("waiting/live", bench.live(waiting))
    return found


def ratio(sides: dict[str, list[float]], one: str, other: str) -> str:
    """The median of the rounds' ratios, and those of all rounds."""
    ratios = [mine / theirs for mine, theirs in zip(sides[one], sides[other], strict=True)]
    return f"{statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"


def page(figures: dict[str, Any]) -> list[str]:
    """The result as Markdown."""
    sides, runs = figures["sides"], figures["runs"]
    lines = [
        "# Backfill",
        "",
        f"Records of 330 bytes (JSON) on Spark's local master; medians of {runs} rounds, and in brackets the ratio of",
        f"each round. The rate is that of {RECORDS[1]:,} records with one core and {RECORDS[2]:,} with two, in slices",
        "of 15 seconds, with all that is between slices, without Spark's start and end. The broker, Spark's driver and",
        "Java's threads share the two cores with the handlers.",
        "",
        "Processor time is that of the whole machine: the loops and the broker, or all of a Backfill and the broker.",
        "",
        "| Handler | Cores | Rate compared with plain loops | Processor time a record | Records/s | Start, end |",
        "|---|---|---|---|---|---|",
    ]
    median = {side: statistics.median(values) for side, values in sides.items()}
    for kind in HANDLERS:
        for cores in RECORDS:
            side = f"{kind}/{cores}"
            rates = ratio(sides, f"{side}/backfill/rate", f"{side}/loop/rate")
            spent = ratio(sides, f"{side}/loop/processor", f"{side}/backfill/processor")
            loop, backfill = (f"{median[f'{side}/{each}/processor']:.1f}" for each in ("loop", "backfill"))
            rate, start = median[f"{side}/backfill/rate"], median[f"{side}/backfill/start"]
            cells = (kind, cores, rates, f"{loop} µs to {backfill} µs: {spent}", f"{rate:,.0f}", f"{start:.0f} s")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    live, task = median["waiting/live"], median["waiting/backfill"]
    lines += [
        "",
        f"A handler that waits 50 ms, {CALLS} calls at once: {task:,.0f} records/s in a task, {live:,.0f} in a",
        f"live worker: {ratio(sides, 'waiting/backfill', 'waiting/live')}.",
        "",
        f"Partitions, with two cores and {SPREAD:,} records, compared with {PARTITIONS[0]}:",
        "",
        "| Partitions | Rate | Processor time a record | Records/s |",
        "|---|---|---|---|",
    ]
    for count in PARTITIONS:
        one, first = f"partitions/{count}", f"partitions/{PARTITIONS[0]}"
        rates, spent = (
            ratio(sides, f"{one}/rate", f"{first}/rate"),
            ratio(sides, f"{first}/processor", f"{one}/processor"),
        )
        rate, processor = median[f"{one}/rate"], median[f"{one}/processor"]
        lines.append(f"| {count} | {rates} | {processor:.1f} µs: {spent} | {rate:,.0f} |")
    lines += ["", f"20 million additions in a Python function take {figures['additions_s']:.1f} s here."]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench.backfill", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    load = Load()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder, KafkaBroker() as broker:
        sides = measured(Bench(broker, Path(folder)), options.runs)
    figures = {"sides": sides, "runs": options.runs, "additions_s": additions()}
    write(recorded("backfill", figures, load), page(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
