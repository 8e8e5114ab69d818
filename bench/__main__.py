"""`python -m bench`: runs the benchmarks one after the other; each records its result in bench/results."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

USUAL: Final = {
    "throughput": "records per second beside librdkafka, Java, aiokafka and kafka-python",
    "poll-wait": "the share of time that waits for the network (M17)",
    "latency": "from producing a record to its handler, beside librdkafka's group consumer",
}
"""The default benchmarks: about seven minutes on two cores."""
LONG: Final = {
    "takeover": "from the last record of a member that is gone to the first of who has its partitions then",
    "rolling": "the pause of each partition while a group is restarted member by member",
    "rebalance": "how long a group of a hundred members takes to rebalance, beside Java's consumer",
    "assignors": "how long a leader computes, beside Java's assignors",
    "lateness": "how late waiting records are handed out, beside a topic of mixed delays",
    "waiting-memory": "memory of a retry worker with hundreds of waiting partitions, and its first due record",
    "hop-cost": "what a record that is retried costs those behind it (M19)",
    "operator": "the operator beside 100, 1,000 and 5,000 ConsumerGroups: CPU, memory, requests, writes, restart",
    "scaling-rules": "the rules of scaling over 42 simulated curves, compared with KEDA's, Flink's and the least fleet",
    "scaling": "a load step, a skewed topic and slow records on a real cluster, compared with KEDA and an HPA",
    "backfill": "backfills on Spark beside plain Python loops and a live worker",
    "backfill-scale": "how many executors one driver of a Backfill keeps busy",
}
"""The benchmarks that run by name or with --all: groups on three brokers, whose sessions have to expire, a million
partitions, and delays."""
TAKES_RUNS: Final = frozenset(
    (*USUAL, "takeover", "rebalance", "assignors", "lateness", "waiting-memory", "hop-cost", "backfill")
)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen benchmarks; returns 1 if one failed. The pages say whether promises are kept."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    benchmarks = USUAL | LONG
    parser.add_argument("--only", metavar="NAME", action="append", choices=list(benchmarks), help="may be repeated")
    parser.add_argument("--all", action="store_true", help="the long ones as well")
    parser.add_argument("--runs", type=int, help="runs of each side; each benchmark has a default of its own")
    options = parser.parse_args(arguments)
    failed: list[str] = []
    for name in options.only or (benchmarks if options.all else USUAL):
        print(f"== {name}: {benchmarks[name]}", file=sys.stderr, flush=True)
        runs = ["--runs", str(options.runs)] if options.runs is not None and name in TAKES_RUNS else []
        began = time.monotonic()
        # A process for each: one that fails does not take the others with it, and none leaves anything to the next.
        status = subprocess.run([sys.executable, "-m", f"bench.{name.replace('-', '_')}", *runs]).returncode
        print(f"== {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if status:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
