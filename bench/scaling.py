"""Scaling on a real cluster: the operator and KEDA size the same workers under the same load, one after the other.

`python -m bench.scaling` creates the embedded cluster with Kafka, the operator and KEDA, and removes it. A case takes
about eight minutes.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from bench.report import Load as MachineLoad
from bench.report import additions, recorded, write
from bench.scaling_figures import Seen, figures_of
from bench.scaling_loads import CASES, Case
from bench.scaling_page import OWN, PEER, draw, page
from e2e.cluster import PATIENCE_S, CommandFailed, eventually
from e2e.install import Installation
from e2e.local_cluster.waiting import pause
from e2e.scaling.scene import Load, ScalingScene

NAME: Final = "scaling"
SIDES: Final = {OWN: "own", PEER: "keda"}
"""Both sides, with the suffix of their namespaces."""
POLL_S: Final = 1.0


@dataclass(slots=True)
class Watch:
    """The status of a group over time, until `stop`."""

    scene: ScalingScene
    pods: list[tuple[float, int]] = field(default_factory=list)
    generations: list[tuple[float, int]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        shown = ""
        while not self.stop.is_set():
            try:
                status = self.scene.status()
            except CommandFailed:
                status = {}
            if status:
                self.pods.append((time.time(), int(status.get("replicas", 0))))
                self.generations.append((time.time(), int(status.get("generation", -1))))
                scaling = status.get("scaling") or {}
                line = f"{status.get('targetReplicas')} workers, {status.get('limit')}: {scaling.get('reason', '')}"
                if line != shown:
                    print(f"{time.time():.0f} {self.scene.name}: {line}", flush=True)
                shown = line
            self.stop.wait(POLL_S)


def make(installation: Installation, case: Case, side: str) -> ScalingScene:
    """Create the group with its first workers and its autoscaler."""
    scene = ScalingScene(installation, f"{case.name}-{SIDES[side]}", partitions=case.partitions)
    scene.make(
        scaling=case.scaling() if side == OWN else None,
        per_record_s=case.per_record_s,
        env={"OUTPUT": scene.output},
        replicas=case.start,
        rollout={"drainSeconds": 5},  # a sleeping handler would delay the drain
    )
    scene.wait_members(case.start)
    if side == PEER:
        scene.cluster.apply([case.scaled_object(scene.name)], namespace=scene.name)
        scene.kubectl("wait", "--for=condition=Ready", f"scaledobject/{scene.name}", "--timeout=120s")
    return scene


def measure(installation: Installation, case: Case, side: str) -> dict[str, Any]:
    """Measure one side under the load curve."""
    scene = make(installation, case, side)
    watch = Watch(scene)
    with scene.load(shares=case.shares) as load:
        begins, ended = put_under_load(load, watch, case)
        begun, stepped = begins
        seen = Seen(
            samples=load.samples,
            pods=watch.pods,
            generations=watch.generations,
            begun=begun,
            stepped=stepped,
            ended=ended,
        )
    found = figures_of(seen, case)
    scene.remove()
    # The next side runs alone.
    eventually(lambda: not scene.cluster.list("pods", namespace=scene.name), timeout_s=PATIENCE_S, what="its pods' end")
    print(json.dumps({key: value for key, value in found.items() if key != "series"}), flush=True)
    return found


def put_under_load(load: Load, watch: Watch, case: Case) -> tuple[list[float], float]:
    """Play the curve; returns the start times of its rates, and the end."""
    thread = threading.Thread(target=watch.run, name="watch", daemon=True)
    thread.start()
    begins = []
    for rate, seconds in case.stretches:
        print(f"{watch.scene.name}: {rate:g} records/s for {seconds:g} s", flush=True)
        load.rate(rate)
        begins.append(time.time())
        pause(seconds)
    ended = time.time()
    load.rate(0.0)
    watch.stop.set()
    thread.join()
    return begins, ended


def described(case: Case, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": case.name,
        "title": case.title,
        "stretches": case.stretches,
        "partitions": case.partitions,
        "per_record_s": case.per_record_s,
        "busy_workers": case.busy_workers,
        "threshold": case.threshold,
        "sides": sides,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="run only this case and record nothing")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    options = parser.parse_args()
    cases = [CASES[options.case]] if options.case else list(CASES.values())
    installation = Installation(name=NAME)
    try:
        installation.up()
        installation.install_keda()
        load = MachineLoad()
        found = [described(case, {side: measure(installation, case, side) for side in SIDES}) for case in cases]
    finally:
        if not options.keep:
            installation.down()
    figures = {"additions_s": round(additions(), 2), "cases": found}
    result = recorded(NAME, figures, load, brokers="one broker, KEDA 2.19.0")
    write(result, list(page(figures)), trial=bool(options.case))
    if not options.case:
        draw(figures)


if __name__ == "__main__":
    main()
