"""A scaled group on a cluster, under a load that needs a known number of workers.

The handler sleeps, so that a worker handles a fixed number of records a second without processor time.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from e2e.cluster import PATIENCE_S, Cluster, conditions, eventually
from e2e.demo.fleet import BOOTSTRAP, TOOLS, FlightFleet, handler_config_map, owned_partitions, tools_pod
from e2e.install import Installation
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_pod import host_bootstrap

INSIDE: Final = Path(__file__).parent / "inside.py"
DEMO_INSIDE: Final = Path(__file__).parents[1] / "demo" / "inside.py"
PARTITIONS: Final = 12
PER_RECORD_S: Final = 0.04
"""The handler's time for a record: a worker handles less than 25 records a second."""
SKEWED: Final = tuple({0: 0.28, 4: 0.2, 8: 0.2}.get(number, 0.32 / 33) for number in range(36))
"""Shares of 36 partitions in a load. Three busy ones have two thirds of it; if partitions are assigned in turn, one
worker of four owns all three."""
COOPERATIVE: Final = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
EPISODE_S: Final = 10.0
"""Periods without Stable that are closer to each other count as one rebalance."""
HANDLER: Final = """
import json
import os
import socket
import time
import urllib.request

from fleet_consumer import Produce

WORKER = socket.gethostname()

SECONDS = float(os.environ["PER_RECORD_S"])
OUTPUT = os.environ.get("OUTPUT")


def handle(record):
    begun, delivery = time.time(), record.delivery
    if os.environ.get("FAILS_FIRST") == str(record.partition) and record.attempt == 0:
        raise ValueError("records of this partition fail the first time")
    if os.environ.get("STUCK") == f"{record.partition}:{record.offset}":
        time.sleep(1800)
    if os.environ.get("DATABASE"):
        urllib.request.urlopen(os.environ["DATABASE"], timeout=60).close()
    time.sleep(SECONDS)
    if OUTPUT:
        seen = {"partition": record.partition, "at": begun, "attempt": record.attempt, "appended": delivery.timestamp}
        seen["worker"] = WORKER
        return Produce(OUTPUT, json.dumps(seen))
"""
RETRY_DELAY_S: Final = 180.0
"""Longer than a fleet needs to fall asleep: 90 seconds without a record, and the minute after that."""
POLICY: Final = {
    "apiVersion": "consumerfleet.io/v1alpha1",
    "kind": "RetryPolicy",
    "metadata": {"name": "once"},
    "spec": {"sequence": [f"{RETRY_DELAY_S:.0f}s"], "budget": {"action": "None"}},
}


@dataclass(slots=True)
class Samples:
    """The witness's lines: observations of each second, and records that handlers wrote."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    handled: list[dict[str, Any]] = field(default_factory=list)

    def known(self, since: float = 0.0, until: float = float("inf")) -> list[dict[str, Any]]:
        """The lines of that period with a response of the brokers."""
        return [each for each in self.seen if "lag" in each and since <= each["at"] < until]

    def episodes(self, since: float = 0.0, until: float = float("inf")) -> int:
        """Periods in which the group was not Stable, or had other members than in the line before."""
        times = [
            later["at"]
            for before, later in pairwise(self.known(since, until))
            if later["members"] and (later["state"] != "STABLE" or later["members"] != before["members"])
        ]
        return sum(1 for place, at in enumerate(times) if place == 0 or at - times[place - 1] > EPISODE_S)

    def lag_seconds(self) -> float:
        """The sum of the lag over time."""
        return float(sum(each["lag"] * (later["at"] - each["at"]) for each, later in pairwise(self.known())))

    def drained_at(self, since: float, *, lag: float) -> float | None:
        """The first time after which the lag stayed at or below so much; None while it is more."""
        above = [each["at"] for each in self.known(since) if each["lag"] > lag]
        after = [each["at"] for each in self.known(since) if not above or each["at"] > above[-1]]
        return float(after[0]) if after else None


class Load:
    """The process in the tools pod: `rate` sets the load, `samples` fills on its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.samples = Samples()
        self._reader = threading.Thread(target=self._read, name="witness", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if "handled" in found:
                self.samples.handled.append(found["handled"])
            else:
                self.samples.seen.append(found)

    def end(self) -> None:
        """Wait for the last line of a process that is ending."""
        self._reader.join(timeout=30.0)

    def rate(self, records_per_second: float) -> float:
        """Set the load; returns the witness's present time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{records_per_second}\n".encode())
        self._process.stdin.flush()
        return self.now()

    def now(self) -> float:
        """The witness's newest time."""
        known = eventually(lambda: self.samples.seen[-1:], timeout_s=PATIENCE_S, what="the witness's first line")
        return float(known[0]["at"])

    def wait(self, seconds: float) -> None:
        """Wait until the witness has observed so many seconds more."""
        until = self.now() + seconds
        eventually(lambda: self.now() >= until, timeout_s=seconds + PATIENCE_S, what=f"{seconds} s", poll_s=0.5)

    def first_handled(self, *, after: float, attempt: int = 0) -> dict[int, float]:
        """The time at which each partition's first record after that time was handled."""
        found: dict[int, float] = {}
        for each in self.samples.handled:
            if each["at"] >= after and each["attempt"] == attempt:
                found[each["partition"]] = min(each["at"], found.get(each["partition"], each["at"]))
        return found

    def lateness(self) -> list[float]:
        """Seconds from the due time of each retry to its handling."""
        retried = [each for each in self.samples.handled if each["attempt"] > 0]
        return [round(each["at"] - each["appended"] / 1000 - RETRY_DELAY_S, 2) for each in retried]

    def lag(self) -> float:
        """The newest known lag."""
        known = eventually(lambda: self.samples.known()[-1:], timeout_s=PATIENCE_S, what="a known lag")
        return float(known[0]["lag"])


class ScalingScene:
    """One namespace with one group of that name, its topic, and a tools pod."""

    def __init__(self, installation: Installation, name: str, *, partitions: int = PARTITIONS) -> None:
        self.installation = installation
        self.cluster: Cluster = installation.cluster
        self.name = name
        self.partitions = partitions
        self.output = f"{name}-out"
        self._env: dict[str, str] = {}
        self.tools = FlightFleet(self.cluster, namespace=name, consumer_image=installation.consumer_image, name=name)

    def make(
        self,
        *,
        scaling: dict[str, Any] | None,
        per_record_s: float = PER_RECORD_S,
        env: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Create tools, topics and group. If `env` has OUTPUT, handlers write their records to the output topic."""
        self._env = {"PER_RECORD_S": str(per_record_s), **(env or {})}
        self.cluster.ensure_namespace(self.name)
        files = {"inside.py": DEMO_INSIDE.read_text(), "load.py": INSIDE.read_text()}
        source = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": TOOLS}, "data": files}
        self.cluster.apply([source, tools_pod(self.installation.consumer_image)], namespace=self.name)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{TOOLS}", "--timeout=290s")
        self.tools.inside("create-topics", "--partitions", str(self.partitions), self.name, self.output)
        api = {"apiVersion": "consumerfleet.io/v1alpha1"}
        handler = handler_config_map("handler", "handler.py", HANDLER)
        cluster = {**api, "kind": "KafkaCluster", "metadata": {"name": "main"}}
        self.cluster.apply(
            [handler, POLICY, {**cluster, "spec": {"bootstrapServers": [BOOTSTRAP]}}, self.group(scaling, **spec)],
            namespace=self.name,
        )

    def group(
        self,
        scaling: dict[str, Any] | None,
        *,
        name: str | None = None,
        handler: Mapping[str, Any] = MappingProxyType({}),
        **spec: Any,
    ) -> dict[str, Any]:
        """The ConsumerGroup."""
        resources = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
        env = [{"name": key, "value": value} for key, value in self._env.items()]
        base = {
            "clusterRef": {"name": "main"},
            "groupId": name or self.name,
            "topics": [self.name],
            "handler": {
                "python": {"callable": "handler:handle", "configMapRef": {"name": "handler"}},
                "outputs": [self.output],
                **handler,
            },
            "consumer": {"commitIntervalSeconds": 2, "maxPollRecords": 50},
            "template": {"spec": {"containers": [{"name": "worker", "resources": resources, "env": env}]}},
            **({"scaling": scaling} if scaling is not None else {}),
        }
        head = {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "ConsumerGroup"}
        return {**head, "metadata": {"name": name or self.name}, "spec": base | spec}

    def kubectl(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, stdin=stdin)

    def patch(self, spec: dict[str, Any], *, name: str | None = None) -> None:
        self.kubectl("patch", "kcg", name or self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def status(self, name: str | None = None) -> dict[str, Any]:
        found = self.cluster.get("consumergroups.consumerfleet.io", name or self.name, namespace=self.name)
        return (found or {}).get("status") or {}

    def conditions(self, name: str | None = None) -> dict[str, tuple[str, str]]:
        """Status and reason of each condition."""
        found = conditions({"status": self.status(name)})
        return {kind: (entry["status"], entry["reason"]) for kind, entry in found.items()}

    def wait_members(self, members: int, *, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until the group is Stable with so many members, which own every partition."""
        return self.tools.wait_stable(members=members, timeout_s=timeout_s)

    def wait_status(self, timeout_s: float = PATIENCE_S, **wanted: Any) -> dict[str, Any]:
        """Wait until the status has these fields."""

        def there() -> dict[str, Any]:
            status = self.status()
            seen = {key: status.get(key) for key in wanted}
            assert seen == wanted, (seen, status.get("scaling"), status.get("state"))
            return status

        return eventually(there, timeout_s=timeout_s, what=f"a status with {wanted}", poll_s=0.5)

    @contextmanager
    def load(self, *, shares: Sequence[float] = (), group: str | None = None) -> Iterator[Load]:
        """The paced producer and the witness, until the block ends."""
        words = ["--bootstrap", BOOTSTRAP, "--topic", self.name, "--group", group or self.name]
        words += ["--partitions", str(self.partitions)]
        words += ["--output", self.output] if "OUTPUT" in self._env else []
        words += ["--shares", ",".join(map(str, shares))] if shares else []
        command = ("--namespace", self.name, "exec", "--stdin", TOOLS, "--", "python", "-u", "/demo/load.py", *words)
        process = subprocess.Popen(
            self.cluster.kubectl_command(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with process:
            load = Load(process)
            try:
                yield load
            finally:
                process.terminate()
                load.end()

    def partitions_of(self, pod: str) -> set[int]:
        """The partitions that a worker owns."""
        members = [member for member in self.status()["members"] if member["pod"] == pod]
        return set(owned_partitions({"members": members}))

    def restarts(self) -> int:
        """Restarts of all workers."""
        pods = self.cluster.list("pods", namespace=self.name, selector=f"consumerfleet.io/group={self.name}")
        statuses = [entry for pod in pods for entry in pod["status"].get("containerStatuses", ())]
        return sum(entry["restartCount"] for entry in statuses)

    @contextmanager
    def java_consumer(self, folder: Path) -> Iterator[Path]:
        """Kafka's console consumer in this group, outside of the cluster; yields the file that it writes to."""
        bootstrap = host_bootstrap(LocalCluster(self.installation.instance))
        words = ["java", "-cp", f"{ensure_kafka_jars()}/*", "org.apache.kafka.tools.consumer.ConsoleConsumer"]
        words += ["--bootstrap-server", bootstrap, "--topic", self.name, "--group", self.name]
        words += ["--command-property", f"partition.assignment.strategy={COOPERATIVE}", "--command-property"]
        words += ["client.id=java"]
        output = folder / "java.txt"
        with output.open("wb") as stdout:
            process = subprocess.Popen(words, stdout=stdout, stderr=subprocess.DEVNULL)
        try:
            yield output
        finally:
            process.terminate()
            process.wait(timeout=60)

    def remove(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")
