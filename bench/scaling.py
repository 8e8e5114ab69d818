"""Scaling on a real cluster: one load curve on three groups at the same time.

The operator scales one of them, KEDA with an HPA the others: with its default lag threshold, and with one that fits the
handler.

Run `python -m bench.scaling`: the embedded cluster with Kafka, the operator and KEDA is made for it, and removed.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from bench.report import ROOT, additions, recorded, write
from bench.report import Load as MachineLoad
from bench.scaling_page import draw, page
from bench.simulate.curves import read_csv
from e2e.cluster import CommandFailed
from e2e.install import Installation
from e2e.local_cluster.waiting import pause
from e2e.scaling.scene import PARTITIONS, PER_RECORD_S, Load, Samples, ScalingScene

NAME: Final = "scaling"
SCALING: Final = {"minReplicas": 1, "maxReplicas": PARTITIONS}
"""Everything else is the default: catch up within 600 s, shrink after 300 s."""
BASE_RATE: Final = 18.0
CURVE: Final = ((1.0, 120.0), (6.0, 420.0), (1.0, 480.0), (3.0, 360.0))
"""Multiples of the rate, and seconds of each. The last one is noisy: a factor for each five seconds, from a file."""
NOISE: Final = ROOT / "examples" / "scaling" / "noise.csv"
NOISE_S: Final = 5.0
THRESHOLDS: Final = {"KEDA, lagThreshold 10": 10, "KEDA, lagThreshold 250": 250}
"""KEDA's default, and ten seconds of a worker's work."""
POLL_S: Final = 2.0


@dataclass(slots=True)
class Run:
    """One group under the curve."""

    title: str
    scene: ScalingScene
    load: Load
    pods: list[tuple[float, int]] = field(default_factory=list)
    generations: list[tuple[float, int]] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)

    def watch(self, stop: threading.Event) -> None:
        """Note the pods and the generation until `stop`."""
        while not stop.is_set():
            try:
                status = self.scene.status()
            except CommandFailed:
                status = {}
            if status:
                self.pods.append((time.time(), int(status.get("replicas", 0))))
                self.generations.append((time.time(), int(status.get("generation", -1))))
            stop.wait(POLL_S)

    def figures(self) -> dict[str, Any]:
        samples, ends = self.load.samples, [*self.begins[1:], float("inf")]
        parts = [
            self._part(begin, end, multiple) for begin, end, (multiple, _) in zip(self.begins, ends, CURVE, strict=True)
        ]
        known = samples.known(self.begins[0])
        return {
            "title": self.title,
            "parts": parts,
            "episodes": sum(part["episodes"] for part in parts),
            "lag_seconds": round(Samples(known).lag_seconds()),
            "pod_seconds": round(self._pod_seconds()),
            "most_pods": max(count for _, count in self.pods),
            "most_lag": max(each["lag"] for each in known),
            "series": self._series(),
        }

    def _part(self, begin: float, end: float, multiple: float) -> dict[str, Any]:
        """One stretch of the curve: when a rate begins, the lag is back once what waits is ten seconds of it."""
        samples = Samples(self.load.samples.known(begin, end))
        drained = samples.drained_at(begin, lag=10.0 * BASE_RATE * multiple)
        generations = [number for at, number in self.generations if begin <= at < end and number >= 0]
        counts = [count for at, count in self.pods if begin <= at < end]
        return {
            "multiple": multiple,
            "episodes": samples.episodes(),
            "generations": generations[-1] - generations[0] if generations else 0,
            "steps": sum(one != other for one, other in pairwise(counts)),
            "reversals": _reversals(counts),
            "drained_s": None if drained is None else round(drained - begin, 1),
            "last_pods": counts[-1],
        }

    def _pod_seconds(self) -> float:
        since = [(at, count) for at, count in self.pods if at >= self.begins[0]]
        return sum(count * (later - at) for (at, count), (later, _) in pairwise(since))

    def _series(self) -> dict[str, list[list[float]]]:
        begin = self.begins[0]
        lags = self.load.samples.known(begin)[::10]
        pods = [(at, count) for at, count in self.pods if at >= begin]
        # The last of each run of equal numbers, too: lines are drawn between points.
        turns = {0, len(pods) - 1} | {
            place for place, (one, other) in enumerate(pairwise(pods), start=1) if one[1] != other[1]
        }
        return {
            "lag": [[round(each["at"] - begin), each["lag"]] for each in lags],
            "pods": [[round(pods[place][0] - begin), pods[place][1]] for place in sorted(turns)],
        }


def _reversals(counts: Sequence[int]) -> int:
    signs = [later > earlier for earlier, later in pairwise(counts) if later != earlier]
    return sum(one != other for one, other in pairwise(signs))


def noise(seconds: float) -> list[tuple[float, float]]:
    """Factors of a rate, each with its seconds."""
    curve = read_csv(NOISE)
    return [(curve(NOISE_S * number), NOISE_S) for number in range(round(seconds / NOISE_S))]


def scaled_object(scene: ScalingScene, threshold: int) -> dict[str, Any]:
    """KEDA's object for a group, with its defaults."""
    trigger = {
        "bootstrapServers": "kafka.kafka.svc.cluster.local:9092",
        "consumerGroup": scene.name,
        "topic": scene.name,
        "lagThreshold": str(threshold),
        "offsetResetPolicy": "earliest",
    }
    target = {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "ConsumerGroup", "name": scene.name}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": scene.name},
        "spec": {
            "scaleTargetRef": target,
            "minReplicaCount": SCALING["minReplicas"],
            "maxReplicaCount": SCALING["maxReplicas"],
            "triggers": [{"type": "kafka", "metadata": trigger}],
        },
    }


def scenes(installation: Installation) -> Iterator[tuple[str, ScalingScene]]:
    """The three groups, each with one worker that has joined."""
    own = ScalingScene(installation, "own")
    own.make(scaling=SCALING)
    own.wait_members(1)
    yield "Consumer Fleet", own
    for number, (title, threshold) in enumerate(THRESHOLDS.items()):
        scene = ScalingScene(installation, f"keda-{number}")
        scene.make(scaling=None)
        scene.wait_members(1)
        scene.cluster.apply([scaled_object(scene, threshold)], namespace=scene.name)
        yield title, scene


def measure(installation: Installation, curve: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """All groups under the curve at the same time."""
    stop = threading.Event()
    with ExitStack() as stack:
        runs = [Run(title, scene, stack.enter_context(scene.load())) for title, scene in list(scenes(installation))]
        threads = [threading.Thread(target=run.watch, args=(stop,), daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        for multiple, seconds in curve:
            for run in runs:
                run.begins.append(run.load.rate(BASE_RATE * multiple))
            print(f"{BASE_RATE * multiple:g} records/s for {seconds:g} s", flush=True)
            noisy = (multiple, seconds) == tuple(curve[-1])
            for factor, length in noise(seconds) if noisy else [(1.0, seconds)]:
                for run in runs:
                    run.load.rate(BASE_RATE * multiple * factor)
                pause(length)
        for run in runs:
            run.load.rate(0.0)
        stop.set()
        for thread in threads:
            thread.join()
        return [run.figures() for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial", action="store_true", help="a short curve; nothing is recorded")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    options = parser.parse_args()
    installation = Installation(name=NAME)
    installation.up()
    installation.install_keda()
    load = MachineLoad()
    curve = [(multiple, seconds / 8) for multiple, seconds in CURVE] if options.trial else CURVE
    try:
        runs = measure(installation, curve)
    finally:
        if not options.keep:
            installation.down()
    figures: Mapping[str, Any] = {
        "per_record_s": PER_RECORD_S,
        "partitions": PARTITIONS,
        "base_rate": BASE_RATE,
        "curve": list(curve),
        "additions_s": round(additions(), 2),
        "runs": runs,
    }
    result = recorded(NAME, dict(figures), load, brokers="one broker, KEDA 2.19.0")
    print(json.dumps([{key: value for key, value in run.items() if key != "series"} for run in runs], indent=1))
    write(result, list(page(figures)), trial=options.trial)
    if not options.trial:
        draw(figures)


if __name__ == "__main__":
    main()
