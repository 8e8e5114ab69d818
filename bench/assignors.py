"""Planning time of a group's leader: our assignors compared with Java's, in the same situations and one run.

Each run of a side is a separate process, and sides alternate. Times are of the public `assign`: ours includes parsing
user data, Java's is from `Cluster` to `GroupAssignment`. Promises are checked against CPU seconds: one thread makes a
plan without waiting, so on an idle machine both times agree, and on a busy one only CPU time is the plan's. Java's
general case may exceed the timeout, and is then reported as such.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.report import Load, versions, write
from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import find_java

JAVA_SOURCE: Final = Path(__file__).parent / "JavaAssignorTimes.java"
JAVA_HEAP: Final = "2g"
PATIENCE_S: Final = 120
"""The timeout of a side; its output until then counts."""

Times = dict[str, tuple[float, float]]
"""Wall and CPU seconds of each situation; `peak` is MiB."""


@dataclass(frozen=True, slots=True)
class Case:
    """One situation of a group, and the limit (seconds) of each plan; no entry: not promised."""

    assignor: str
    topics: int
    partitions: int
    members: int
    divergent: bool = False
    limits: tuple[tuple[str, float], ...] = ()

    @property
    def title(self) -> str:
        return f"{self.topics * self.partitions:,} / {self.members:,}{', one divergent' if self.divergent else ''}"

    def arguments(self) -> list[str]:
        return [
            self.assignor,
            *map(str, (self.topics, self.partitions, self.members)),
            "true" if self.divergent else "false",
        ]


SMALL: Final = (("fresh", 0.1), ("leave", 0.1), ("join", 0.1))
LARGE: Final = (("fresh", 0.8), ("leave", 1.2), ("join", 1.2))
DIVERGENT: Final = (("fresh", 3.0), ("leave", 3.0), ("join", 3.0))
CASES: Final = (
    Case("cooperative-sticky", 500, 200, 500, limits=SMALL),
    Case("cooperative-sticky", 500, 2000, 2000, limits=LARGE),
    Case("cooperative-sticky", 500, 2000, 2000, divergent=True, limits=DIVERGENT),
    Case("sticky", 500, 200, 500, limits=SMALL),
    Case("sticky", 500, 2000, 2000, limits=LARGE),
    Case("sticky", 500, 2000, 2000, divergent=True, limits=DIVERGENT),
    Case("range", 500, 2000, 2000),
    Case("roundrobin", 500, 2000, 2000),
)


def ours(case: Case) -> Times:
    return run([sys.executable, "-m", "bench.assignor_side", *case.arguments()])


def java(case: Case) -> Times:
    options = [f"-Xmx{JAVA_HEAP}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    jars = f"{ensure_kafka_jars()}/*"
    return run([str(find_java()), *options, "-cp", jars, str(JAVA_SOURCE), *case.arguments()])


def run(command: Sequence[str]) -> Times:
    """Wall and CPU seconds by situation, as far as the process got."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    else:
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    rows = (line.split() for line in output.splitlines())
    return {situation: (float(wall), float(cpu)) for situation, wall, cpu in rows}


def measure(runs: int) -> list[dict[str, Any]]:
    """One row for each case and situation, with the medians of all runs."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        print(f"  {case.assignor} {case.title}", file=sys.stderr, flush=True)
        own: list[Times] = []
        peers: list[Times] = []
        for _ in range(runs):
            own.append(ours(case))
            # Java's eager sticky makes the same plan as its cooperative one, which is measured. A case that timed out
            # is not repeated.
            if case.assignor != "sticky" and (not peers or peers[-1].keys() >= own[-1].keys() - {"peak"}):
                peers.append(java(case))
        rows += [row(case, situation, own, peers) for situation in own[0] if situation != "peak"]
    return rows


def row(case: Case, situation: str, own: Sequence[Times], peers: Sequence[Times]) -> dict[str, Any]:
    """The figures of one situation; Java's are None if not measured or timed out."""
    return {
        "assignor": case.assignor,
        "case": case.title,
        "situation": situation,
        "seconds": statistics.median(each[situation][0] for each in own),
        "highest": max(each[situation][0] for each in own),
        "cpu_seconds": statistics.median(each[situation][1] for each in own),
        "peak_mib": statistics.median(each["peak"][0] for each in own),
        "limit": dict(case.limits).get(situation),
        "java_asked": bool(peers),
        "java_seconds": _median([each[situation][0] for each in peers if situation in each]),
        "java_cpu_seconds": _median([each[situation][1] for each in peers if situation in each]),
    }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def page(result: dict[str, Any]) -> list[str]:
    lines = [
        "# Assignors: how long a leader computes",
        "",
        f"Medians of {result['runs']} runs, each side in a process of its own, alternated; seconds around the public "
        "`assign`, and CPU seconds, which are what *may take* is about. Partitions / members; *one divergent*: "
        "one member wants one topic only. Java's times are those of a JVM that plans for the first time, as a leader's "
        "often is.",
        "",
        "| Assignor | Partitions / members | Plan | s | highest | CPU s | may take | peak MiB | Java s | Java CPU s "
        "| ours / Java |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in result["rows"]:
        limit = f"{each['limit']:.1f}" if each["limit"] else ""
        peer = ("", "", "")
        if each["java_seconds"]:
            ratio = each["seconds"] / each["java_seconds"]
            peer = (f"{each['java_seconds']:.2f}", f"{each['java_cpu_seconds']:.2f}", f"{ratio:.2f}")
        elif each["java_asked"]:
            peer = (f"> {PATIENCE_S}", "", f"< {each['seconds'] / PATIENCE_S:.2f}")
        lines.append(
            f"| {each['assignor']} | {each['case']} | {each['situation']} "
            f"| {each['seconds']:.2f} | {each['highest']:.2f} | {each['cpu_seconds']:.2f} "
            f"| {limit} | {each['peak_mib']:.0f} | {' | '.join(peer)} |"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; returns 1 if a plan took longer than promised."""
    parser = argparse.ArgumentParser(prog="python -m bench --only assignors", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    load = Load()
    rows = measure(options.runs)
    result = {
        "benchmark": "assignors",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": options.runs,
        "rows": rows,
        "versions": versions(),
        "machine": f"{os.cpu_count()} cores",
        "load": load.averages(),
    }
    write(result, page(result))
    late = [each for each in rows if each["limit"] and each["cpu_seconds"] > each["limit"]]
    for each in late:
        print(f"too slow: {each['assignor']} {each['case']} {each['situation']}", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
