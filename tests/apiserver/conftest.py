"""Shared parts of the tests on a real API server: servers, the stand-in for nodes, one operator for most of them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.local_cluster.access import await_definitions
from tests.apiserver import objects
from tests.apiserver.client import Client, NotFoundError, RefusedError
from tests.apiserver.nodes import Nodes
from tests.broker.members import create_topic
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.programs import API_SERVER, build_before
from tests.support.together import play_together
from tests.support.waiting import eventually

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PARTITIONS = 6
AT_ONCE = 5
"""Tests of the shared operator that run at a time: each has its own namespace, and mostly waits."""
LEFT = (
    *("consumergroups", "backfills", "offsetresets", "redrives", "retrypolicies", "kafkaclusters"),
    *("statefulsets", "sparkapplications", "pods"),
)
"""Kinds that cost something while they are there, in the order in which they can be deleted: what owns goes first."""
PATIENCE_S = 180.0
"""For work of a few seconds on an idle machine. Only promised time limits are tighter."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, FOLDER, AT_ONCE)


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, FOLDER, API_SERVER)


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """An API server with our CRDs, on which one operator serves all namespaces."""
    with ApiServer() as server:
        install_crds(server)
        yield server


@pytest.fixture(scope="session")
def quiet_api() -> Iterator[ApiServer]:
    """An API server without an operator, except those that a test starts and stops, each for its own namespace."""
    with ApiServer() as server:
        install_crds(server)
        yield server


def install_crds(server: ApiServer) -> None:
    server.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    kinds = (
        "kafkaclusters",
        "consumergroups",
        "retrypolicies",
        "redrives",
        "backfills",
        "offsetresets",
        "operatorstates",
    )
    crds = (f"crd/{kind}.consumerfleet.io" for kind in kinds)
    await_definitions(server.kubectl, *crds, timeout_s=PATIENCE_S)


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker with topic `flights`, user alice, TLS and tokens; tests that stop a broker make their own."""
    properties = {"group.min.session.timeout.ms": "1000"}
    with KafkaBroker(properties=properties, sasl_users={"alice": "alice-secret"}, tls=True, oauth=True) as kafka:
        make_topic(kafka, "flights")
        yield kafka


def make_topic(kafka: KafkaBroker, name: str) -> None:
    """Create a topic with as many partitions as `flights`."""
    create_topic(kafka.bootstrap, PARTITIONS, name)


@pytest.fixture(scope="session")
def nodes(api: ApiServer) -> Iterator[Nodes]:
    with Nodes(str(api.kubeconfig)) as running:
        yield running


@pytest.fixture(scope="session")
def quiet_nodes(quiet_api: ApiServer) -> Iterator[Nodes]:
    with Nodes(str(quiet_api.kubeconfig)) as running:
        yield running


class Operator:
    """`fleet-operator run` as a process of its own; `before` is Python that runs in it first."""

    def __init__(self, api: ApiServer, *arguments: str, identity: str = "operator", before: str = "") -> None:
        self.log = Path(tempfile.mkstemp(prefix="fleet-operator-", suffix=".log")[1])
        program = [str(Path(sys.executable).parent / "fleet-operator")]
        if before:
            program = [sys.executable, "-c", f"{before}\nfrom fleet_operator.app import main\nmain()"]
        command = [*program, "run", "--log-format", "text"]
        ports = ["--health-port", "0", "--metrics-port", "0"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *ports, *arguments],
                stderr=log,
                env={**os.environ, "POD_NAME": identity, "KUBECONFIG": str(api.kubeconfig)},
            )

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

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
    """The operator of most tests, with its default settings, for all namespaces except those labelled otherwise."""
    with Operator(api) as running:
        eventually(lambda: "working" in running.log.read_text(), timeout_s=PATIENCE_S, what="the operator to work")
        yield running
        assert running.process.poll() is None, "the operator died"
        assert running.stop() == 0


@dataclass(frozen=True)
class Site:
    """One namespace of one test. Kinds are named by their plural."""

    api: ApiServer
    client: Client
    name: str

    def apply(self, *bodies: dict[str, Any]) -> None:
        """Apply objects as a user would, in their order."""
        for body in bodies:
            self.client.apply(body)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl with `text` as its input, for commands that users type. Everything else is faster without it."""
        return self.api.kubectl("-n", self.name, *arguments, input=text)

    def accepted(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the API server would store (dry run)."""
        return self.client.would_create(self.name, body)

    def refusal(self, body: dict[str, Any], *, replaces: bool = False) -> str:
        """Return the API server's message when it refuses an object, on one line; fail when it accepts it."""
        ask = self.client.would_replace if replaces else self.client.would_create
        try:
            ask(self.name, body)
        except RefusedError as refused:
            return str(refused)
        raise AssertionError(f"accepted: {json.dumps(body)}")

    def get(self, plural: str, name: str) -> dict[str, Any]:
        return self.client.get(plural, self.name, name)

    def every(self, plural: str, selector: str = "consumerfleet.io/group") -> list[dict[str, Any]]:
        return self.client.list(plural, self.name, selector)

    def names(self, plural: str, selector: str = "consumerfleet.io/group") -> list[str]:
        return sorted(body["metadata"]["name"] for body in self.every(plural, selector))

    def wait_names(self, plural: str, *names: str, selector: str = "consumerfleet.io/group") -> None:
        """Wait until the objects of a kind are exactly these."""

        def seen() -> bool:
            found = self.names(plural, selector)
            assert found == sorted(names), found
            return True

        eventually(seen, timeout_s=PATIENCE_S, what=f"{plural}: {', '.join(names) or 'none'}")

    def status(self, plural: str, name: str) -> dict[str, Any]:
        """The status of an object; empty if it has none yet."""
        found: dict[str, Any] = self.get(plural, name).get("status", {})
        return found

    def condition(self, kind: str, name: str, condition: str) -> dict[str, Any]:
        for found in self.status(kind, name).get("conditions", ()):
            if found["type"] == condition:
                return dict(found)
        return {}

    def wait_condition(
        self, kind: str, name: str, condition: str, *, status: str, reason: str, timeout_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Wait until a condition has this status and reason; return it."""

        def seen() -> dict[str, Any]:
            found = self.condition(kind, name, condition)
            assert (found.get("status"), found.get("reason")) == (status, reason), found
            return found

        return eventually(seen, timeout_s=timeout_s, what=f"{condition}={status} ({reason}) of {kind} {name}")

    def wait_ready_replicas(
        self, count: int, name: str = "flights", *, timeout_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Wait until the StatefulSet has this many ready workers and status shows them; return the ConsumerGroup."""

        def seen() -> dict[str, Any]:
            body = self.get("consumergroups", name)
            status = body.get("status", {})
            counts = (status.get("readyReplicas"), status.get("replicas"), status.get("targetReplicas"))
            assert counts == (count, count, count), status
            return body

        return eventually(seen, timeout_s=timeout_s, what=f"{count} ready workers of {name}")


@pytest.fixture
def site(api: ApiServer) -> Iterator[Callable[..., Site]]:
    """Make fresh namespaces that the operator serves, until the test ends.

    What a hundred tests leave would cost more than a test does: the operator reads their groups from Kafka, the
    stand-in lists their pods, and each list is longer than the one before.
    """
    made: list[Site] = []
    with Client(api.kubeconfig) as client:
        yield site_maker(api, client, made)
        for each, plural in itertools.product(made, LEFT):
            with suppress(NotFoundError):  # the CRD of SparkApplications is there for some tests only
                client.delete_all(plural, each.name)


@pytest.fixture(scope="session")
def quiet_site(quiet_api: ApiServer) -> Iterator[Callable[..., Site]]:
    """Make fresh namespaces that no operator serves."""
    with Client(quiet_api.kubeconfig) as client:
        yield site_maker(quiet_api, client, [])


_numbers = itertools.count(1)


def site_maker(api: ApiServer, client: Client, made: list[Site]) -> Callable[..., Site]:
    """A function that makes namespaces and adds them to `made`."""

    def make(name: str = "test") -> Site:
        place = Site(api, client, f"{name}-{next(_numbers)}")
        made.append(place)
        place.apply(objects.namespace(place.name))
        return place

    return make
