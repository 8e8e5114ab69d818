"""The stage of the operator's benchmark: API server, brokers, stand-ins and objects."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.fleet_api import FleetApi
from bench.operator_process import OperatorProcess
from bench.report import Load, additions, recorded, write
from fleet_consumer.contract import naming
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from tests.apiserver import objects
from tests.apiserver.conftest import install_crds
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_topics import make_topics

NAMESPACES: Final = 10
GROUPS_PER_TOPIC: Final = 50
PARTITIONS: Final = 3
"""Partitions of a source, and so of each group's failed topic: five thousand groups have 15,000 on one small broker."""
HEAP: Final = ("-Xmx1024m",)
LAST_WORDS: Final = 1_000
"""Last characters of a broker's log, printed when it has ended."""
CREATE_AT_ONCE: Final = 8
BROKER: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.threads": "1",
}


@dataclass(frozen=True)
class Shape:
    """The groups of a stage.

    `partitions`: of each source, and so of each failed topic. `retries_every`: one in so many groups has retries.
    `replicas`: of the sources. `scaled`: all groups have `spec.scaling` with one worker, because there is one stand-in
    per group: decisions are computed in full, then limited to it.
    """

    size: int
    partitions: int = PARTITIONS
    retries_every: int = 3
    delays: tuple[str, ...] = ("5m",)
    retry_partitions: int = 1
    replicas: int = 1
    scaled: bool = False


@dataclass
class Watched:
    """Times at which groups reached each stage, by key (monotonic seconds), and their last state."""

    made: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    fleets: dict[str, float] = field(default_factory=dict)
    ready: dict[str, bool] = field(default_factory=dict)
    lag_known: dict[str, bool] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def take(self, body: JsonObject) -> None:
        metadata, status = body["metadata"], body.get("status") or {}
        key, now = f"{metadata['namespace']}/{metadata['name']}", time.monotonic()
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        self.made.setdefault(key, now)
        if conditions:
            self.first.setdefault(key, now)
        wanted = body["spec"].get("replicas", 1)
        if status.get("readyReplicas") == wanted == status.get("updatedReplicas"):
            self.fleets.setdefault(key, now)
        self.ready[key] = conditions.get("Ready", {}).get("status") == "True"
        self.lag_known[key] = conditions.get("LagKnown", {}).get("status") == "True"
        self.states[key] = status.get("state", "")
        if self.states[key] == "Unknown":
            self.unknown.add(key)

    def waits(self) -> list[float]:
        """Seconds from the creation of each group to its first status, both observed by the same watch."""
        return [at - self.made[key] for key, at in self.first.items()]


@dataclass
class Stage:
    """An API server, brokers, stand-ins and objects."""

    api: ApiServer
    kafka: KafkaBroker | KafkaCluster
    kube: FleetApi
    shape: Shape
    made: list[JsonObject] = field(default_factory=list)
    watched: Watched = field(default_factory=Watched)
    nodes: subprocess.Popen[str] | None = None

    @property
    def size(self) -> int:
        return self.shape.size

    @property
    def namespaces(self) -> list[str]:
        return [f"team-{number}" for number in range(min(NAMESPACES, max(1, self.size // 10)))]

    @property
    def topics(self) -> list[str]:
        return [f"events-{number}" for number in range(max(2, self.size // GROUPS_PER_TOPIC))]

    def alive(self) -> bool:
        """True while all servers and stand-ins run. Raises SystemExit if one has ended."""
        brokers = self.kafka.brokers.values() if isinstance(self.kafka, KafkaCluster) else [self.kafka]
        for broker in brokers:
            if not broker.running:
                raise SystemExit(f"a broker has ended: {broker.log.read_text(errors='replace')[-LAST_WORDS:]}")
        if self.nodes is not None and self.nodes.poll() is not None:
            raise SystemExit("the stand-in for nodes has ended")
        return True

    async def prepare(self) -> None:
        """Create the source topics, and namespaces with a KafkaCluster, a handler and a RetryPolicy each."""
        for name in self.namespaces:
            self.api.kubectl("create", "namespace", name)
        for name in self.namespaces:
            for body in (
                objects.handler_source(name),
                objects.cluster(name, self.kafka.bootstrap.split(",")[0]),
                objects.policy(name, *self.shape.delays),
            ):
                await self.kube.create(body)
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        replicas = self.shape.replicas
        make_topics(admin, [NewTopic(topic, self.shape.partitions, replicas) for topic in self.topics])

    def groups(self) -> Iterator[JsonObject]:
        for number in range(self.size):
            extra: dict[str, Any] = {"topics": [self.topics[number % len(self.topics)]], "replicas": 1}
            if number % self.shape.retries_every == 0:
                topics = {"partitions": self.shape.retry_partitions}
                extra["retry"] = {"policyRef": {"name": "standard"}, "topics": topics}
            if self.shape.scaled:
                extra["scaling"] = {"minReplicas": 1, "maxReplicas": 1}
            namespace = self.namespaces[number % len(self.namespaces)]
            yield objects.group(namespace, name=f"g{number}", group_id=f"{namespace}.g{number}", **extra)

    async def create(self) -> float:
        """Create all groups; returns the seconds taken."""
        began = time.monotonic()
        self.made = await self.kube.create_all(list(self.groups()), CREATE_AT_ONCE)
        return time.monotonic() - began

    async def follow(self) -> None:
        """Record the progress of the groups until cancelled."""
        async for change, body in self.kube.follow(CONSUMER_GROUP):
            if change != "DELETED":
                self.watched.take(body)

    def members(self) -> str:
        """Input of `stand_in_members`."""
        lines = []
        for body in self.made:
            metadata, spec = body["metadata"], body["spec"]
            instance = naming.instance_id(metadata["namespace"], metadata["name"], metadata["uid"], 0)
            member = {"group": spec["groupId"], "instance": instance, "topic": spec["topics"][0]}
            lines.append(json.dumps(member | {"partitions": self.shape.partitions}))
        return "\n".join([*lines, "end", ""])


@contextmanager
def stand_in(module: str, kubeconfig: Path, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a stand-in as a separate process."""
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


@asynccontextmanager
async def staged(kafka: KafkaBroker | KafkaCluster, shape: Shape) -> AsyncIterator[tuple[Stage, OperatorProcess]]:
    """A stage with a working operator, without groups yet."""
    async with AsyncExitStack() as stack:
        api = stack.enter_context(ApiServer())
        install_crds(api)
        stack.enter_context(kafka)
        os.environ["KUBECONFIG"] = str(api.kubeconfig)
        kube = await FleetApi.connect()
        stack.push_async_callback(kube.close)
        stage = Stage(api, kafka, kube, shape)
        await stage.prepare()
        following = asyncio.create_task(stage.follow())
        stack.callback(following.cancel)
        stage.nodes = stack.enter_context(stand_in("bench.stand_in_nodes", api.kubeconfig))
        operator = stack.enter_context(OperatorProcess(api.kubeconfig))
        operator.wait_working()
        yield stage, operator


@asynccontextmanager
async def joined(stage: Stage) -> AsyncIterator[subprocess.Popen[str]]:
    """One joined member per group; commits and records start on SIGUSR1 and stop on SIGUSR2."""
    bootstrap = ("--bootstrap", stage.kafka.bootstrap)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with stand_in("bench.stand_in_members", stage.api.kubeconfig, *bootstrap, **pipes) as members:
        assert members.stdin is not None
        assert members.stdout is not None
        members.stdin.write(stage.members())
        members.stdin.flush()
        said = await asyncio.to_thread(members.stdout.readline)
        assert said, "the members have ended, see above"
        print("  members joined", file=sys.stderr, flush=True)
        yield members


def record_figures(
    name: str, measure: Callable[[int], Coroutine[Any, Any, dict[str, Any]]], description: str, *, brokers: str
) -> None:
    """Command line of a benchmark that measures one number of groups."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    parser.add_argument("--size", type=int, default=1_000, help="number of groups (default: %(default)s)")
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    options = parser.parse_args()
    load = Load()
    figures = asyncio.run(measure(options.size)) | {"additions_s": round(additions(), 3)}
    words = [line for line in description.partition("\n\n")[2].splitlines() if line]
    lines = [f"| {key} | {value:,} |" for key, value in figures.items()]
    page = [f"# {description.partition(':')[0]}", "", *words, "", "| figure | |", "|---|---:|", *lines]
    write(recorded(name, figures, load, brokers=brokers), page, trial=options.trial)
