"""Loads that more workers do not help, on a real cluster: a hot or stuck partition, a slow database, an outage.

Run `python -m bench.scaling_cases`. Decisions and reasons from the status are compared with a simulated HPA on the
lag.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from bench.report import Load as MachineLoad
from bench.report import additions, recorded, write
from bench.simulate.keda import KedaRule
from bench.simulate.rules import FleetRule
from bench.simulate.run import Figures, simulate
from bench.simulate.world import World, constant, even_shares, hot_shares
from e2e.cluster import CommandFailed, conditions
from e2e.install import Installation
from e2e.local_cluster.waiting import pause
from e2e.scaling.scene import Load, ScalingScene
from fleet_operator.api.v1alpha1.consumergroup import Scaling

NAME: Final = "scaling_cases"
PARTITIONS: Final = 12
CAPACITY: Final = 25.0
"""Records per second of one worker whose handler takes 40 ms."""
SECONDS: Final = 600.0
OUTAGE_S: Final = 120.0
THRESHOLD: Final = 250
POLL_S: Final = 2.0
DATABASE: Final = """
import http.server
import time


class Database(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.02)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.HTTPServer(("", 8080), Database).serve_forever()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A group under a load, on the cluster and in the simulator."""

    name: str
    title: str
    rate: float
    start: int
    world: World
    per_record_s: float = 0.04
    shares: tuple[float, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    handler: Mapping[str, Any] = field(default_factory=dict)
    consumer: Mapping[str, Any] = field(default_factory=dict)


def cases() -> Iterator[Case]:
    even = even_shares(PARTITIONS)
    hot = hot_shares(PARTITIONS, 0.5)
    yield Case(
        name="hot",
        title="hot partition: half of the records are in one",
        rate=60.0,
        start=3,
        shares=hot,
        world=World(arrivals=constant(60.0), capacity=constant(CAPACITY), shares=hot),
    )
    yield Case(
        name="stuck",
        title="stuck partition: one record takes half an hour",
        rate=60.0,
        start=3,
        env={"STUCK": "3:200"},
        handler={"concurrency": 4, "timeoutSeconds": 3600},
        consumer={"maxPollIntervalSeconds": 3600},
        per_record_s=0.16,
        world=World(arrivals=constant(60.0), capacity=constant(CAPACITY), shares=even, stuck={3: 40.0}),
    )
    yield Case(
        name="database",
        title="slow database: all workers together get 50 answers a second",
        rate=100.0,
        start=2,
        env={"DATABASE": "http://answers:8080/"},
        per_record_s=0.02,
        world=World(arrivals=constant(100.0), capacity=constant(CAPACITY), shares=even, downstream=constant(50.0)),
    )


@dataclass(slots=True)
class Watched:
    """The status at each change: second, target, workers, limit, reason."""

    rows: list[tuple[float, int, int, str, str]] = field(default_factory=list)
    known: list[tuple[float, str]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    def note(self, at: float, status: dict[str, Any]) -> None:
        self.last = status
        scaling = status.get("scaling") or {}
        row = (int(status.get("targetReplicas", 0)), int(status.get("replicas", 0)), str(status.get("limit", "")))
        if not self.rows or self.rows[-1][1:4] != row:
            self.rows.append((round(at, 1), *row, str(scaling.get("reason", ""))))
        lag_known = conditions({"status": status}).get("LagKnown", {})
        word = f"{lag_known.get('status')} {lag_known.get('reason')}"
        if not self.known or self.known[-1][1] != word:
            self.known.append((round(at, 1), word))


def watch(scene: ScalingScene, into: Watched, begin: float, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            status = scene.status()
        except CommandFailed:
            status = {}
        if status:
            into.note(time.time() - begin, status)
        stop.wait(POLL_S)


def naive(case: Case, seconds: float) -> Figures:
    """The simulated lag rule and our rule, for the page."""
    rule = KedaRule(THRESHOLD, 1, PARTITIONS)
    return simulate(rule, case.world, seconds=seconds, start=case.start, acceptable_s=60.0)


def simulated(case: Case, seconds: float) -> Figures:
    return simulate(FleetRule(Scaling()), case.world, seconds=seconds, start=case.start, acceptable_s=60.0)


def make(installation: Installation, case: Case) -> ScalingScene:
    scene = ScalingScene(installation, case.name, partitions=PARTITIONS)
    scene.make(
        scaling={},
        per_record_s=case.per_record_s,
        env=case.env,
        handler=case.handler,
        consumer={"commitIntervalSeconds": 2, "maxPollRecords": 50, **case.consumer},
        replicas=case.start,
        rollout={"drainSeconds": 5},  # a sleeping handler would delay the drain
    )
    if "DATABASE" in case.env:
        scene.cluster.apply(database(installation.consumer_image), namespace=scene.name)
    scene.wait_members(case.start)
    return scene


def database(image: str) -> list[dict[str, Any]]:
    """A pod that answers one request at a time, within 20 ms."""
    labels = {"app": "answers"}
    container = {"name": "answers", "image": image, "imagePullPolicy": "IfNotPresent"}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "answers", "labels": labels}}
        | {"spec": {"containers": [{**container, "command": ["python", "-c", DATABASE]}]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "answers"}}
        | {"spec": {"selector": labels, "ports": [{"port": 8080}]}},
    ]


def measure(installation: Installation, seconds: float) -> list[dict[str, Any]]:
    """Run the cases that need only a load, at the same time."""
    found = []
    with ExitStack() as stack:
        running: list[tuple[Case, Watched, Load, ScalingScene]] = []
        stop = threading.Event()
        threads = []
        made = [(case, make(installation, case)) for case in cases()]
        for case, scene in made:
            load = stack.enter_context(scene.load(shares=case.shares))
            watched = Watched()
            load.rate(case.rate)
            thread = threading.Thread(target=watch, args=(scene, watched, time.time(), stop), daemon=True)
            thread.start()
            threads.append(thread)
            running.append((case, watched, load, scene))
        pause(seconds)
        stop.set()
        for thread in threads:
            thread.join()
        for case, watched, load, scene in running:
            found.append(outcome(case, watched, load, seconds))
            scene.remove()
    return found


def outcome(case: Case, watched: Watched, load: Load, seconds: float) -> dict[str, Any]:
    status, lag_rule, own = watched.last, naive(case, seconds), simulated(case, seconds)
    found = conditions({"status": status})
    return {
        "name": case.name,
        "title": case.title,
        "rows": watched.rows,
        "scaling": status.get("scaling"),
        "limit": status.get("limit"),
        "limited": {key: found["ScalingLimited"][key] for key in ("status", "reason", "message")},
        "lag": load.lag(),
        "most_workers": max(row[2] for row in watched.rows),
        "naive": figures(lag_rule),
        "simulated": figures(own),
    }


def figures(of: Figures) -> dict[str, Any]:
    return {
        "steps": [[step.at, step.before, step.after] for step in of.steps],
        "most_workers": of.most_pods,
        "pod_seconds": round(of.pod_seconds),
        "last_lag": round(of.last_lag),
    }


def measure_outage(installation: Installation) -> dict[str, Any]:
    """Four workers under load; the broker is frozen for two minutes, and producers keep their unsent records."""
    case = Case(
        name="outage",
        title="broker gone for two minutes",
        rate=60.0,
        start=4,
        world=World(
            arrivals=constant(60.0),
            capacity=constant(CAPACITY),
            shares=even_shares(PARTITIONS),
            unseen=((120.0, 120.0 + OUTAGE_S),),
        ),
    )
    scene, watched, stop = make(installation, case), Watched(), threading.Event()
    with scene.load() as load:
        load.rate(case.rate)
        begin = time.time()
        thread = threading.Thread(target=watch, args=(scene, watched, begin, stop), daemon=True)
        thread.start()
        pause(120.0)
        before = dict(watched.last)
        with installation.paused_container(namespace="kafka", pod="kafka-0"):
            gone = time.time() - begin
            pause(OUTAGE_S)
            during = dict(watched.last)
            back = time.time() - begin
        pause(300.0)
        stop.set()
        thread.join()
        drained = load.samples.drained_at(begin + back, lag=10 * case.rate)
    scene.remove()
    targets = [row[1] for row in watched.rows]
    return {
        "title": case.title,
        "rows": watched.rows,
        "known": watched.known,
        "gone": round(gone, 1),
        "back": round(back, 1),
        "before": before.get("scaling"),
        "during": {
            key: during.get(key) for key in ("scaling", "limit", "lagApproximate", "observedAt", "targetReplicas")
        },
        "least_target": min(targets),
        "most_target": max(targets),
        "drained_s": None if drained is None else round(drained - begin - back, 1),
        "naive": figures(naive(case, 540.0)),
    }


def page(result: Mapping[str, Any]) -> Iterator[str]:
    yield "# Loads that more workers do not help"
    yield ""
    yield f"Groups of {PARTITIONS} partitions on a real cluster with `spec.scaling: {{}}`, for {result['seconds']:g} s."
    yield f"The lag rule is the simulator's: an HPA on KEDA's metric with lagThreshold {THRESHOLD}, on a model with the"
    yield f"same load. 20 million additions in a Python function take {result['additions_s']:.2f} s on this machine."
    yield ""
    yield "| | limit | most workers | lag rule: most workers | pod-seconds, simulated: ours | lag rule |"
    yield "|---|---|---:|---:|---:|---:|"
    for each in result["cases"]:
        yield (
            f"| {each['title']} | {each['limit']} | {each['most_workers']} | {each['naive']['most_workers']} | "
            f"{each['simulated']['pod_seconds']:,} | {each['naive']['pod_seconds']:,} |"
        )
    for each in result["cases"]:
        yield ""
        yield f"## {each['title']}"
        yield ""
        yield f"ScalingLimited {each['limited']['status']}, {each['limited']['reason']}: {each['limited']['message']}."
        yield ""
        yield from _rows(each["rows"])
    outage = result["outage"]
    yield ""
    yield f"## {outage['title']}"
    yield ""
    targets = f"between {outage['least_target']} and {outage['most_target']}"
    drained = "not within the run" if outage["drained_s"] is None else f"{outage['drained_s']:.0f} s"
    yield f"Frozen at {outage['gone']:.0f} s, back at {outage['back']:.0f} s. Targets are {targets} all the time; the"
    most = outage["naive"]["most_workers"]
    yield f"lag is back to ten seconds of arrivals after {drained}. The lag rule goes to {most} workers in the model."
    yield ""
    known = "; ".join(f"{at:.0f} s: {word}" for at, word in outage["known"])
    yield f"LagKnown: {known}. The entry in the status while it was False: `{outage['during']['scaling']}`."
    yield ""
    yield from _rows(outage["rows"])


def _rows(rows: list[tuple[float, int, int, str, str]]) -> Iterator[str]:
    yield "| second | target | workers | limit | reason |"
    yield "|---:|---:|---:|---|---|"
    for at, target, workers, limit, reason in rows:
        yield f"| {at:.0f} | {target} | {workers} | {limit} | {reason} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial", action="store_true", help="run for a minute and a half and record nothing")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    options = parser.parse_args()
    installation = Installation(name="scaling-cases")
    installation.up()
    load, seconds = MachineLoad(), 90.0 if options.trial else SECONDS
    try:
        found = measure(installation, seconds)
        outage = measure_outage(installation)
    finally:
        if not options.keep:
            installation.down()
    result = {"seconds": seconds, "additions_s": round(additions(), 2), "cases": found, "outage": outage}
    whole = recorded(NAME, result, load)
    write(whole, list(page(result)), trial=options.trial)


if __name__ == "__main__":
    main()
