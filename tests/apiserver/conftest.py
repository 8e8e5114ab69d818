"""What the tests on a real API server share: the servers, the stand-in for nodes, one operator for most of them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import objects
from tests.apiserver.nodes import Nodes
from tests.apiserver.reader import Reader
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
TOPIC_TOOL = "org.apache.kafka.tools.TopicCommand"
PARTITIONS = 6


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """An API server with our CRDs, on which one operator serves all namespaces."""
    with ApiServer() as server:
        install_crds(server)
        yield server


def apply(server: ApiServer, bodies: Iterable[dict[str, Any]]) -> None:
    """Apply objects as a user would, all with one call."""
    listing = {"apiVersion": "v1", "kind": "List", "items": list(bodies)}
    server.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(listing))


def install_crds(server: ApiServer) -> None:
    server.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    for crd in ("kafkaclusters", "consumergroups", "retrypolicies", "redrives"):
        server.kubectl("wait", "--for=condition=Established", f"crd/{crd}.consumerfleet.io", "--timeout=30s")


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker with topic `flights`, user alice, TLS and tokens; tests that stop a broker make their own."""
    properties = {"group.min.session.timeout.ms": "1000"}
    with KafkaBroker(properties=properties, sasl_users={"alice": "alice-secret"}, tls=True, oauth=True) as kafka:
        make_topic(kafka, "flights")
        yield kafka


def make_topic(kafka: KafkaBroker, name: str) -> None:
    kafka.tool(
        TOPIC_TOOL, "--bootstrap-server", kafka.bootstrap, "--create", "--topic", name, "--partitions", str(PARTITIONS)
    )


@pytest.fixture(scope="session")
def nodes(api: ApiServer) -> Iterator[Nodes]:
    with Nodes(str(api.kubeconfig)) as running:
        yield running


class Operator:
    """`fleet-operator run` as a process of its own."""

    def __init__(self, api: ApiServer, *arguments: str, identity: str = "operator") -> None:
        self.log = Path(tempfile.mkstemp(prefix="fleet-operator-", suffix=".log")[1])
        command = [str(Path(sys.executable).parent / "fleet-operator"), "run", "--log-format", "text"]
        ports = ["--health-port", "0", "--metrics-port", "0"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *ports, *arguments],
                stderr=log,
                env={**os.environ, "POD_NAME": identity, "KUBECONFIG": str(api.kubeconfig)},
            )

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        print(f"--- {self.log}\n{self.log.read_text()}")
        self.log.unlink()


@pytest.fixture(scope="session")
def operator(api: ApiServer, nodes: Nodes) -> Iterator[Operator]:
    """The operator of most tests, with its default settings, for all namespaces but those labelled otherwise."""
    with Operator(api) as running:
        eventually(lambda: "working" in running.log.read_text(), timeout_s=30, what="the operator to work")
        yield running
        assert running.process.poll() is None, "the operator died"
        assert running.stop() == 0


@dataclass(frozen=True)
class Site:
    """One namespace of one test. Kinds are named by their plural."""

    api: ApiServer
    reader: Reader
    name: str

    def apply(self, *bodies: dict[str, Any]) -> None:
        apply(self.api, bodies)

    def get(self, plural: str, name: str) -> dict[str, Any]:
        return self.reader.get(plural, self.name, name)

    def every(self, plural: str, selector: str = "consumerfleet.io/group") -> list[dict[str, Any]]:
        return self.reader.list(plural, self.name, selector)

    def names(self, plural: str, selector: str = "consumerfleet.io/group") -> list[str]:
        return sorted(body["metadata"]["name"] for body in self.every(plural, selector))

    def condition(self, kind: str, name: str, condition: str) -> dict[str, Any]:
        for found in self.get(kind, name).get("status", {}).get("conditions", ()):
            if found["type"] == condition:
                return dict(found)
        return {}

    def wait_condition(
        self, kind: str, name: str, condition: str, *, status: str, reason: str, timeout_s: float = 30.0
    ) -> dict[str, Any]:
        """Until a condition has this status and reason; returns it."""

        def seen() -> dict[str, Any]:
            found = self.condition(kind, name, condition)
            assert (found.get("status"), found.get("reason")) == (status, reason), found
            return found

        return eventually(seen, timeout_s=timeout_s, what=f"{condition}={status} ({reason}) of {kind} {name}")

    def wait_ready_replicas(self, count: int, name: str = "flights", *, timeout_s: float = 30.0) -> dict[str, Any]:
        """Until the StatefulSet has this many ready workers and the status says so; returns the ConsumerGroup."""

        def seen() -> dict[str, Any]:
            body = self.get("consumergroups", name)
            status = body.get("status", {})
            counts = (status.get("readyReplicas"), status.get("replicas"), status.get("targetReplicas"))
            assert counts == (count, count, count), status
            return body

        return eventually(seen, timeout_s=timeout_s, what=f"{count} ready workers of {name}")


@pytest.fixture(scope="session")
def reader(api: ApiServer) -> Iterator[Reader]:
    with Reader(api.kubeconfig) as made:
        yield made


@pytest.fixture(scope="session")
def site(api: ApiServer, reader: Reader) -> Callable[..., Site]:
    """Makes a fresh namespace."""
    numbers = itertools.count(1)

    def make(name: str = "test") -> Site:
        made = Site(api, reader, f"{name}-{next(numbers)}")
        made.apply(objects.namespace(made.name))
        return made

    return make
