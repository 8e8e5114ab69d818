"""Takeover time: from the last record of a departed member to the first of its partitions' new owner.

Killed (SIGKILL) without restart: its session expires, the others learn of it with a heartbeat and rebalance; the bound
is session timeout + one heartbeat interval + 1 s. Restarted in order as a static member, within its session: nobody
rebalances, so the generation stays, and the pause is the start of a process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.group_lab import BROKERS, MAKES, UNHURRIED, percentiles
from bench.report import Load, recorded, write
from tests.support.kafka_cluster import KafkaCluster
from tests.support.recording import RecordedProcess
from tests.support.scene import Scene

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000
BOUND_S: Final = (SESSION_MS + HEARTBEAT_MS) / 1000 + 1.0
LONG_SESSION_MS: Final = 30_000
PARTITIONS: Final = 6
RUNS: Final = {"fleet": 5, "java": 3, "librdkafka": 3}
NAMES: Final = {"fleet": "Consumer Fleet", "java": "Java consumer", "librdkafka": "librdkafka"}


def killed(cluster: KafkaCluster, folder: Path, make: str) -> list[float]:
    """Kill one of two members; returns the pause of each of its partitions, in seconds."""
    settings: dict[str, Any] = {
        "assignors": ("range",),
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }
    with Scene(cluster, folder, partitions=PARTITIONS, **settings) as scene:
        heir, victim = MAKES[make](scene), MAKES[make](scene)
        scene.await_shared([heir, victim])
        scene.await_progress([victim], 100)
        victim.kill()
        scene.await_shared([heir])
        scene.await_progress([heir], 200)
        return handovers(victim, heir)


def restarted(cluster: KafkaCluster, folder: Path, make: str) -> tuple[list[float], bool]:
    """Restart one of two static members; returns its partitions' pauses (seconds), and True if nobody rebalanced."""
    settings: dict[str, Any] = {
        "assignors": ("range",),
        "session_timeout_ms": LONG_SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }
    with Scene(cluster, folder, partitions=PARTITIONS, **settings) as scene:
        other = MAKES[make](scene, group_instance_id="other")
        first = MAKES[make](scene, group_instance_id="restarted")
        scene.await_shared([other, first])
        scene.await_progress([first], 100)
        calls = len(other.history().calls)
        first.stop()
        second = MAKES[make](scene, group_instance_id="restarted")
        scene.await_shared([other, second])
        scene.await_progress([second], 100)
        # Not every client tells its generation; a rebalance would have called the other member's callbacks.
        unchanged = len(other.history().calls) == calls
        return handovers(first, second), unchanged


def handovers(old: RecordedProcess, new: RecordedProcess) -> list[float]:
    """Seconds from the last record of the old owner to the first later one of the new, for each partition."""
    last: dict[int, float] = {}
    for stint in old.history().stints:
        last[stint.partition] = max(stint.ended_at, last.get(stint.partition, 0.0))
    begun = new.history().stints
    return [
        min(stint.began_at for stint in begun if stint.partition == partition and stint.began_at > at) - at
        for partition, at in last.items()
        if partition in {stint.partition for stint in begun}
    ]


def measure(cluster: KafkaCluster, runs: dict[str, int]) -> dict[str, Any]:
    """Measure all clients in turns, so that a slow period of the machine affects each."""
    load = Load()
    after_kill: dict[str, list[float]] = {make: [] for make in runs}
    after_restart: dict[str, list[float]] = {make: [] for make in runs}
    unchanged: dict[str, bool] = dict.fromkeys(runs, True)
    for number in range(max(runs.values())):
        for make in [make for make, wanted in runs.items() if number < wanted]:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
                after_kill[make] += killed(cluster, Path(folder), make)
            if number == 0:
                with tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
                    pauses, same = restarted(cluster, Path(folder), make)
                    after_restart[make] += pauses
                    unchanged[make] = unchanged[make] and same
            print(f"  {make:<11} run {number + 1}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return recorded(
        "takeover",
        {
            "bound_s": BOUND_S,
            "within_bound": max(after_kill["fleet"]) <= BOUND_S,
            "session_timeout_s": SESSION_MS / 1000,
            "heartbeat_interval_s": HEARTBEAT_MS / 1000,
            "runs": runs,
            "killed_s": {make: percentiles(values) for make, values in after_kill.items()},
            "static_restart_s": {make: percentiles(values) for make, values in after_restart.items()},
            "static_restart_generation_unchanged": unchanged,
        },
        load,
        brokers=BROKERS,
    )


def page(result: dict[str, Any]) -> list[str]:
    lines = [
        "# Takeover",
        "",
        f"After kill -9 the slowest partition waited **{result['killed_s']['fleet']['max']:.2f} s**; the bound is "
        f"{result['bound_s']:.0f} s (session {result['session_timeout_s']:g} s + heartbeat "
        f"{result['heartbeat_interval_s']:g} s + 1 s). Restarted in order as a static member: generation "
        f"{'unchanged' if result['static_restart_generation_unchanged']['fleet'] else 'CHANGED'}.",
        "",
        "Seconds from the last record of the old owner to the first of the new, of each partition.",
        "",
        "| Make | how it went | runs | p50 | p90 | p99 | max |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for title, key in (("killed, kept away", "killed_s"), ("static, restarted", "static_restart_s")):
        for make, row in result[key].items():
            runs = result["runs"][make] if key == "killed_s" else 1
            shown = " | ".join(f"{row[name]:.2f}" for name in ("p50", "p90", "p99", "max"))
            lines.append(f"| {NAMES[make]} | {title} | {runs} | {shown} |")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; returns 1 if ours exceeded the bound, or a static restart caused a rebalance."""
    parser = argparse.ArgumentParser(prog="python -m bench.takeover", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, help="kills of each client (default: five of ours, three of the others)")
    options = parser.parse_args(arguments)
    runs = dict(RUNS) if options.runs is None else dict.fromkeys(RUNS, options.runs)
    with KafkaCluster(properties=UNHURRIED) as cluster:
        result = measure(cluster, runs)
    write(result, page(result))
    return 0 if result["within_bound"] and result["static_restart_generation_unchanged"]["fleet"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
