"""The demo's fleet on a cluster that already has Kafka and the operator: make it, feed it, watch it, count.

The end-to-end suites drive the same class through its faults, so what the demo shows is what they prove.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import ROOT, Cluster, conditions, eventually
from e2e.demo.flights import CANCELLED, FLIGHTS, compressed_csv

BOOTSTRAP: Final = "kafka.kafka.svc.cluster.local:9092"
TOOLS: Final = "demo-tools"
EXAMPLE: Final = ROOT / "examples" / "flights"
INSIDE: Final = Path(__file__).parent / "inside.py"
DRAIN_SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class Count:
    """What went in and what came out, each record known by its origin's partition and offset."""

    given: int
    done: int
    failed: int
    lost: int
    duplicated: int
    unknown: int
    repeated: tuple[tuple[int, int], ...] = ()
    """Partition and offset of each record that came out more than once."""

    def line(self) -> str:
        """The demo's last line."""
        return (
            f"demo: in={self.given} done={self.done} failed={self.failed} lost={self.lost} duplicated={self.duplicated}"
        )

    def adds_up(self) -> bool:
        """Every flight ended exactly once: flown ones in the output topic, cancelled ones in the failed topic."""
        wanted = (FLIGHTS, FLIGHTS - CANCELLED, CANCELLED, 0, 0, 0)
        return (self.given, self.done, self.failed, self.lost, self.duplicated, self.unknown) == wanted


class FlightFleet:
    """One group on a topic of flights. `name` is that of the group, its object and its source topic."""

    def __init__(self, cluster: Cluster, *, namespace: str, consumer_image: str, name: str = "flights") -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.consumer_image = consumer_image
        self.name = name
        self.source = name
        self.output = f"{name}-done"
        self.failed = f"_fleet.{name}.failed"

    def kubectl(self, *arguments: str, stdin: str | bytes | None = None, timeout_s: float = 120.0) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, timeout_s=timeout_s)

    def inside(self, *arguments: str, stdin: bytes | None = None, timeout_s: float = 300.0) -> dict[str, Any]:
        """Run one command of `inside.py` next to the brokers and return what it printed."""
        command = ["exec", "--stdin", TOOLS, "--", "python", "/demo/inside.py", "--bootstrap", BOOTSTRAP, *arguments]
        answer: dict[str, Any] = json.loads(self.kubectl(*command, stdin=stdin or b"", timeout_s=timeout_s))
        return answer

    def make_tools(self) -> None:
        """The pod from which topics are made, fed and counted."""
        self.cluster.ensure_namespace(self.namespace)
        source = {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {"name": TOOLS},
            "data": {"inside.py": INSIDE.read_text()},
        }
        self.cluster.apply([source, tools_pod(self.consumer_image)], namespace=self.namespace)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{TOOLS}", "--timeout=60s")

    def make_topics(self) -> None:
        """The source and the output topic. Operator and brokers make the rest."""
        self.inside("create-topics", self.source, self.output)

    def make_group(self) -> None:
        """The handler's source, the KafkaCluster and the ConsumerGroup, as a user would apply them."""
        self.cluster.apply(self.manifests(), namespace=self.namespace)

    def manifests(self) -> list[dict[str, Any]]:
        """The example's objects, under this fleet's name."""
        handler = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{self.name}-handler", "labels": {"consumerfleet.io/handler": "true"}},
            "data": {"handler.py": (EXAMPLE / "handler.py").read_text().replace("flights-done", self.output)},
        }
        cluster, group = yaml.safe_load_all((EXAMPLE / "fleet.yaml").read_text())
        group["metadata"]["name"] = self.name
        group["spec"]["topics"] = [self.source]
        group["spec"]["handler"]["outputs"] = [self.output]
        group["spec"]["handler"]["python"]["configMapRef"]["name"] = handler["metadata"]["name"]  # type: ignore[index]
        return [handler, cluster, group]

    def group(self) -> dict[str, Any]:
        """The ConsumerGroup as the API server has it; empty when it is not there."""
        return self.cluster.get("consumergroups.consumerfleet.io", self.name, namespace=self.namespace) or {}

    def wait_stable(self, *, members: int, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait until the group is Stable and Ready with this many members; return its status."""

        def probe() -> dict[str, Any] | None:
            found = self.group()
            status: dict[str, Any] = found.get("status") or {}
            seen = {kind: entry["status"] for kind, entry in conditions(found).items()}
            assert status.get("state") == "Stable", status.get("state")
            assert status.get("memberCount") == members, status.get("memberCount")
            assert seen.get("Ready") == "True", conditions(found).get("Ready")
            return status

        return eventually(probe, timeout_s=timeout_s, what=f"{self.name} is Stable with {members} members")

    def produce(self, *, pause_seconds_per_thousand: float = 0.0) -> int:
        """Write all flights to the source topic; with a pause, slowly enough for faults in the middle."""
        pause = ("--pause-seconds-per-thousand", str(pause_seconds_per_thousand))
        return int(
            self.inside("produce", "--topic", self.source, *pause, stdin=compressed_csv().read_bytes())["produced"]
        )

    def lag(self) -> dict[str, int]:
        """`end`: the sum of the source's end offsets; `lag`: how many of them the group has not committed."""
        return self.inside("lag", "--topic", self.source, "--group", self.name)

    def wait_drained(self, *, show: bool = False) -> None:
        """Wait until everything is committed, showing the group as a user would watch it."""

        def probe() -> bool:
            if show:
                print(
                    self.kubectl("get", "consumergroups", self.name, "--no-headers").rstrip(),
                    file=sys.stderr,
                    flush=True,
                )
            return self.lag()["lag"] == 0

        eventually(probe, timeout_s=DRAIN_SECONDS_MAX, what="every flight is committed", poll_s=1.0)

    def count(self) -> Count:
        """Count from the topics, never from anybody's memory."""
        topics = ("--topic", self.source, "--output", self.output, "--failed", self.failed)
        found = self.inside("count", *topics)
        repeated = tuple((int(p), int(o)) for p, o in (text.split("-") for text in found.pop("repeated")))
        return Count(given=found.pop("in"), repeated=repeated, **found)

    def reset(self) -> None:
        """Remove the group and its topics, so that a run that was interrupted can start over."""
        self.kubectl("delete", "consumergroups.consumerfleet.io", self.name, "--ignore-not-found", "--timeout=90s")
        pods = ("wait", "--for=delete", "pod", "--selector", f"consumerfleet.io/group={self.name}", "--timeout=90s")
        self.kubectl(*pods)
        self.inside("delete-group", self.name)
        self.inside("delete-topics", self.source, self.output, self.failed)


def tools_pod(image: str) -> dict[str, Any]:
    """A pod of the worker's image that only waits; it meets the restricted pod security standard."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": TOOLS},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "tools",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", "import signal; signal.pause()"],
                    "volumeMounts": [{"name": "demo", "mountPath": "/demo"}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [{"name": "demo", "configMap": {"name": TOOLS}}],
        },
    }
