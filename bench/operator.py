"""The operator beside many ConsumerGroups: `python -m bench --only operator`.

A real API server and a real broker; kubelets and the StatefulSet controller are stand-ins, and so are the members, who
speak the group protocol. A third of the groups has retries. For each size: from creation to the first statuses and to
all children, then with commits that move, then with nothing that moves, then a restart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.fleet_api import FleetApi
from bench.operator_process import OperatorProcess, quantile, total, writes
from bench.report import Load, recorded, write
from fleet_consumer.contract import naming
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from tests.apiserver import objects
from tests.apiserver.conftest import install_crds
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.kafka_topics import make_topics

SIZES: Final = (100, 1_000, 5_000)
NAMESPACES: Final = 10
GROUPS_PER_TOPIC: Final = 50
PARTITIONS: Final = 12
RETRIES_EVERY: Final = 3
"""One group in so many has retries."""
DELAYS: Final = ("5m",)
CREATE_AT_ONCE: Final = 8
FLEETS_S: Final = 1_800.0
WINDOW_S: Final = 60.0
SETTLE_S: Final = 300.0
QUIET_S: Final = 10.0
ADDITIONS: Final = 20_000_000
BROKER: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.threads": "1",
}


@dataclass
class Watched:
    """Times at which the groups reached what is waited for, by key; seconds of the monotonic clock."""

    first: dict[str, float] = field(default_factory=dict)
    fleets: dict[str, float] = field(default_factory=dict)
    ready: dict[str, bool] = field(default_factory=dict)
    events: int = 0

    def take(self, body: JsonObject) -> None:
        metadata, status = body["metadata"], body.get("status") or {}
        key, now = f"{metadata['namespace']}/{metadata['name']}", time.monotonic()
        self.events += 1
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        if conditions:
            self.first.setdefault(key, now)
        wanted = body["spec"].get("replicas", 1)
        if status.get("readyReplicas") == wanted == status.get("updatedReplicas"):
            self.fleets.setdefault(key, now)
        self.ready[key] = conditions.get("Ready", {}).get("status") == "True"


def additions() -> float:
    """Seconds of 20 million additions in a Python function, to compare machines by."""

    def add() -> int:
        value = 0
        for number in range(ADDITIONS):
            value += number
        return value

    began = time.perf_counter()
    add()
    return time.perf_counter() - began


@dataclass
class Stage:
    """An API server, a broker, stand-ins, and the objects of one size."""

    api: ApiServer
    kafka: KafkaBroker
    kube: FleetApi
    size: int
    made: list[JsonObject] = field(default_factory=list)
    watched: Watched = field(default_factory=Watched)
    nodes: subprocess.Popen[str] | None = None

    @property
    def namespaces(self) -> list[str]:
        return [f"team-{number}" for number in range(min(NAMESPACES, max(1, self.size // 10)))]

    @property
    def topics(self) -> list[str]:
        return [f"events-{number}" for number in range(max(2, self.size // GROUPS_PER_TOPIC))]

    async def prepare(self) -> None:
        """Namespaces with a KafkaCluster, a handler and a RetryPolicy each, and the source topics."""
        for name in self.namespaces:
            self.api.kubectl("create", "namespace", name)
        for name in self.namespaces:
            for body in (
                objects.handler_source(name),
                objects.cluster(name, self.kafka.bootstrap),
                objects.policy(name, *DELAYS),
            ):
                await self.kube.create(body)
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        make_topics(admin, [NewTopic(topic, PARTITIONS, 1) for topic in self.topics])

    def groups(self) -> Iterator[JsonObject]:
        for number in range(self.size):
            extra: dict[str, Any] = {"topics": [self.topics[number % len(self.topics)]], "replicas": 1}
            if number % RETRIES_EVERY == 0:
                extra["retry"] = {"policyRef": {"name": "standard"}, "topics": {"partitions": 1}}
            namespace = self.namespaces[number % len(self.namespaces)]
            yield objects.group(namespace, name=f"g{number}", **extra)

    async def create(self) -> float:
        """Create all groups; returns the seconds that it took."""
        began = time.monotonic()
        self.made = await self.kube.create_all(list(self.groups()), CREATE_AT_ONCE)
        return time.monotonic() - began

    async def follow(self) -> None:
        """Note what becomes of the groups, until cancelled."""
        async for change, body in self.kube.watch(CONSUMER_GROUP):
            if change != "DELETED":
                self.watched.take(body)

    def members(self) -> str:
        """The input of `stand_in_members`."""
        lines = []
        for body in self.made:
            metadata, spec = body["metadata"], body["spec"]
            instance = naming.instance_id(metadata["namespace"], metadata["name"], metadata["uid"], 0)
            member = {"group": spec["groupId"], "instance": instance, "topic": spec["topics"][0]}
            lines.append(json.dumps(member | {"partitions": PARTITIONS}))
        return "\n".join([*lines, "end", ""])


async def until(done: Callable[[], bool], *, what: Callable[[], str], timeout_s: float) -> float:
    """Wait for a condition, saying from time to time how far it is; returns the seconds."""
    began = said = time.monotonic()
    while not done():
        await asyncio.sleep(0.1)
        now = time.monotonic()
        if now - said > 15.0:
            said = now
            print(f"    {now - began:.0f} s: {what()}", file=sys.stderr, flush=True)
        if now - began > timeout_s:
            raise SystemExit(f"not within {timeout_s} s: {what()}")
    return time.monotonic() - began


async def window(operator: OperatorProcess, seconds: float) -> dict[str, float]:
    """Use of the operator, and its writes, over some time."""
    series, before = operator.metrics(), operator.sample()
    await asyncio.sleep(seconds)
    after, now = operator.metrics(), operator.sample()
    took = now.at - before.at
    requests = total(after, "api_requests") - total(series, "api_requests")
    figures = {
        "cores": (now.cpu_s - before.cpu_s) / took,
        "rss_mib": now.rss_mib,
        "requests_per_s": requests / took,
        "writes": writes(after) - writes(series),
        "writes_per_s": (writes(after) - writes(series)) / took,
        "status_writes_per_s": (total(after, "status_writes") - total(series, "status_writes")) / took,
        "reconciles_per_s": (total(after, "reconciles") - total(series, "reconciles")) / took,
        "decision_age_p99_s": quantile(series, after, "decision_age_seconds", 0.99),
    }
    return {name: round(value, 3) for name, value in figures.items()}


@contextmanager
def process(module: str, kubeconfig: Path, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A stand-in in a process of its own."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        text=True,
        **options,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(10)


async def run(size: int, *, only_fleets: bool = False) -> dict[str, Any]:
    """All phases of one size."""
    figures: dict[str, Any] = {"groups": size}
    with ExitStack() as stack:
        api = stack.enter_context(ApiServer())
        install_crds(api)
        kafka = stack.enter_context(KafkaBroker(properties=BROKER))
        os.environ["KUBECONFIG"] = str(api.kubeconfig)
        kube = await FleetApi.connect()
        stage = Stage(api, kafka, kube, size)
        await stage.prepare()
        following = asyncio.create_task(stage.follow())
        stage.nodes = nodes = stack.enter_context(process("bench.stand_in_nodes", api.kubeconfig))
        operator = stack.enter_context(OperatorProcess(api.kubeconfig))
        operator.wait_working()
        figures |= await fleets(stage, operator)
        if only_fleets:
            return figures
        members = stack.enter_context(
            process(
                "bench.stand_in_members",
                api.kubeconfig,
                *("--bootstrap", kafka.bootstrap),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        assert members.stdin is not None
        assert members.stdout is not None
        members.stdin.write(stage.members())
        members.stdin.flush()
        await asyncio.to_thread(members.stdout.readline)
        print("  members joined", file=sys.stderr, flush=True)
        figures["settled_s"] = round(await settle(stage, operator), 1)
        members.send_signal(signal.SIGUSR1)
        await asyncio.sleep(30.0)
        figures["moving"] = await window(operator, WINDOW_S)
        print(f"  moving: {figures['moving']}", file=sys.stderr, flush=True)
        members.send_signal(signal.SIGUSR2)
        await settle(stage, operator)
        await asyncio.sleep(60.0)
        figures["idle"] = await window(operator, WINDOW_S)
        print(f"  idle: {figures['idle']}", file=sys.stderr, flush=True)
        figures["peak_mib"] = round(operator.sample().peak_mib)
        operator.stop()
        again = stack.enter_context(OperatorProcess(api.kubeconfig))
        figures["restart"] = await restart(stage, again)
        print(f"  restart: {figures['restart']}", file=sys.stderr, flush=True)
        following.cancel()
        assert nodes.poll() is None, "the stand-in for nodes died"
        await kube.close()
    return figures


async def fleets(stage: Stage, operator: OperatorProcess) -> dict[str, Any]:
    """From creation to the first statuses, and to all children."""
    size, watched = stage.size, stage.watched
    began, before, series = time.monotonic(), operator.sample(), operator.metrics()
    created = await stage.create()
    print(f"  {size} created in {created:.1f} s", file=sys.stderr, flush=True)
    await until(
        lambda: len(watched.first) >= size, what=lambda: f"{len(watched.first)} have a status", timeout_s=FLEETS_S
    )
    first = max(watched.first.values()) - began
    print(f"  first statuses: {first:.1f} s, {operator.sample().cpu_s - before.cpu_s:.1f} s of CPU", file=sys.stderr)
    first_cpu = operator.sample().cpu_s - before.cpu_s
    await until(
        lambda: len(watched.fleets) >= size or _ended(stage.nodes),
        what=lambda: f"{len(watched.fleets)} have fleets",
        timeout_s=FLEETS_S,
    )
    now, after = operator.sample(), operator.metrics()
    found = {
        "created_s": created,
        "first_status_s": first,
        "first_status_cpu_s": first_cpu,
        "children_s": max(watched.fleets.values()) - began,
        "children_cpu_s": now.cpu_s - before.cpu_s,
        "children_rss_mib": now.rss_mib,
        "children_peak_mib": now.peak_mib,
        "children_requests": total(after, "api_requests") - total(series, "api_requests"),
        "children_writes": writes(after) - writes(series),
        "children_status_writes": total(after, "status_writes") - total(series, "status_writes"),
        "children_reconciles": total(after, "reconciles") - total(series, "reconciles"),
    }
    print_requests(series, after, size)
    print(f"  fleets: {found}", file=sys.stderr, flush=True)
    return {name: round(value, 2) for name, value in found.items()}


def _ended(process: subprocess.Popen[str] | None) -> bool:
    if process is not None and process.poll() is not None:
        raise SystemExit("the stand-in for nodes has ended")
    return False


def print_requests(before: Mapping[str, float], after: Mapping[str, float], size: int) -> None:
    """Requests for each group, by verb, kind and answer."""
    requests = {
        key.partition("{")[2].rstrip("}"): round((value - before.get(key, 0.0)) / size, 2)
        for key, value in after.items()
        if key.startswith("consumer_fleet_operator_api_requests_total{")
    }
    print("\n".join(f"    {value} {key}" for key, value in sorted(requests.items()) if value), file=sys.stderr)


async def settle(stage: Stage, operator: OperatorProcess) -> float:
    """Wait until all groups are Ready and the operator has written nothing for a while; the seconds until the last."""
    began = time.monotonic()
    last, since = -1.0, began
    while time.monotonic() - began < SETTLE_S:
        await asyncio.sleep(1.0)
        count = writes(operator.metrics())
        if count != last:
            last, since = count, time.monotonic()
        elif time.monotonic() - since > QUIET_S and sum(stage.watched.ready.values()) == stage.size:
            return since - began
    ready = sum(stage.watched.ready.values())
    print(f"  not settled: {ready} of {stage.size} are Ready, last write {time.monotonic() - since:.0f} s ago")
    return time.monotonic() - began


async def restart(stage: Stage, operator: OperatorProcess) -> dict[str, float]:
    """A new process beside what exists: until it works, and what it asks and writes until it is at rest."""
    ready = operator.wait_working()
    settled = await settle(stage, operator)
    sample, series = operator.sample(), operator.metrics()
    print_requests({}, series, stage.size)
    figures = {
        "ready_s": ready,
        "settled_s": settled,
        "cpu_s": sample.cpu_s,
        "rss_mib": sample.rss_mib,
        "peak_mib": sample.peak_mib,
        "requests": total(series, "api_requests"),
        "writes": writes(series),
    }
    return {name: round(value, 2) for name, value in figures.items()}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.operator", description=__doc__)
    parser.add_argument("--size", type=int, action="append", help=f"numbers of groups; default: {SIZES}")
    parser.add_argument("--trial", action="store_true", help="record nothing")
    parser.add_argument("--only-fleets", action="store_true", help="end once all fleets exist")
    options = parser.parse_args(arguments)
    load = Load()
    results = []
    for size in options.size or SIZES:
        print(f"{size} groups", file=sys.stderr, flush=True)
        results.append(asyncio.run(run(size, only_fleets=options.only_fleets)))
    figures = {"additions_s": round(additions(), 3), "sizes": results}
    write(recorded("operator", figures, load), [json.dumps(figures, indent=1)], trial=options.trial)


if __name__ == "__main__":
    main(sys.argv[1:])
