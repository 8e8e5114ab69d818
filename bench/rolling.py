"""Rolling restart of twenty cooperative members: pauses of partitions, compared with the Java consumer.

One member after the other closes in order; once the others share its partitions, a new one replaces it, and the next
follows when the group is complete again. Waiting excludes the start of a process, which depends on the machine, from
the pauses. A partition's pause is the time in which no member hands out a record, under a steady stream.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.group_lab import BROKERS, MAKES, UNHURRIED, pauses, percentiles
from bench.report import Load, recorded, write
from tests.support.kafka_cluster import KafkaCluster
from tests.support.recording import RecordedProcess
from tests.support.scene import Scene

MEMBERS: Final = 20
PARTITIONS_EACH: Final = 2
PER_SECOND_EACH: Final = 20
SIDES: Final = ("fleet", "java")
SETTINGS: Final[dict[str, Any]] = {
    "assignors": ("cooperative-sticky",),
    "session_timeout_ms": 30_000,
    "heartbeat_interval_ms": 500,
}
NAMES: Final = {"fleet": "Consumer Fleet", "java": "Java consumer"}


@dataclass(frozen=True, slots=True)
class Restart:
    """One rolling restart: duration, longest pause of each partition, pause of each move (seconds), duplicates."""

    seconds: float
    longest: list[float]
    moves: list[float]
    duplicates: int


def restart_all(cluster: KafkaCluster, folder: Path, make: str, members: int) -> Restart:
    """One rolling restart of one client."""
    partitions = members * PARTITIONS_EACH
    with Scene(cluster, folder, partitions=partitions, per_second=partitions * PER_SECOND_EACH, **SETTINGS) as scene:
        fleet: list[RecordedProcess] = [MAKES[make](scene) for _ in range(members)]
        everybody = list(fleet)
        scene.await_shared(fleet, timeout_s=180)
        scene.await_progress(fleet, partitions * PER_SECOND_EACH)
        began = time.monotonic()
        for _ in range(members):
            fleet.pop(0).stop()
            scene.await_shared(fleet, timeout_s=60)
            fleet.append(MAKES[make](scene))
            everybody.append(fleet[-1])
            scene.await_shared(fleet, timeout_s=60)
        scene.await_progress(fleet, partitions * PER_SECOND_EACH)
        took = time.monotonic() - began
        verdict = scene.finish(fleet)
        longest = [max(gaps) for gaps in pauses(everybody, partitions, began).values()]
        moves = handover_pauses(everybody, began)
    print(f"  {make:<6} {took:.0f} s, longest pause {max(longest):.2f} s", file=sys.stderr, flush=True)
    return Restart(took, longest, moves, verdict.duplicates)


def summary(restarts: Sequence[Restart]) -> dict[str, Any]:
    """Figures over all restarts of one client."""
    return {
        "seconds": [round(each.seconds, 1) for each in restarts],
        "longest_pause_of_each_partition_s": percentiles([gap for each in restarts for gap in each.longest]),
        "pause_of_each_move_s": percentiles([gap for each in restarts for gap in each.moves]),
        "moves": sum(len(each.moves) for each in restarts),
        "handed_out_again": sum(each.duplicates for each in restarts),
    }


def handover_pauses(processes: Sequence[RecordedProcess], since: float) -> list[float]:
    """Seconds between the records of both members, for each move of a partition."""
    stints = sorted(
        (stint for process in processes for stint in process.history().stints if stint.ended_at >= since),
        key=lambda stint: (stint.partition, stint.began_at),
    )
    return [
        max(0.0, after.began_at - before.ended_at)
        for before, after in pairwise(stints)
        if before.partition == after.partition and before.member != after.member
    ]


def page(result: dict[str, Any]) -> list[str]:
    lines = [
        "# Rolling restart",
        "",
        f"A partition's longest pause is **{result['ratio_p50']:.2f}** of what it is with the Java consumer in the "
        f"median, {result['ratio_p99']:.2f} at p99.",
        "",
        f"{result['members']} members with cooperative-sticky, {result['members'] * PARTITIONS_EACH} partitions, "
        f"{PER_SECOND_EACH} records per second in each; every member restarted once, heartbeats twice a second. "
        "Seconds without a record.",
        "",
        "| Make | what | p50 | p90 | p99 | max |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for title, key in (
        ("each move of a partition", "pause_of_each_move_s"),
        ("the longest of each partition", "longest_pause_of_each_partition_s"),
    ):
        for side in SIDES:
            row = result["sides"][side]
            shown = " | ".join(f"{row[key][name]:.3f}" for name in ("p50", "p90", "p99", "max"))
            lines.append(f"| {NAMES[side]} | {title} | {shown} |")
    moves = ", ".join(f"{NAMES[side]} {result['sides'][side]['moves']}" for side in SIDES)
    return [*lines, "", f"Moves of partitions: {moves}."]


def main(arguments: Sequence[str]) -> int:
    """Run both sides on the same brokers."""
    parser = argparse.ArgumentParser(prog="python -m bench.rolling", description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--runs", type=int, default=1, help="rolling restarts of each client")
    options = parser.parse_args(arguments)
    load = Load()
    restarts: dict[str, list[Restart]] = {side: [] for side in SIDES}
    with KafkaCluster(properties=UNHURRIED) as cluster:
        for number in range(options.runs):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
                    restarts[side].append(restart_all(cluster, Path(folder), side, options.members))
    sides = {side: summary(done) for side, done in restarts.items()}
    ours, theirs = (sides[side]["longest_pause_of_each_partition_s"] for side in SIDES)
    result = recorded(
        "rolling",
        {
            "ratio_p50": ours["p50"] / theirs["p50"],
            "ratio_p99": ours["p99"] / theirs["p99"],
            "members": options.members,
            "runs": options.runs,
            "sides": sides,
        },
        load,
        brokers=BROKERS,
    )
    write(result, page(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
