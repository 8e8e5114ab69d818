"""Backfills on Spark's local master, compared with plain Python loops and a live worker over the same records.

Each round makes two comparisons. Rates are measured one side after the other; the first side alternates, and a ratio
compares the two sides of one round. CPU times are measured while both sides run at the same time, so that other load of
the machine affects both. A Backfill is measured from the end of its first slice, of 5,000 records, to the end of its
last one, including the time between slices; Spark's start and end are reported separately. Three rounds take half an
hour.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.backfill_peers import Progress
from bench.report import ROOT, Load, additions, recorded, write
from tests.broker.workers import Fleet, Kafka
from tests.spark.scene import Place, Scene
from tests.support.kafka import KafkaBroker
from tests.support.spark import ensure_spark
from tests.support.writing import SureProducer

HANDLERS: Final = {"single": "handle", "batch": "handle_batch"}
RECORDS: Final = {1: 1_000_000, 2: 2_000_000}
"""Records of a run, by its cores."""
SPREAD: Final = 1_000_000
"""Records of each topic that differs in partitions only; their Backfills run at the same time, with one core each."""
SLICE: Final = 10_000_000
"""The default of `slice.maxRecords`; the default of `slice.maxSeconds` is 15."""
PARTITIONS: Final = (2, 40, 200)
MANY: Final = 12
WAITING: Final = 12_000
"""Records of the waiting handler: 19 s with 32 calls of 50 ms."""
CALLS: Final = 32
SAMPLE_S: Final = 1.0
HANDLER: Final = (Path(__file__).with_name("backfill_handler.py")).read_text()


def flight(number: int) -> bytes:
    """A record of about 330 bytes."""
    row = {"year": 2013, "dep_time": 517, "carrier": "UA", "flight": number, "origin": "EWR", "dest": "IAH"}
    row |= {"dep_delay": 2.0, "arr_delay": 11.0, "tailnum": "N14228", "air_time": 227.0, "distance": 1400}
    return json.dumps({**row, "time_hour": "2013-01-01T05:00:00Z", "note": "x" * 120}).encode()


class Measured(NamedTuple):
    """Records per second between the ends of the first and the last slice, CPU microseconds per record, the seconds
    before and after, and the times of those ends in seconds since the epoch."""

    rate: float
    processor: float
    start: float
    began: float
    ended: float


class ProcessorTime(threading.Thread):
    """CPU time of all processes of a session, sampled until `between` is called."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._samples: list[tuple[float, float]] = []
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(SAMPLE_S):
            ticks = sum(map(self._ticks, Path("/proc").glob("[0-9]*")))
            self._samples.append((time.time(), ticks / os.sysconf("SC_CLK_TCK")))

    def _ticks(self, process: Path) -> int:
        """CPU ticks of a process and its ended children; 0 for a process of another session."""
        with contextlib.suppress(OSError):
            numbers = (process / "stat").read_text().rpartition(")")[2].split()[1:]
            return sum(map(int, numbers[10:14])) if int(numbers[2]) == self._session else 0
        return 0

    def between(self, began: float, ended: float) -> float:
        """CPU seconds between two times (seconds since the epoch); ends the sampling."""
        self._end.set()
        self.join()
        first, *_, last = [sample for sample in self._samples if began <= sample[0] <= ended]
        return (last[1] - first[1]) / (last[0] - first[0]) * (ended - began)


class Bench:
    """A broker with the records, and the sides to measure."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self._place = Place(Kafka(broker.bootstrap), broker.bootstrap, ensure_spark())
        self._folder = folder
        self._numbers = itertools.count(1)

    def topic(self, partitions: int, records: int) -> str:
        """Create a topic with this number of records and partitions; returns its name."""
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
        folder = self._folder / f"run-{next(self._numbers)}"
        python = {"callable": f"handler:{name}", "path": str(folder / "live")}
        ranges = {str(part): [0, records // partitions] for part in range(partitions)}
        settings = {"handler.python": python, **worker}
        with Scene(self._place, folder, handler=HANDLER, worker=settings, master=f"local[{cores}]") as scene:
            began = time.monotonic()
            driver = scene.start(topic=topic, ranges=ranges, parallelism=cores, sliceRecords=SLICE, sliceSeconds=15)
            processor = ProcessorTime(driver.process.pid)
            processor.start()
            assert driver.wait(1_000) == 0, driver.tail()
            seconds = time.monotonic() - began
            lines = [json.loads(line) for line in driver.log.read_text().splitlines() if '"slice done"' in line]
        ends = [datetime.fromisoformat(line["time"]).timestamp() for line in lines]
        handled = sum(line["records"] for line in lines)
        assert handled == records // partitions * partitions, handled
        between, counted = ends[-1] - ends[0], handled - lines[0]["records"]
        spent = processor.between(ends[0], ends[-1]) / counted * 1e6
        return Measured(counted / between, spent, seconds - between, ends[0], ends[-1])

    def loop(self, topic: str, records: int, cores: int, name: str) -> float:
        """Records per second of plain loops over the same records, one process per core, from the first record on."""
        loops = self._loops(topic, records, cores, name, passes=1)
        said = [progress for each in loops for progress in _progress(each)]
        return records / (max(each.at for each in said) - min(each.at for each in said))

    def at_once(self, topic: str, records: int, cores: int, name: str) -> tuple[float, float]:
        """CPU microseconds per record of plain loops and a Backfill that run at the same time, without the broker."""
        loops = self._loops(topic, records, cores, name, passes=100)
        try:
            run = self.backfill(topic, MANY, records, cores, name)
        finally:
            for each in loops:
                each.terminate()
        handled, processor = 0, 0.0
        for each in loops:
            inside = [progress for progress in _progress(each) if run.began <= progress.at <= run.ended]
            handled += inside[-1].records - inside[0].records
            processor += inside[-1].processor - inside[0].processor
        return processor / handled * 1e6, run.processor

    def spread(self, topics: Mapping[int, str]) -> dict[int, Measured]:
        """Run one Backfill per topic at the same time; results by number of partitions."""
        with ThreadPoolExecutor() as pool:
            running = {
                count: pool.submit(self.backfill, topic, count, SPREAD, 1, "handle") for count, topic in topics.items()
            }
            return {count: run.result() for count, run in running.items()}

    def _loops(self, topic: str, records: int, cores: int, name: str, *, passes: int) -> list[subprocess.Popen[str]]:
        words = [sys.executable, "-m", "bench.backfill_peers", "--bootstrap", self._place.bootstrap, "--topic", topic]
        words += ["--handler", name, "--passes", str(passes)]
        running = []
        for core in range(cores):
            ends = json.dumps(dict.fromkeys(range(core, MANY, cores), records // MANY))
            running.append(subprocess.Popen([*words, "--ends", ends], cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return running

    def live(self, topic: str) -> float:
        """Records per second of one live worker with the waiting handler, by its commits."""
        folder = self._folder / f"live-{next(self._numbers)}"
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


def _progress(loop: subprocess.Popen[str]) -> list[Progress]:
    """The progress printed by a loop until its end; the last line may be incomplete."""
    lines = loop.communicate()[0].splitlines()
    return [Progress(*json.loads(line)) for line in lines if line.endswith("]")]


def measured(bench: Bench, runs: int) -> dict[str, list[float]]:
    """Figures of all rounds, by side."""
    topic = bench.topic(MANY, max(RECORDS.values()))
    others = {count: bench.topic(count, SPREAD) for count in PARTITIONS}
    waiting = bench.topic(4, WAITING)
    found: dict[str, list[float]] = {}

    def note(side: str, value: float) -> None:
        found.setdefault(side, []).append(value)
        print(f"  {side}: {value:,.1f}", file=sys.stderr, flush=True)

    for number in range(runs):
        loop_first = number % 2 == 0
        for cores in RECORDS:
            for kind, name in HANDLERS.items():
                records = RECORDS[cores]
                if loop_first:
                    note(f"{kind}/{cores}/loop", bench.loop(topic, records, cores, name))
                run = bench.backfill(topic, MANY, records, cores, name)
                note(f"{kind}/{cores}/backfill", run.rate)
                note(f"{kind}/{cores}/start", run.start)
                if not loop_first:
                    note(f"{kind}/{cores}/loop", bench.loop(topic, records, cores, name))
                for side, spent in zip(("loop", "backfill"), bench.at_once(topic, records, cores, name), strict=True):
                    note(f"{kind}/{cores}/{side}/processor", spent)
        for many in PARTITIONS[1:]:
            for count, run in bench.spread({each: others[each] for each in (PARTITIONS[0], many)}).items():
                note(f"partitions/{many}/{count}/rate", run.rate)
                note(f"partitions/{many}/{count}/processor", run.processor)
        calls = {"handler.concurrency": CALLS}
        note("waiting/backfill", bench.backfill(waiting, 4, WAITING, 1, "wait", **calls).rate)
        note("waiting/live", bench.live(waiting))
    return found


def ratio(sides: dict[str, list[float]], one: str, other: str) -> str:
    """The median ratio and, in brackets, the ratio of each round."""
    ratios = [mine / theirs for mine, theirs in zip(sides[one], sides[other], strict=True)]
    return f"{statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"


def page(figures: dict[str, Any]) -> list[str]:
    sides, runs = figures["sides"], figures["runs"]
    lines = [
        "# Backfill",
        "",
        f"Records of 330 bytes (JSON) on Spark's local master; medians of {runs} rounds, and in brackets the ratio of",
        f"each round. The rate is that of {RECORDS[1]:,} records with one core and {RECORDS[2]:,} with two, in slices",
        "of 15 seconds, including the work between slices, without Spark's start and end. The broker, Spark's driver",
        "and Java's threads share the two cores with the handlers.",
        "",
        "Processor time of a record: both sides run at the same time, so other load affects both. It counts the loops",
        "on one side, and all processes of the Backfill with driver and Java on the other, without the broker.",
        "",
        "| Handler | Cores | Rate compared with plain loops | Processor time a record | Records/s | Start, end |",
        "|---|---|---|---|---|---|",
    ]
    median = {side: statistics.median(values) for side, values in sides.items()}
    for kind in HANDLERS:
        for cores in RECORDS:
            side = f"{kind}/{cores}"
            rates = ratio(sides, f"{side}/backfill", f"{side}/loop")
            spent = ratio(sides, f"{side}/loop/processor", f"{side}/backfill/processor")
            loop, backfill = (f"{median[f'{side}/{each}/processor']:.1f}" for each in ("loop", "backfill"))
            rate, start = median[f"{side}/backfill"], median[f"{side}/start"]
            cells = (kind, cores, rates, f"{loop} µs to {backfill} µs: {spent}", f"{rate:,.0f}", f"{start:.0f} s")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    live, task = median["waiting/live"], median["waiting/backfill"]
    lines += [
        "",
        f"A handler that waits 50 ms, {CALLS} calls at once: {task:,.0f} records/s in a task, {live:,.0f} in a",
        f"live worker: {ratio(sides, 'waiting/backfill', 'waiting/live')}.",
        "",
        f"Partitions: a Backfill of {SPREAD:,} records in many partitions, and at the same time one of as many records",
        f"in {PARTITIONS[0]} partitions, with one core each.",
        "",
        f"| Partitions | Rate compared with {PARTITIONS[0]} | Processor time a record |",
        "|---|---|---|",
    ]
    for count in PARTITIONS[1:]:
        many, few = f"partitions/{count}/{count}", f"partitions/{count}/{PARTITIONS[0]}"
        rates = ratio(sides, f"{many}/rate", f"{few}/rate")
        spent = ratio(sides, f"{few}/processor", f"{many}/processor")
        one, other = median[f"{few}/processor"], median[f"{many}/processor"]
        lines.append(f"| {count} | {rates} | {one:.1f} µs to {other:.1f} µs: {spent} |")
    lines += ["", f"20 million additions in a Python function take {figures['additions_s']:.1f} s here."]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
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
