"""Groups with retries on the run's cluster: one namespace, and one handler that is controlled by records' values.

Each group belongs to one test, and all are created together, so that their starts and waits overlap.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from e2e.cluster import PATIENCE_S, Cluster, CommandFailed, conditions, eventually
from e2e.demo.fleet import BOOTSTRAP, TOOLS, FlightFleet
from e2e.install import Installation

NAMESPACE: Final = "retries"
OUTPUT: Final = "retries-done"
PARTITIONS: Final = 3
RESOURCES: Final = {"requests": {"cpu": "20m", "memory": "64Mi"}}
SLOW_SECONDS: Final = 20
SLEEP_SECONDS: Final = 120
SLEEP_DELAY: Final = "2m"
BUDGET: Final = {
    "maxFailurePercent": 50,
    "windowSeconds": 10,
    "minRecords": 20,
    "action": "Pause",
    "cooldownSeconds": 3,
}
API_VERSION: Final = "consumerfleet.io/v1alpha1"

HANDLER: Final = f'''
import json
import socket
import time

from fleet_consumer import Produce


def handle(record):
    """good: done. bad: fails until it is put back. once: fails the first time. needs: fails while the Service does."""
    text, delivery = record.value.decode(), record.delivery
    print(json.dumps({{"handled": text, "attempt": record.attempt, "from": delivery.topic}}), flush=True)
    if text.startswith("bad") and not delivery.topic.endswith(".redrive"):
        raise ValueError(f"{{text}} is bad")
    if text.startswith("once") and record.attempt == 0:
        raise ValueError(f"{{text}} is too early")
    if text.startswith("needs"):
        socket.create_connection(("dependency", 8080), timeout=2.0).close()
    done = {{"value": text, "attempt": record.attempt, "origin": f"{{record.partition}}-{{record.offset}}"}}
    done |= {{"from": delivery.topic, "appended": delivery.timestamp, "at": int(time.time() * 1000)}}
    return Produce("{OUTPUT}", json.dumps(done))
'''


@dataclass(frozen=True)
class Scene:
    """The namespace and the groups, each of which reads a topic of its own name."""

    cluster: Cluster
    tools: FlightFleet

    @classmethod
    def make(cls, installation: Installation) -> Scene:
        """Create the namespace with tools, handler, KafkaCluster, dependency and all groups; wait until ready."""
        cluster = installation.cluster
        tools = FlightFleet(cluster, namespace=NAMESPACE, consumer_image=installation.consumer_image)
        tools.make_tools()
        scene = cls(cluster, tools)
        made = groups()
        names = [body["metadata"]["name"] for body in made]
        tools.inside("create-topics", "--partitions", str(PARTITIONS), *names, OUTPUT)
        scene.apply(*common(installation.consumer_image), *policies(), *made)
        scene.wait_ready(*names)
        return scene

    def remove(self) -> None:
        """Delete everything, without waiting."""
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")

    def drop(self, *groups: str) -> None:
        """Delete groups whose workers are no longer needed, without waiting."""
        self.kubectl("delete", "consumergroups.consumerfleet.io", *groups, "--wait=false", "--ignore-not-found")

    def apply(self, *bodies: dict[str, Any]) -> None:
        self.cluster.apply(bodies, namespace=NAMESPACE)

    def kubectl(self, *arguments: str) -> str:
        return self.tools.kubectl(*arguments)

    def write(self, topic: str, values: list[str]) -> None:
        """Write records whose keys are their values, so that they are in all partitions."""
        self.tools.inside("write", "--keyed", "--topic", topic, stdin="\n".join(values).encode())

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Every record that a topic holds now."""
        records: list[dict[str, Any]] = self.tools.inside("read", "--topic", topic)["records"]
        return records

    def done(self, start: str = "") -> list[dict[str, Any]]:
        """The outputs of all groups' handlers for values with this prefix."""
        found = [json.loads(value) for value in self.tools.inside("read", "--topic", OUTPUT)["values"]]
        return [entry for entry in found if entry["value"].startswith(start)]

    def failed(self, group: str) -> list[dict[str, Any]]:
        """The records of a group's failed topic."""
        return self.read(f"_fleet.{group}.failed")

    def topics(self, group: str) -> dict[str, dict[str, Any]]:
        """A group's managed topics, without their common prefix: partitions, and settings of their own."""
        prefix = f"_fleet.{group}."
        return {name.removeprefix(prefix): topic for name, topic in self.tools.inside("topics", prefix).items()}

    def appended(self, group: str, delay: str) -> int:
        """The number of records ever written to a delay topic, also of deleted ones."""
        return len(self.read(f"_fleet.{group}.retry.{delay}"))

    def waiting(self, group: str) -> int:
        """The number of records not committed by the retry workers, from the brokers."""
        topics = [f"_fleet.{group}.{name}" for name in self.topics(group) if name != "failed"]
        found = self.tools.inside("waiting", "--group", f"{group}.retry", *topics) if topics else {"waiting": 0}
        return int(found["waiting"])

    def status(self, kind: str, name: str) -> dict[str, Any]:
        found = self.cluster.get(f"{kind}.consumerfleet.io", name, namespace=NAMESPACE) or {}
        status: dict[str, Any] = found.get("status") or {}
        return status

    def wait_ready(self, *groups: str) -> None:
        """Wait until these groups' main workers are Stable and all of their topics exist."""

        def probe() -> bool:
            for group in groups:
                found = self.cluster.get("consumergroups.consumerfleet.io", group, namespace=NAMESPACE)
                seen = {kind: (entry["status"], entry["message"]) for kind, entry in conditions(found).items()}
                for kind in ("Ready", "TopicsReady"):
                    assert seen.get(kind, ("",))[0] == "True", (group, kind, seen.get(kind))
            return True

        eventually(probe, timeout_s=300, what=f"{', '.join(groups)} are ready", poll_s=1.0)

    def pods(self, group: str) -> dict[str, tuple[str, int]]:
        """Uid and restarts of each of a group's workers: equal before and after means that nothing touched them."""
        selector = f"consumerfleet.io/group={group},app.kubernetes.io/component in (worker,retry)"
        pods = self.cluster.list("pods", namespace=NAMESPACE, selector=selector)
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(entry["restartCount"] for entry in pod["status"].get("containerStatuses", [])),
            )
            for pod in pods
        }

    def wait_pods(self, group: str, *names: str) -> dict[str, tuple[str, int]]:
        """Wait until a group has exactly these workers, all started; returns `pods`."""
        selector = f"consumerfleet.io/group={group},app.kubernetes.io/component in (worker,retry)"

        def ready() -> bool:
            found = self.cluster.list("pods", namespace=NAMESPACE, selector=selector)
            seen = [
                pod["metadata"]["name"] for pod in found if conditions(pod).get("Ready", {}).get("status") == "True"
            ]
            assert sorted(seen) == sorted(names), seen
            return True

        eventually(ready, timeout_s=PATIENCE_S, what=f"{', '.join(names)} are ready")
        return self.pods(group)

    def deliveries(self, group: str) -> Counter[str]:
        """The number of deliveries of each value, from the logs of all workers that still exist."""
        text = self.kubectl("logs", "--selector", f"consumerfleet.io/group={group}", "--tail=-1", "--ignore-errors")
        lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"handled"')]
        return Counter(line["handled"] for line in lines)

    def switch_dependency(self, *, up: bool) -> None:
        """Bring the dependency up or down, and wait until connections from pods confirm it."""
        self.apply(dependency(up=up))
        connect = "import socket; socket.create_connection(('dependency', 8080), timeout=2.0).close()"

        def switched() -> bool:
            try:
                self.kubectl("exec", TOOLS, "--", "python", "-c", connect)
            except CommandFailed:
                return not up
            return up

        eventually(switched, timeout_s=PATIENCE_S, what=f"the dependency is {'up' if up else 'down'}")

    def table(self, *arguments: str) -> dict[str, str]:
        """The only row of a `kubectl get`, by column; only for columns whose values have no blanks."""
        lines = self.kubectl("get", *arguments).rstrip().splitlines()
        header, row = lines[0], lines[1]
        starts = [
            index for index, letter in enumerate(header) if letter != " " and header[: index + 1][-3:-1] in ("", "  ")
        ]
        spans = zip(starts, [*starts[1:], None], strict=True)
        return {header[first:last].strip(): row[first:last].strip() for first, last in spans}


@contextmanager
def made_scene(installation: Installation) -> Iterator[Scene]:
    """The scene until the end of the block."""
    made = Scene.make(installation)
    try:
        yield made
    finally:
        made.remove()


def common(image: str) -> list[dict[str, Any]]:
    """The objects shared by all groups."""
    labels = {"consumerfleet.io/handler": "true"}
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    server = {
        "name": "server",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "http.server", "8080"],
        "securityContext": restricted,
    }
    pod = {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [server],
    }
    return [
        {"apiVersion": API_VERSION, "kind": "KafkaCluster", "metadata": {"name": "main"}}
        | {"spec": {"bootstrapServers": [BOOTSTRAP], "observeIntervalSeconds": 2}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "handler", "labels": labels}}
        | {"data": {"handler.py": HANDLER}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dependency", "labels": {"app": "dependency"}}}
        | {"spec": pod},
        dependency(up=True),
    ]


def dependency(*, up: bool) -> dict[str, Any]:
    """The Service that some records need. When stopped, it leads to a closed port, which refuses at once."""
    port = {"port": 8080, "targetPort": 8080 if up else 8081}
    spec = {"selector": {"app": "dependency"}, "ports": [port]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dependency"}, "spec": spec}


def policies() -> list[dict[str, Any]]:
    """The policies of all groups, by their delays."""
    return [
        policy("steps", "1s", "2s", "5s"),
        policy("edited", "1s", "2s", "5s"),
        policy("short", "1s"),
        policy("slow", f"{SLOW_SECONDS}s"),
        policy("sleepy", SLEEP_DELAY),
        policy("never", "1h"),
        policy("careful", "1s", "1s", "1s", budget=BUDGET),
    ]


def groups() -> list[dict[str, Any]]:
    """The groups, one for each test, or two."""
    return [
        group("walking", "steps"),
        group("edited", "edited"),
        group("redriven", "short"),
        group("restarted", "slow"),
        group("sleeping", "sleepy", least=0),
        group("drained", "slow", deletion={"retryTopics": "Drain", "timeoutSeconds": 120}),
        group("erased", "never", deletion={"retryTopics": "Delete", "group": "Delete"}),
        group("dependent", "careful"),
    ]


def policy(name: str, *sequence: str, **spec: Any) -> dict[str, Any]:
    """A policy, without a budget unless `spec` has one: most of these groups fail every record."""
    wanted = {"sequence": list(sequence), "budget": {"action": "None"}, **spec}
    return {"apiVersion": API_VERSION, "kind": "RetryPolicy", "metadata": {"name": name}, "spec": wanted}


def group(name: str, policy_name: str, *, least: int = 1, **spec: Any) -> dict[str, Any]:
    """A group of one worker on the topic of its own name."""
    wanted = {
        "clusterRef": {"name": "main"},
        "groupId": name,
        "topics": [name],
        "handler": {
            "python": {"callable": "handler:handle", "configMapRef": {"name": "handler"}},
            "outputs": [OUTPUT],
        },
        "consumer": {"commitIntervalSeconds": 1},
        "retry": {"policyRef": {"name": policy_name}, "worker": {"minReplicas": least, "maxReplicas": 1}},
        "template": {"spec": {"containers": [{"name": "worker", "resources": RESOURCES}]}},
        **spec,
    }
    return {"apiVersion": API_VERSION, "kind": "ConsumerGroup", "metadata": {"name": name}, "spec": wanted}


def redrive(name: str, group_name: str, **spec: Any) -> dict[str, Any]:
    wanted = {"groupRef": {"name": group_name}, **spec}
    return {"apiVersion": API_VERSION, "kind": "Redrive", "metadata": {"name": name}, "spec": wanted}
