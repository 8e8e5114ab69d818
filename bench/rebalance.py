"""Rebalance time of a hundred members when one joins or leaves, compared with the Java consumer.

Measured for both clients from the coordinator's log, from "Preparing to rebalance" to the leader's assignment. A
cooperative join takes two rounds, and counts from the start of the first to the end of the second. Members learn of a
rebalance with a heartbeat, so every figure includes its interval.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bench.group_lab import BROKERS, MAKES, UNHURRIED, percentiles
from bench.report import Load, recorded, write
from tests.support.kafka_cluster import KafkaCluster
from tests.support.scene import Scene
from tests.support.waiting import eventually

MEMBERS: Final = 100
PROCESSES: Final = 5
SETTINGS: Final[dict[str, Any]] = {"session_timeout_ms": 45_000, "heartbeat_interval_ms": 1_000}
SIDES: Final = (
    ("fleet", "range"),
    ("java", "range"),
    ("fleet", "cooperative-sticky"),
    ("java", "cooperative-sticky"),
)
NAMES: Final = {"fleet": "Consumer Fleet", "java": "Java consumer"}
LINE: Final = re.compile(
    r"^(?P<at>\S+) .*(?:(?P<begin>Preparing to rebalance) group (?P<began>\S+) "
    r"|(?P<end>Assignment received) from leader \S+ for group (?P<ended>\S+) )"
)
PATIENCE_S: Final = 120.0


def rounds(lines: Iterable[str], group: str) -> list[tuple[float, float]]:
    """Start and end of each rebalance of the group, in epoch seconds, from the coordinators' logs."""
    found: list[tuple[float, float]] = []
    began: float | None = None
    words = [match for line in lines if (match := LINE.match(line)) and group in (match["began"], match["ended"])]
    for match in sorted(words, key=lambda match: match["at"]):
        at = datetime.fromisoformat(match["at"]).timestamp()
        if match["begin"]:
            began = at if began is None else began
        elif began is not None:
            found.append((began, at))
            began = None
    return found


def await_members(scene: Scene, count: int) -> None:
    """Wait until the group is Stable with `count` members, and the coordinator's plan covers all partitions."""

    def settled() -> bool:
        group = scene.described()
        assert group.group_state == "Stable", group.group_state
        assert len(group.members) == count, f"{len(group.members)} members"
        planned = scene.planned(group)
        assert planned == list(range(scene.partitions)), f"{len(planned)} partitions"
        return True

    eventually(settled, timeout_s=PATIENCE_S, what=f"{count} members to share", poll_s=0.2)


def measure(cluster: KafkaCluster, make: str, assignor: str, members: int, runs: int) -> dict[str, Any]:
    """Figures of one side: `runs` joins and leaves of one more member."""
    joins, leaves = [], []
    with (
        tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder,
        Scene(cluster, Path(folder), partitions=2 * members, assignors=(assignor,), **SETTINGS) as scene,
    ):
        for _ in range(PROCESSES):
            MAKES[make](scene, members=members // PROCESSES)
        await_members(scene, members)

        def seen() -> list[tuple[float, float]]:
            logs = (broker.log.read_text(errors="replace") for broker in cluster.brokers.values())
            return rounds((line for log in logs for line in log.splitlines()), scene.group)

        for _ in range(runs):
            before = len(seen())
            one_more = MAKES[make](scene)
            await_members(scene, members + 1)
            joined = len(seen())
            one_more.stop()
            await_members(scene, members)
            noted = seen()
            joins.append(noted[joined - 1][1] - noted[before][0])
            leaves.append(noted[-1][1] - noted[joined][0])
    print(f"  {make} {assignor}: join {max(joins):.2f} s, leave {max(leaves):.2f} s", file=sys.stderr, flush=True)
    return {"make": make, "assignor": assignor, "join_s": percentiles(joins), "leave_s": percentiles(leaves)}


def page(result: dict[str, Any]) -> list[str]:
    lines = [
        f"# Rebalance with {result['members']} members",
        "",
        f"One member joins, one leaves; {result['runs']} of each, heartbeats each second. Seconds from the "
        "coordinator's first to its last word.",
        "",
        "| Make | assignor | join p50 | join max | leave p50 | leave max |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for side in result["sides"]:
        join, leave = side["join_s"], side["leave_s"]
        lines.append(
            f"| {NAMES[side['make']]} | {side['assignor']} | {join['p50']:.2f} | {join['max']:.2f} "
            f"| {leave['p50']:.2f} | {leave['max']:.2f} |"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run all sides on the same brokers."""
    parser = argparse.ArgumentParser(prog="python -m bench.rebalance", description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    load = Load()
    with KafkaCluster(properties=UNHURRIED) as cluster:
        sides = [measure(cluster, make, assignor, options.members, options.runs) for make, assignor in SIDES]
    figures = {"members": options.members, "runs": options.runs, "sides": sides}
    result = recorded("rebalance", figures, load, brokers=BROKERS)
    write(result, page(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
