"""`python -m bench`: runs benchmarks one after the other; each records its result in bench/results."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

USUAL: Final = {
    "throughput": "records per second compared with librdkafka, Java, aiokafka and kafka-python",
    "poll-wait": "share of time spent waiting for the network (M17)",
    "latency": "time from producing a record to its handler, compared with librdkafka's group consumer",
}
"""The default benchmarks: about seven minutes on two cores."""
LONG: Final = {
    "takeover": "time from the last record of a departed member to the first of its partitions' new owner",
    "rolling": "the pause of each partition while a group is restarted member by member",
    "rebalance": "rebalance time of a group of a hundred members, compared with Java's consumer",
    "assignors": "planning time of a group's leader, compared with Java's assignors",
    "lateness": "lateness of waiting records, compared with a topic of mixed delays",
    "waiting-memory": "memory of a retry worker with hundreds of waiting partitions, and its first due record",
    "retry-publish-cost": "cost of a retried record for the records behind it (M19)",
    "operator": "the operator with 100, 1,000 and 5,000 ConsumerGroups: CPU, memory, requests, writes, restart",
    "scaling-rules": "scaling rules on 42 simulated curves, compared with KEDA's, Flink's and the smallest fleet",
    "scaling": "a load step, a skewed topic and slow records on a real cluster, compared with KEDA and an HPA",
    "backfill": "backfills on Spark compared with plain Python loops and a live worker",
    "backfill-scale": "number of executors that one driver of a Backfill keeps busy",
}
"""Benchmarks that run by name or with --all. They take long: sessions expire, delays elapse, plans have a million
partitions."""
TAKES_RUNS: Final = frozenset(
    (*USUAL, "takeover", "rebalance", "assignors", "lateness", "waiting-memory", "retry-publish-cost", "backfill")
)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen benchmarks; returns 1 if one failed to run. Missed promises are shown on the pages only."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    benchmarks = USUAL | LONG
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=list(benchmarks), help="run this benchmark; may be repeated"
    )
    parser.add_argument("--all", action="store_true", help="run the long benchmarks, too")
    parser.add_argument("--runs", type=int, help="runs of each side (default: set by each benchmark)")
    options = parser.parse_args(arguments)
    failed: list[str] = []
    for name in options.only or (benchmarks if options.all else USUAL):
        print(f"== {name}: {benchmarks[name]}", file=sys.stderr, flush=True)
        runs = ["--runs", str(options.runs)] if options.runs is not None and name in TAKES_RUNS else []
        began = time.monotonic()
        # One process per benchmark, so that a failure or leftover state does not affect the others.
        status = subprocess.run([sys.executable, "-m", f"bench.{name.replace('-', '_')}", *runs]).returncode
        print(f"== {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if status:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
