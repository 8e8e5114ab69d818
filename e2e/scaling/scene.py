"""A scaled group on a cluster, under a load of which everybody knows how many workers it takes.

The handler sleeps, so that a worker handles a fixed number of records a second and takes no processor for it.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from e2e.cluster import PATIENCE_S, Cluster, conditions, eventually
from e2e.demo.fleet import BOOTSTRAP, TOOLS, FlightFleet, handler_config_map, tools_pod
from e2e.install import Installation

INSIDE: Final = Path(__file__).parent / "inside.py"
DEMO_INSIDE: Final = Path(__file__).parents[1] / "demo" / "inside.py"
PARTITIONS: Final = 12
PER_RECORD_S: Final = 0.04
"""The handler's time for a record: a worker handles less than 25 records a second."""
EPISODE_S: Final = 10.0
"""Stretches without Stable that are closer to each other are one rebalance to whoever waits for it."""
HANDLER: Final = """
import os
import pathlib
import time

FIRST = pathlib.Path("/tmp/first")


def handle(record):
    if not FIRST.exists():
        print("first record", record.partition, record.offset, time.time(), flush=True)
        FIRST.touch()
    time.sleep(float(os.environ.get("PER_RECORD_S", "{seconds}")))
"""


@dataclass(slots=True)
class Samples:
    """The witness's lines."""

    seen: list[dict[str, Any]] = field(default_factory=list)

    def known(self, since: float = 0.0, until: float = float("inf")) -> list[dict[str, Any]]:
        """The lines of that time with an answer of the brokers."""
        return [each for each in self.seen if "lag" in each and since <= each["at"] < until]

    def episodes(self, since: float = 0.0, until: float = float("inf")) -> int:
        """Stretches in which the group was not Stable, or had other members than the line before."""
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
    """The process in the tools pod: `rate` sets the load, `samples` fills by itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.samples = Samples()
        self._reader = threading.Thread(target=self._read, name="witness", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.samples.seen.append(json.loads(line))

    def rate(self, records_per_second: float) -> float:
        """Set the load; returns the witness's time of now."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{records_per_second}\n".encode())
        self._process.stdin.flush()
        return self.now()

    def now(self) -> float:
        """The witness's newest time."""
        known = eventually(lambda: self.samples.seen[-1:], timeout_s=PATIENCE_S, what="the witness's first line")
        return float(known[0]["at"])

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
        self.tools = FlightFleet(self.cluster, namespace=name, consumer_image=installation.consumer_image, name=name)

    def make(self, *, scaling: dict[str, Any] | None, per_record_s: float = PER_RECORD_S, **spec: Any) -> None:
        """The tools, the topic, and the group."""
        self.cluster.ensure_namespace(self.name)
        files = {"inside.py": DEMO_INSIDE.read_text(), "load.py": INSIDE.read_text()}
        source = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": TOOLS}, "data": files}
        self.cluster.apply([source, tools_pod(self.installation.consumer_image)], namespace=self.name)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{TOOLS}", "--timeout=290s")
        self.tools.inside("create-topics", "--partitions", str(self.partitions), self.name)
        api = {"apiVersion": "consumerfleet.io/v1alpha1"}
        handler = handler_config_map("handler", "handler.py", HANDLER.replace("{seconds}", str(per_record_s)))
        cluster = {**api, "kind": "KafkaCluster", "metadata": {"name": "main"}}
        self.cluster.apply(
            [handler, {**cluster, "spec": {"bootstrapServers": [BOOTSTRAP]}}, self.group(scaling, **spec)],
            namespace=self.name,
        )

    def group(self, scaling: dict[str, Any] | None, *, name: str | None = None, **spec: Any) -> dict[str, Any]:
        """The ConsumerGroup."""
        resources = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
        base = {
            "clusterRef": {"name": "main"},
            "topics": [self.name],
            "handler": {"python": {"callable": "handler:handle", "configMapRef": {"name": "handler"}}},
            "consumer": {"commitIntervalSeconds": 2, "maxPollRecords": 50},
            "template": {"spec": {"containers": [{"name": "worker", "resources": resources}]}},
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
        previous = self.tools.name
        assert previous == self.name
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
        words += ["--shares", ",".join(map(str, shares))] if shares else []
        command = ("--namespace", self.name, "exec", "--stdin", TOOLS, "--", "python", "-u", "/demo/load.py", *words)
        process = subprocess.Popen(
            self.cluster.kubectl_command(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            yield Load(process)
        finally:
            process.terminate()
            process.wait(timeout=30)

    def remove(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")
