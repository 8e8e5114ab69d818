"""The demo's fleet on a cluster with Kafka and the operator: creating, feeding, watching, counting.

The end-to-end suites use the same class for their faults, so they prove what the demo shows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import PATIENCE_S, ROOT, Cluster, WaitedTooLong, conditions, eventually
from e2e.demo.flights import CANCELLED, FLIGHTS, compressed_csv
from e2e.demo.tools import Tools

BOOTSTRAP: Final = "kafka.kafka.svc.cluster.local:9092"
TOOLS: Final = "demo-tools"
EXAMPLE: Final = ROOT / "examples" / "flights"
INSIDE: Final = Path(__file__).parent / "inside.py"
PROGRAM: Final = ("python", "/demo/inside.py")
AT_LENGTH: Final = ("produce", "expect", "delete-group")
"""Long commands, which have processes of their own so that others do not wait for them."""
DRAIN_SECONDS_MAX: Final = 300.0
DELAYS: Final = ("5s", "30s")
"""The distinct delays of the example's policy."""
REDRIVE: Final = "flights-fixed"
WATCHED: Final = (
    "NAME:.metadata.name,STATE:.status.state,REPLICAS:.status.replicas,LAG:.status.lagApproximate,"
    "RETRY:.status.retry.waiting,NEXT-DUE:.status.retry.nextDueAt,FAILED:.status.retry.failed"
)
"""Columns of the demo's watch."""


@dataclass(frozen=True, slots=True)
class Count:
    """Input and output counts, each record known by its origin's partition and offset."""

    given: int
    done: int
    failed: int
    lost: int
    duplicated: int
    unknown: int
    repeated: tuple[tuple[int, int], ...] = ()
    """Partition and offset of each record with more than one output."""

    def line(self, title: str = "demo") -> str:
        """The demo's last lines."""
        ends = f"done={self.done} failed={self.failed} lost={self.lost} duplicated={self.duplicated}"
        return f"{title}: in={self.given} {ends}"

    def adds_up(self) -> bool:
        """True if every flight ended exactly once: in the output topic or, if cancelled, in the failed topic."""
        return self._is(FLIGHTS - CANCELLED, CANCELLED)

    def adds_up_redriven(self) -> bool:
        """True if all flights are in the output topic, after the Redrive."""
        return self._is(FLIGHTS, 0)

    def _is(self, done: int, failed: int) -> bool:
        wanted = (FLIGHTS, done, failed, 0, 0, 0)
        return (self.given, self.done, self.failed, self.lost, self.duplicated, self.unknown) == wanted


def handler_config_map(name: str, file: str, source: str) -> dict[str, Any]:
    """The ConfigMap of a handler's source, with the label by which the operator finds it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"consumerfleet.io/handler": "true"}},
        "data": {file: source},
    }


class FlightFleet:
    """One group on a topic of flights. `name` is that of its object and its source topic.

    Without `retries` the example's RetryPolicy is left out: failed records go to the failed topic at once.
    """

    def __init__(
        self, cluster: Cluster, *, namespace: str, consumer_image: str, name: str = "flights", retries: bool = False
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.consumer_image = consumer_image
        self.name = name
        self.source = name
        self.output = f"{name}-done"
        self.workers = f"{name}-fleet"
        self.group_id = f"{namespace}.{name}"
        self.failed = f"_fleet.{self.group_id}.failed"
        self.redrive = f"_fleet.{self.group_id}.redrive"
        self.retry_topics = [f"_fleet.{self.group_id}.retry.{delay}" for delay in DELAYS]
        self.retries = retries
        serve = ("exec", "--stdin", TOOLS, "--", *PROGRAM, "--bootstrap", BOOTSTRAP, "serve")
        self._tools = Tools(cluster.kubectl_command("--namespace", namespace, *serve))

    def kubectl(self, *arguments: str, stdin: str | bytes | None = None, timeout_s: float = PATIENCE_S) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, timeout_s=timeout_s)

    def kubectl_json(self, *arguments: str, stdin: str | bytes | None = None, timeout_s: float = PATIENCE_S) -> Any:
        return self.cluster.kubectl_json("--namespace", self.namespace, *arguments, stdin=stdin, timeout_s=timeout_s)

    def inside(self, *arguments: str, stdin: bytes | None = None, timeout_s: float = 300.0) -> dict[str, Any]:
        """Run one command of `inside.py` next to the brokers and return what it printed. Raises CommandFailed."""
        words = ["--bootstrap", BOOTSTRAP, *arguments]
        if arguments[0] in AT_LENGTH:
            command = ["exec", "--stdin", TOOLS, "--", *PROGRAM, *words]
            answer: dict[str, Any] = self.kubectl_json(*command, stdin=stdin or b"", timeout_s=timeout_s)
            return answer
        return self._tools.ask(words, stdin or b"", timeout_s)

    def make_tools(self) -> None:
        """Create the pod from which topics are created, fed and counted."""
        self.cluster.ensure_namespace(self.namespace)
        source = {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {"name": TOOLS},
            "data": {"inside.py": INSIDE.read_text()},
        }
        self.cluster.apply([source, tools_pod(self.consumer_image)], namespace=self.namespace)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{TOOLS}", "--timeout=290s")

    def make_topics(self) -> None:
        """Create the source and the output topic. Operator and brokers create the rest."""
        self.inside("create-topics", self.source, self.output)

    def make_group(self) -> None:
        """Apply the handler's source, the KafkaCluster and the ConsumerGroup, as a user would."""
        self.cluster.apply(self.manifests(), namespace=self.namespace)

    def manifests(self) -> list[dict[str, Any]]:
        """The example's objects, under this fleet's name."""
        handler = self.handler_source(EXAMPLE / "handler.py")
        cluster, policy, group = yaml.safe_load_all((EXAMPLE / "fleet.yaml").read_text())
        group["metadata"]["name"] = self.name
        group["spec"]["topics"] = [self.source]
        group["spec"]["handler"]["outputs"] = [self.output]
        group["spec"]["handler"]["python"]["configMapRef"]["name"] = handler["metadata"]["name"]
        if self.retries:
            return [handler, cluster, policy, group]
        del group["spec"]["retry"]
        return [handler, cluster, group]

    def handler_source(self, path: Path) -> dict[str, Any]:
        """The ConfigMap with the handler from this file."""
        source = path.read_text().replace("flights-done", self.output)
        return handler_config_map(f"{self.name}-handler", "handler.py", source)

    def group(self) -> dict[str, Any]:
        """The ConsumerGroup from the API server; empty if it does not exist."""
        return self.cluster.get("consumergroups.consumerfleet.io", self.name, namespace=self.namespace) or {}

    def wait_stable(self, *, members: int, timeout_s: float = 300.0) -> dict[str, Any]:
        """Wait until the group is Stable and Ready, and so many members own each partition once; return its status.

        Stable alone is not the end of a cooperative rebalance: between its two rounds the group is Stable as well,
        while revoked partitions have no owner yet.
        """

        def probe() -> dict[str, Any] | None:
            found = self.group()
            status: dict[str, Any] = found.get("status") or {}
            seen = {kind: entry["status"] for kind, entry in conditions(found).items()}
            assert status.get("state") == "Stable", status.get("state")
            assert status.get("memberCount") == members, status.get("memberCount")
            assert seen.get("Ready") == "True", conditions(found).get("Ready")
            owned = owned_partitions(status)
            assert owned, "nobody owns anything"
            assert owned == list(range(status.get("partitions", 0))), owned
            return status

        return eventually(probe, timeout_s=timeout_s, what=f"{self.name} is Stable, shared by {members} members")

    def produce(self, flights: bytes | None = None, *, pause_seconds_per_thousand: float = 0.0) -> int:
        """Write these flights (a gzipped file), by default all, to the source topic; with a pause, slowly enough for
        faults meanwhile."""
        pause = ("--pause-seconds-per-thousand", str(pause_seconds_per_thousand))
        rows = flights if flights is not None else compressed_csv().read_bytes()
        return int(self.inside("produce", "--topic", self.source, *pause, stdin=rows)["produced"])

    def lag(self) -> dict[str, int]:
        """`end`: the sum of the source's end offsets; `lag`: how many of them the group has not committed."""
        return self.inside("lag", "--topic", self.source, "--group", self.group_id)

    def wait_drained(self, *, show: bool = False) -> None:
        """Wait until everything is committed, showing the group as a user would watch it."""

        rows = Rows("get", "consumergroups", self.name, "--output", f"custom-columns={WATCHED}")

        def probe() -> bool:
            if show:
                rows.show(self)
            return self.lag()["lag"] == 0 and (not self.retries or self.waiting() == 0)

        eventually(probe, timeout_s=DRAIN_SECONDS_MAX, what="every flight is committed, none waits", poll_s=1.0)

    def waiting(self) -> int:
        """Records of the retry and redrive topics that the retry workers have not committed."""
        topics = (*self.retry_topics, self.redrive)
        return int(self.inside("waiting", "--group", f"{self.group_id}.retry", *topics)["waiting"])

    def fix_handler(self) -> None:
        """Deploy the handler that accepts cancelled flights too, and wait until every worker runs it."""
        self.deploy(self.handler_source(EXAMPLE / "fixed" / "handler.py"))

    def deploy(self, source: dict[str, Any]) -> None:
        """Deploy a handler by the ConfigMap of its source, and wait until every worker runs it."""
        before = self._revision()
        self.cluster.apply([source], namespace=self.namespace)

        def probe() -> bool:
            revision = self._revision()
            assert revision != before, f"still at revision {before}"
            sets = self.cluster.list("statefulsets", namespace=self.namespace, selector=self._selector)
            for found in sets:
                status, generation = found.get("status", {}), found["metadata"]["generation"]
                seen = (found["metadata"]["name"], status)
                assert status.get("observedGeneration") == generation, seen
                wanted = found["spec"]["replicas"]
                assert status.get("readyReplicas", 0) == wanted, seen
                assert status.get("updateRevision") == status.get("currentRevision") or not wanted, seen
            return bool(conditions(self.group())["Ready"]["status"] == "True")

        eventually(probe, timeout_s=PATIENCE_S, what="every worker runs the new handler")

    @property
    def _selector(self) -> str:
        return f"consumerfleet.io/group={self.name}"

    def _revision(self) -> str:
        found = self.cluster.get("statefulset", self.workers, namespace=self.namespace) or {}
        return str(found["metadata"]["annotations"]["consumerfleet.io/revision"])

    def start_redrive(self) -> None:
        """Create the Redrive that puts the failed flights back, as a user would."""
        redrive = yaml.safe_load((EXAMPLE / "redrive.yaml").read_text())
        redrive["spec"]["groupRef"]["name"] = self.name
        self.cluster.apply([redrive], namespace=self.namespace)

    def redriven(self) -> bool:
        """True if an earlier run of the demo has reached its Redrive."""
        return self.cluster.get("redrives.consumerfleet.io", REDRIVE, namespace=self.namespace) is not None

    def wait_redriven(self, *, show: bool = False) -> dict[str, Any]:
        """Wait until the Redrive has succeeded; return its status."""
        columns = "SELECTED:.status.selected,MOVED:.status.moved,REMAINING:.status.remaining,RATE:.status.ratePerSecond"
        named = "NAME:.metadata.name,GROUP:.spec.groupRef.name,PHASE:.status.phase"
        rows = Rows("get", "redrives", REDRIVE, "--output", f"custom-columns={named},{columns}")

        def probe() -> dict[str, Any] | None:
            if show:
                rows.show(self)
            found = self.cluster.get("redrives.consumerfleet.io", REDRIVE, namespace=self.namespace) or {}
            status: dict[str, Any] = found.get("status") or {}
            if status.get("phase") in ("Failed", "Cancelled"):
                raise WaitedTooLong(f"the Redrive ended as {status}")
            return status if status.get("phase") == "Succeeded" else None

        return eventually(probe, timeout_s=DRAIN_SECONDS_MAX, what="the Redrive has ended", poll_s=1.0)

    def count(self) -> Count:
        """Count from the topics only."""
        topics = ["--topic", self.source, "--output", self.output, "--failed", self.failed]
        topics += ["--redrive", self.redrive] if self.retries else []
        found = self.inside("count", *topics)
        repeated = tuple((int(p), int(o)) for p, o in (text.split("-") for text in found.pop("repeated")))
        return Count(given=found.pop("in"), repeated=repeated, **found)

    def reset(self) -> None:
        """Remove the group and its topics, so that a run that was interrupted can start over."""
        self.kubectl("delete", "consumergroups.consumerfleet.io", self.name, "--ignore-not-found", "--timeout=290s")
        pods = ("wait", "--for=delete", "pod", "--selector", f"consumerfleet.io/group={self.name}", "--timeout=290s")
        self.kubectl(*pods)
        self.kubectl("delete", "redrives.consumerfleet.io,backfills.consumerfleet.io", "--all", "--timeout=290s")
        self.inside("delete-group", self.group_id, f"{self.group_id}.retry")
        managed = self.inside("topics", f"_fleet.{self.group_id}.")
        self.inside("delete-topics", self.source, self.output, *managed)


class Rows:
    """A table of `kubectl get`, shown as `--watch` shows it: the header once, then each row that changed."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._last = ""

    def show(self, fleet: FlightFleet) -> None:
        header, _, row = fleet.kubectl(*self._arguments).rstrip().partition("\n")
        if not self._last:
            print(header, file=sys.stderr, flush=True)
        if row != self._last:
            print(row, file=sys.stderr, flush=True)
        self._last = row


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


def owned_partitions(status: Mapping[str, Any]) -> list[int]:
    """The partitions of a group's only topic that its members own, sorted; twice if two members claim one."""
    found: list[int] = []
    for entry in (entry for member in status.get("members", ()) for entry in member["partitions"]):
        for part in entry["ranges"].split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return sorted(found)
