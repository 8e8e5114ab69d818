"""From Strimzi's Secrets to Ready fleets on brokers with TLS; certificates and a password rotate under load.

Only the broker is restarted, and every record is handled once. The session timeout is longer than the kubelet's
delay, because a member that cannot log in for longer is removed from its group.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.cluster import PATIENCE_S, Cluster, CommandFailed, WaitedTooLong, conditions, eventually
from e2e.demo.fleet import TOOLS, FlightFleet
from e2e.install import Installation
from e2e.local_cluster.access import foreign_kubeconfig
from e2e.strimzi import CLUSTER_CA_SECRET, Strimzi, scram_user
from e2e.strimzi_kafka import StrimziKafka

NAMESPACE: Final = "strimzi"
BY_CERTIFICATE, BY_PASSWORD = "by-certificate", "by-password"
GROUPS: Final = (BY_CERTIFICATE, BY_PASSWORD)
API_VERSION: Final = "consumerfleet.io/v1alpha1"
PAUSE_S: Final = 0.5
BATCH: Final = 20

HANDLER: Final = """
import json

from fleet_consumer import Produce


def handle(record):
    print(json.dumps({"handled": f"{record.partition}-{record.offset}"}), flush=True)
    return Produce(f"{record.topic}-done", record.value, key=f"{record.partition}-{record.offset}")
"""


class Scene:
    """The namespace with Kafka, Secrets, and a group for each kind of user, on a topic of its own name."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.cluster: Cluster = installation.cluster
        self.secrets = Strimzi(folder)
        self.tools = FlightFleet(self.cluster, namespace=NAMESPACE, consumer_image=installation.consumer_image)
        self.kafka = StrimziKafka(installation, NAMESPACE, self.secrets, {BY_PASSWORD: "first"})

    def make(self) -> None:
        self.cluster.ensure_namespace(NAMESPACE)
        self.kafka.start()
        self.tools.make_tools()
        self.inside("create-topics", "--partitions", "2", *GROUPS, *(f"{name}-done" for name in GROUPS))
        self.apply(
            self.secrets.cluster_ca_secret(),
            self.secrets.tls_user(BY_CERTIFICATE),
            scram_user(BY_PASSWORD, "first"),
            *self.manifests(),
        )
        self.wait_ready()

    def manifests(self) -> list[dict[str, Any]]:
        authority = {"name": CLUSTER_CA_SECRET, "pattern": "*.crt"}
        user = {"name": BY_CERTIFICATE, "certKey": "user.crt", "keyKey": "user.key"}
        login = {"mechanism": "SCRAM-SHA-512", "username": BY_PASSWORD, "secretRef": {"name": BY_PASSWORD}}
        clusters = {
            BY_CERTIFICATE: {
                "bootstrapServers": [self.kafka.bootstrap("TLS")],
                "tls": {"caSecretRef": authority, "clientCertSecretRef": user},
            },
            BY_PASSWORD: {
                "bootstrapServers": [self.kafka.bootstrap("SCRAM")],
                "tls": {"caSecretRef": authority},
                "sasl": login,
            },
        }
        source = {"name": "handler", "labels": {"consumerfleet.io/handler": "true"}}
        made: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": source, "data": {"handler.py": HANDLER}}
        ]
        for name, spec in clusters.items():
            python = {"callable": "handler:handle", "configMapRef": {"name": "handler"}}
            group = {
                "clusterRef": {"name": name},
                "groupId": name,
                "topics": [name],
                "handler": {"python": python, "outputs": [f"{name}-done"]},
                "consumer": {"commitIntervalSeconds": 1, "classic": {"sessionTimeoutSeconds": 300}},
            }
            head = {"apiVersion": API_VERSION, "metadata": {"name": name}}
            made += [{**head, "kind": "KafkaCluster", "spec": spec}, {**head, "kind": "ConsumerGroup", "spec": group}]
        return made

    def apply(self, *bodies: dict[str, Any]) -> None:
        self.cluster.apply(bodies, namespace=NAMESPACE)

    def inside(self, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
        """A command of the demo's tools, over the listener that no rotation touches."""
        program = ["python", "/demo/inside.py", "--bootstrap", self.kafka.bootstrap("PLAIN"), *arguments]
        command = ["exec", "--stdin", TOOLS, "--namespace", NAMESPACE, "--", *program]
        answer: dict[str, Any] = self.cluster.kubectl_json(*command, stdin=stdin, timeout_s=300.0)
        return answer

    def wait_ready(self) -> None:
        """Wait until both groups and both KafkaClusters are Ready."""

        def probe() -> bool:
            for name in GROUPS:
                for kind in ("kafkaclusters", "consumergroups"):
                    found = self.cluster.get(f"{kind}.consumerfleet.io", name, namespace=NAMESPACE)
                    ready = conditions(found).get("Ready", {})
                    assert ready.get("status") == "True", (kind, name, ready)
            return True

        eventually(probe, timeout_s=PATIENCE_S, what="both fleets are ready", poll_s=1.0)

    def pods(self) -> dict[str, tuple[str, int]]:
        """Uid and restarts of each worker."""
        found = self.cluster.list("pods", namespace=NAMESPACE, selector="app.kubernetes.io/component=worker")
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(entry["restartCount"] for entry in pod["status"]["containerStatuses"]),
            )
            for pod in found
        }

    def wait_mounted(self, authorities: int) -> None:
        """Wait until the kubelet has mounted so many authorities in both workers."""

        def probe() -> bool:
            for name in GROUPS:
                command = ["exec", f"{name}-fleet-0", "--namespace", NAMESPACE, "--container", "worker", "--"]
                program = "import os; print(*os.listdir('/etc/fleet/authorities'))"
                listed = self.cluster.kubectl(*command, "python", "-c", program)
                assert len([key for key in listed.split() if key.endswith(".crt")]) == authorities, listed
            return True

        eventually(probe, timeout_s=PATIENCE_S, what=f"{authorities} authorities are mounted", poll_s=2.0)

    def wait_drained(self) -> None:
        """Wait until both groups have committed everything."""

        def probe() -> bool:
            lags = {name: self.inside("lag", "--topic", name, "--group", name)["lag"] for name in GROUPS}
            assert not any(lags.values()), lags
            return True

        try:
            eventually(probe, timeout_s=PATIENCE_S, what="everything is committed", poll_s=2.0)
        except WaitedTooLong as error:
            error.add_note("\n".join(self.described(name) for name in GROUPS))
            raise

    def described(self, name: str) -> str:
        """A worker's own report and its last log lines."""
        read = (
            "import os, urllib.request as r; token = {'Authorization': 'Bearer ' + os.environ['FLEET_POD_UID']}; "
            "print(r.urlopen(r.Request('http://127.0.0.1:8080/member', headers=token)).read().decode())"
        )
        there = ["--namespace", NAMESPACE, "--container", "worker"]
        member = self.cluster.kubectl("exec", f"{name}-fleet-0", *there, "--", "python", "-c", read)
        lines = self.cluster.kubectl("logs", f"{name}-fleet-0", *there, "--tail=-1").splitlines()
        kept = [line for line in lines if '"handled"' not in line and "FAIL [" not in line]
        return "\n".join([member, *kept[-60:]])

    def handled(self, name: str) -> Counter[str]:
        """The number of calls of the handler for each record, from the worker's log."""
        text = self.cluster.kubectl(
            "logs", f"{name}-fleet-0", "--namespace", NAMESPACE, "--container", "worker", "--tail=-1"
        )
        return Counter(json.loads(line)["handled"] for line in text.splitlines() if line.startswith('{"handled"'))

    def count(self, name: str) -> dict[str, Any]:
        """Input and outcomes by origin, from the topics alone."""
        topics = ["--topic", name, "--output", f"{name}-done", "--failed", f"_fleet.{name}.failed"]
        return self.inside("count", *topics)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Write to both topics until the end of the block, through restarts of the broker."""
        stop = threading.Event()

        def run() -> None:
            number = 0
            while not stop.wait(PAUSE_S):
                values = "\n".join(str(number + each) for each in range(BATCH)).encode()
                for name in GROUPS:
                    try:
                        self.inside("write", "--keyed", "--topic", name, stdin=values)
                    except CommandFailed:
                        continue  # the broker restarts; the count uses the topic's content
                number += BATCH

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def strimzi(installation: Installation, tmp_path: Path) -> Iterator[Scene]:
    if foreign_kubeconfig():
        pytest.skip("the broker's data outlive its pod in a folder of the embedded cluster's node")
    made = Scene(installation, tmp_path)
    try:
        made.make()
        yield made
    except Exception as error:
        kinds = "pods,kafkaclusters,consumergroups"
        error.add_note(installation.cluster.kubectl("get", kinds, "--namespace", NAMESPACE, "--output", "wide"))
        raise
    finally:
        installation.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")


@pytest.mark.together
def test_secrets_of_strimzi_are_rotated_under_load(strimzi: Scene) -> None:
    before = strimzi.pods()
    assert {name: restarts for name, (_, restarts) in before.items()} == {f"{name}-fleet-0": 0 for name in GROUPS}
    with strimzi.load():
        # A new key of the cluster's authority: brokers present old certificates until all clients trust the new one.
        strimzi.secrets.replace_cluster_key()
        strimzi.apply(strimzi.secrets.cluster_ca_secret())
        strimzi.wait_mounted(authorities=2)
        strimzi.kafka.roll(generation=0)
        strimzi.wait_ready()
        strimzi.kafka.roll()
        strimzi.wait_ready()
        strimzi.secrets.forget_old_authorities()
        strimzi.apply(strimzi.secrets.cluster_ca_secret())
        # A new clients' authority and a new password. The kubelet updates files after the brokers.
        strimzi.secrets.replace_clients_key()
        strimzi.kafka.change_password(TOOLS, BY_PASSWORD, "second")
        strimzi.apply(strimzi.secrets.tls_user(BY_CERTIFICATE), scram_user(BY_PASSWORD, "second"))
        strimzi.kafka.roll()
        strimzi.wait_mounted(authorities=1)
        strimzi.wait_drained()
    strimzi.wait_drained()
    strimzi.wait_ready()
    assert strimzi.pods() == before, "workers are neither replaced nor restarted"
    for name in GROUPS:
        counted = strimzi.count(name)
        assert counted["in"] > 0
        # An output whose acknowledgement was lost with a refused certificate may be written twice.
        expected = {"done": counted["in"], "failed": 0, "lost": 0, "unknown": 0}
        assert {key: counted[key] for key in expected} == expected, (name, counted)
        handled = strimzi.handled(name)
        assert len(handled) == counted["in"]
        assert {record: calls for record, calls in handled.items() if calls > 1} == {}
