"""Backfills on the embedded cluster, beside a plain Python loop and a bare scan of Spark over the same records.

Everything runs on one machine, one side after the other: the time from `kubectl apply` to Succeeded, from 50,000 to a
million records, with parallelism 1 and 2. What does not grow with the records is the start; the rest is the rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from bench.report import ROOT, Load, recorded, write
from e2e.cluster import CommandFailed
from e2e.demo.backfill import Backfills
from e2e.demo.fleet import BOOTSTRAP, FlightFleet
from e2e.install import Installation

NAMESPACE: Final = "bench"
PEERS: Final = "bench-peers"
SIZES: Final = (50_000, 200_000, 1_000_000)
PARALLELISM: Final = (1, 2)
WRITTEN: Final = 1_300_000
"""Records of the topic, so that each partition has its share of a million."""
SAMPLE_S: Final = 1.0


def make(installation: Installation) -> FlightFleet:
    """A group without workers, a topic with a million flights, and the peers' pod."""
    installation.up()
    installation.install_spark_operator()
    fleet = FlightFleet(installation.cluster, namespace=NAMESPACE, consumer_image=installation.consumer_image)
    fleet.make_tools()
    fleet.make_topics()
    handler, cluster, group = fleet.manifests()
    group["spec"]["replicas"] = 0
    fleet.cluster.apply([handler, cluster, group, *_peers(installation.spark_image)], namespace=NAMESPACE)
    fleet.kubectl("wait", "--for=condition=Ready", f"pod/{PEERS}", "--timeout=300s", timeout_s=320)
    while fleet.lag()["end"] < WRITTEN:
        print("  writing a year of flights", file=sys.stderr, flush=True)
        fleet.produce()
    return fleet


def ends_of(fleet: FlightFleet, records: int) -> dict[str, int]:
    """End offsets of a range with so many records, an equal share of each partition."""
    partitions = len(fleet.inside("committed", "--topic", fleet.source, "--group", fleet.group_id))
    share, rest = divmod(records, partitions)
    return {str(number): share + (number < rest) for number in range(partitions)}


def run_backfill(fleet: FlightFleet, records: int, parallelism: int, run: int) -> dict[str, float]:
    """One Backfill without a sink: seconds from apply to Succeeded, and the memory of its pods."""
    name, ends = f"b{records}-{parallelism}-{run}", ends_of(fleet, records)
    backfills = Backfills(fleet)
    body = {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "Backfill",
        "metadata": {"name": name},
        "spec": {
            "groupRef": {"name": fleet.name},
            "range": {"offsets": [{"partition": number, "from": 0, "to": end} for number, end in ends.items()]},
            "onError": "Skip",
            "sink": {"none": {}},
            "parallelism": parallelism,
        },
    }
    with sampled(fleet, name) as memory:
        started = time.monotonic()
        backfills.apply(body)
        found = backfills.wait(name, "Succeeded")
        seconds = time.monotonic() - started
    status = found["status"]
    assert status["records"]["in"] == records, status
    fleet.kubectl("delete", "backfill", name, "--timeout=60s")
    print(f"  {name}: {seconds:.1f} s, {memory}", file=sys.stderr, flush=True)
    return {"seconds": seconds, "rate": float(status.get("ratePerSecond", 0)), **memory}


@contextmanager
def sampled(fleet: FlightFleet, name: str) -> Iterator[dict[str, float]]:
    """The highest resident memory of the driver's and of one executor's processes, in MiB, filled in at the end."""
    highest: dict[str, float] = {}
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            for role in ("driver", "executor"):
                selector = f"consumerfleet.io/backfill={name},spark-role={role}"
                for pod in fleet.cluster.list("pods", namespace=NAMESPACE, selector=selector)[:1]:
                    try:
                        text = fleet.kubectl(
                            "exec", pod["metadata"]["name"], "--", "sh", "-c", "cat /proc/[0-9]*/status"
                        )
                    except CommandFailed:
                        continue
                    kib = [int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:")]
                    highest[role] = max(highest.get(role, 0.0), sum(kib) / 1024)

    thread = threading.Thread(target=sample, name="memory", daemon=True)
    thread.start()
    try:
        yield highest
    finally:
        ended.set()
        thread.join()


def run_peer(fleet: FlightFleet, side: str, records: int, tasks: int = 1) -> dict[str, float]:
    """One run of a peer in its pod."""
    ends = json.dumps(ends_of(fleet, records)) if records else "{}"
    words = ["exec", PEERS, "--", "python", "/bench/backfill_peers.py", side, "--bootstrap", BOOTSTRAP]
    words += ["--topic", fleet.source, "--ends", ends, "--tasks", str(tasks)]
    answer: dict[str, float] = json.loads(fleet.kubectl(*words, timeout_s=600).splitlines()[-1])
    print(f"  {side} {records} on {tasks}: {answer['seconds']:.1f} s", file=sys.stderr, flush=True)
    return answer


def measured(fleet: FlightFleet, runs: int) -> dict[str, Any]:
    """All sides, medians of their runs."""
    largest = SIZES[-1]
    backfills = {
        f"{records}/{parallelism}": [run_backfill(fleet, records, parallelism, run) for run in range(runs)]
        for parallelism in PARALLELISM
        for records in SIZES
    }
    peers = {
        "loop": [run_peer(fleet, "loop", largest) for _ in range(runs)],
        **{f"scan/{tasks}": [run_peer(fleet, "scan", largest, tasks) for _ in range(runs)] for tasks in PARALLELISM},
    }
    medians = {
        name: {figure: statistics.median(run.get(figure, 0.0) for run in found) for figure in found[0]}
        for name, found in (backfills | peers).items()
    }
    return {"sides": medians, "runs": runs, "additions_s": run_peer(fleet, "additions", 0)["seconds"]}


def derived(figures: dict[str, Any]) -> dict[str, Any]:
    """Start and rate of each parallelism: the line through the smallest and the largest size; ratios to the peers."""
    sides, found = figures["sides"], {}
    loop = SIZES[-1] / sides["loop"]["seconds"]
    for parallelism in PARALLELISM:
        small, large = (sides[f"{size}/{parallelism}"]["seconds"] for size in (SIZES[0], SIZES[-1]))
        rate = (SIZES[-1] - SIZES[0]) / (large - small)
        scan = SIZES[-1] / sides[f"scan/{parallelism}"]["seconds"]
        found[str(parallelism)] = {
            "per_second": rate,
            "start_s": small - SIZES[0] / rate,
            "beside_loop": rate / loop,
            "beside_scan": rate / scan,
        }
    return {**figures, "by_parallelism": found, "loop_per_second": loop}


def page(result: dict[str, Any]) -> list[str]:
    """The result as Markdown."""
    sides = result["sides"]
    lines = [
        "# Backfill",
        "",
        f"A million flights (JSON of about 300 bytes) through the example's handler; medians of {result['runs']} runs.",
        "",
    ]
    lines += [
        "| Parallelism | Beside a Python loop | Beside a bare scan of Spark | Records/s | Start |",
        "|---|---|---|---|---|",
    ]
    for parallelism, each in result["by_parallelism"].items():
        ratios = f"{each['beside_loop']:.2f} | {each['beside_scan']:.2f}"
        lines.append(f"| {parallelism} | {ratios} | {each['per_second']:,.0f} | {each['start_s']:.0f} s |")
    lines += ["", "| Records | Parallelism | From apply to Succeeded | Driver | Executor |", "|---|---|---|---|---|"]
    for name, each in sides.items():
        size, _, parallelism = name.partition("/")
        if size.isdigit():
            memory = f"{each.get('driver', 0):.0f} MiB | {each.get('executor', 0):.0f} MiB"
            lines.append(f"| {int(size):,} | {parallelism} | {each['seconds']:.0f} s | {memory} |")
    session = sides["scan/1"]["session_s"]
    lines += [
        "",
        f"The loop: {result['loop_per_second']:,.0f} records/s in one process. A session of Spark by itself takes ",
    ]
    lines[-1] += f"{session:.1f} s. 20 million additions in a Python function take {result['additions_s']:.1f} s here."
    return lines


def _peers(image: str) -> list[dict[str, Any]]:
    source = (ROOT / "bench" / "backfill_peers.py").read_text()
    container = {
        "name": "peers",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.pause()"],
        "workingDir": "/tmp",
        "volumeMounts": [{"name": "bench", "mountPath": "/bench"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "bench", "configMap": {"name": PEERS}}],
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PEERS}, "data": {"backfill_peers.py": source}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": PEERS}, "spec": spec},
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark on a cluster of its own, which is removed at the end."""
    parser = argparse.ArgumentParser(prog="python -m bench.backfill", description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args(arguments)
    load, installation = Load(), Installation(name="bench")
    try:
        figures = derived(measured(make(installation), options.runs))
    finally:
        installation.down()
    write(recorded("backfill", figures, load), page(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
