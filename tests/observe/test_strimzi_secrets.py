"""Secrets of Strimzi's shape, mounted as the operator renders them and rotated under load: each record is handled once.

One KafkaCluster each for a TLS user and a SCRAM user. The broker restarts at each step, as Strimzi's brokers do, so
that all clients connect again with what they have then.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from e2e.strimzi import CLUSTER_CA_SECRET, Strimzi, scram_user
from fleet_consumer.contract import naming
from fleet_consumer.net import AuthenticationFailed, NetworkClient
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster
from fleet_operator.planning.fleet.revision import plan_revision
from fleet_operator.reconcilers.credentials import SecretReader
from tests.broker.members import unique
from tests.broker.workers import QUIET, Kafka, Worker, _origin
from tests.support.kafka import KafkaBroker
from tests.support.kafka_security import BROKER_NAMES
from tests.support.mounted_pod import MountedPod
from tests.support.waiting import eventually
from tests.support.writing import SureProducer
from tests.unit.runtime.memory_kube import MemoryKube

PATIENCE_S = 240.0
PARTITIONS = 3
USER = "shop"
PAUSE_S = 0.01

HANDLER = """
from pathlib import Path

from fleet_consumer import Produce

CALLS = Path("FOLDER") / "calls"

def handle(record):
    with CALLS.open("a") as calls:
        calls.write(f"{record.partition}-{record.offset}\\n")
    return Produce("OUTPUT", record.value, key=f"{record.partition}-{record.offset}")
"""


class Load:
    """Writes records all the time, over a listener that no rotation touches; the broker's restarts are waited out."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        # Without idempotence a restarted broker may hold a record twice.
        settings = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "enable.idempotence": True, **QUIET}
        self._producer = SureProducer(settings)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self._producer.produce(self._topic, b"%d" % self.written, partition=self.written % PARTITIONS)
            self._producer.poll(0)
            self.written += 1


class Scene:
    """A worker whose pod is rendered from a KafkaCluster, and the operator's own connection by the same object."""

    def __init__(self, broker: KafkaBroker, folder: Path, spec: dict[str, Any]) -> None:
        self.broker, self.folder = broker, folder
        self.kafka = Kafka(broker.bootstrap)
        self.name = unique("strimzi")
        self.output = f"{self.name}-done"
        self.kafka.create(self.name, self.output, naming.failed_topic(self.name), partitions=PARTITIONS)
        head = {"namespace": "default", "uid": "0d9c2f3e-7a51-4b7e-9d5e-1f6f6f4c0001", "generation": 1}
        self._cluster = KafkaCluster.model_validate({"metadata": {**head, "name": "main"}, "spec": spec})
        group = {
            "clusterRef": {"name": "main"},
            "groupId": self.name,
            "topics": [self.name],
            "handler": {
                "python": {"callable": "handler:handle", "configMapRef": {"name": "h"}},
                "outputs": [self.output],
            },
            "consumer": {"commitIntervalSeconds": 1},
        }
        source = HANDLER.replace("FOLDER", str(folder)).replace("OUTPUT", self.output)
        revision = plan_revision(
            ConsumerGroup.model_validate({"metadata": {**head, "name": self.name}, "spec": group}),
            self._cluster,
            handler_files={"handler.py": source},
            image="worker:1",
        )
        self.pod = MountedPod(revision, folder)
        self.secrets: dict[str, dict[str, Any]] = {}

    def set(self, *secrets: dict[str, Any], mount: bool = True) -> None:
        """Write Secrets; with `mount` False the kubelet has not seen them yet."""
        for secret in secrets:
            secret["metadata"]["namespace"] = "default"
            self.secrets[secret["metadata"]["name"]] = secret
        if mount:
            self.pod.sync(self.secrets)

    def worker(self) -> Worker:
        return Worker(self.pod.settings(), self.folder)

    def operator_reaches(self) -> int:
        """Number of brokers that the operator sees with the Secrets as they are. Raises NetError."""

        async def read() -> Any:
            kube = MemoryKube()
            for secret in self.secrets.values():
                await kube.create(secret)
            return await SecretReader(kube, "default").observer_settings(self._cluster)

        settings = asyncio.run(read())
        folder = self.folder / "operator"
        folder.mkdir(exist_ok=True)
        client = NetworkClient(settings.connection(folder))
        try:
            return len(client.metadata((), timeout_s=PATIENCE_S).brokers)
        finally:
            client.close()

    def done(self) -> Counter[tuple[int, int]]:
        """The number of outputs of each record."""
        return Counter(_origin(each.key) for each in self.kafka.read(self.output))

    def wait_done(self, count: int) -> None:
        """Wait until so many records are handled, later ones too."""
        eventually(
            lambda: sum(self.kafka.end_offsets(self.output).values()) >= count,
            timeout_s=PATIENCE_S,
            what=f"{count} records to be handled",
            poll_s=0.2,
        )

    def wait_flowing(self, load: Load) -> None:
        """Wait until everything is handled that is written by now, and so both clients of the worker work."""
        self.wait_done(load.written)

    def assert_each_once(self, load: Load, *, refused: bool) -> None:
        """Every record was handled once, its output was written, and everything is committed.

        With `refused` the brokers refused the producer's certificate: it had to be replaced while it waited for
        acknowledgements, and an output whose acknowledgement got lost is written again.
        """
        load.end()
        self.wait_done(load.written)
        ends = self.kafka.end_offsets(self.name)
        eventually(
            lambda: self.kafka.committed(self.name, self.name) == ends, timeout_s=PATIENCE_S, what="all to be committed"
        )
        expected = {(number, offset): 1 for number, end in ends.items() for offset in range(end)}
        calls = Counter(_origin(line.encode()) for line in (self.folder / "calls").read_text().split())
        assert len(expected) == load.written
        assert {origin: calls[origin] for origin in expected | calls if calls[origin] != 1} == {}
        done = self.done()
        assert done.keys() == expected.keys()
        assert refused or max(done.values()) == 1, {origin: count for origin, count in done.items() if count > 1}
        assert self.kafka.read(naming.failed_topic(self.name)) == []


@contextmanager
def restarted(broker: KafkaBroker) -> Iterator[None]:
    """Stop the broker for the block; its clients connect again afterwards."""
    broker.stop()
    yield
    broker.start()


def roll(broker: KafkaBroker, strimzi: Strimzi, generation: int | None = None) -> None:
    """Restart the broker with a certificate of the cluster's authority, by an earlier key if one is named."""
    with restarted(broker):
        provide(broker, strimzi, generation)


def provide(broker: KafkaBroker, strimzi: Strimzi, generation: int | None = None) -> None:
    keystore, truststore = strimzi.broker_files(BROKER_NAMES, generation)
    broker.pki.keystore.write_text(keystore)
    broker.pki.truststore.write_text(truststore)


def test_tls_user_and_cluster_authority_are_rotated_under_load(tmp_path: Path) -> None:
    """A new key of the cluster's authority, step by step as Strimzi does it, then a new clients' authority."""
    strimzi = Strimzi(tmp_path / "ca")
    broker = KafkaBroker(tls="mutual", properties={"group.min.session.timeout.ms": "1000"})
    provide(broker, strimzi)
    with broker:
        tls = {
            "caSecretRef": {"name": CLUSTER_CA_SECRET, "pattern": "*.crt"},
            "clientCertSecretRef": {"name": USER, "certKey": "user.crt", "keyKey": "user.key"},
        }
        scene = Scene(broker, tmp_path, {"bootstrapServers": [broker.mutual_bootstrap], "tls": tls})
        scene.set(strimzi.cluster_ca_secret(), strimzi.tls_user(USER))
        with scene.worker() as worker, Load(scene.kafka, scene.name) as load:
            worker.wait_ready()
            scene.wait_done(1)  # by a producer that has read the first authority alone
            assert scene.operator_reaches() == 1

            def step(change: Callable[[], None]) -> None:
                scene.wait_flowing(load)
                change()
                scene.wait_flowing(load)
                assert scene.operator_reaches() == 1

            strimzi.replace_cluster_key()
            scene.set(strimzi.cluster_ca_secret())
            assert len([key for key in scene.secrets[CLUSTER_CA_SECRET]["data"] if key.endswith(".crt")]) == 2
            step(lambda: roll(broker, strimzi, generation=0))  # trusts the new authority, shows the old certificate
            wait_authorities_read(worker)
            step(lambda: roll(broker, strimzi))
            strimzi.forget_old_authorities()
            scene.set(strimzi.cluster_ca_secret())
            step(lambda: roll(broker, strimzi))

            def renew_user() -> None:
                """The kubelet is late: until it has written the renewed Secret nobody is let in."""
                strimzi.replace_clients_key()
                scene.set(strimzi.tls_user(USER), mount=False)
                roll(broker, strimzi)
                worker.wait_error("ClientCertificateRefused")
                scene.set()

            assert max(scene.done().values()) == 1
            step(renew_user)
            scene.assert_each_once(load, refused=True)
            assert_one_session(worker)


def test_password_of_a_scram_user_is_changed_under_load(tmp_path: Path) -> None:
    strimzi = Strimzi(tmp_path / "ca")
    broker = KafkaBroker(tls=True, sasl_users={USER: "first"}, properties={"group.min.session.timeout.ms": "1000"})
    provide(broker, strimzi)
    with broker:
        spec = {
            "bootstrapServers": [broker.sasl_tls_bootstrap],
            "tls": {"caSecretRef": {"name": CLUSTER_CA_SECRET, "pattern": "*.crt"}},
            "sasl": {"mechanism": "SCRAM-SHA-512", "username": USER, "secretRef": {"name": USER}},
        }
        scene = Scene(broker, tmp_path, spec)
        scene.set(strimzi.cluster_ca_secret(), scram_user(USER, "first"))
        with scene.worker() as worker, Load(scene.kafka, scene.name) as load:
            worker.wait_ready()
            scene.wait_flowing(load)
            assert scene.operator_reaches() == 1
            change_password(broker, "second")
            with restarted(broker):
                pass
            message = worker.wait_error("AuthenticationFailed")
            assert "first" not in message
            with pytest.raises(AuthenticationFailed):
                scene.operator_reaches()
            scene.set(scram_user(USER, "second"))
            scene.wait_flowing(load)
            assert scene.operator_reaches() == 1
            scene.assert_each_once(load, refused=False)
            assert_one_session(worker)


def wait_authorities_read(worker: Worker) -> None:
    """Wait until the worker's producer has taken up renewed authorities; Strimzi leaves more time than these steps."""
    eventually(
        lambda: any("the producer is replaced" in line["message"] for line in worker.lines()),
        timeout_s=PATIENCE_S,
        what="the producer to read the renewed authorities",
        poll_s=0.2,
    )


def assert_one_session(worker: Worker) -> None:
    """The worker neither restarted nor joined again."""
    assert worker.running
    assert len([line for line in worker.lines() if line["message"] == "partitions assigned"]) == 1


def change_password(broker: KafkaBroker, password: str) -> None:
    """Change the user's password in Kafka, as Strimzi's User Operator does."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    change = UserScramCredentialUpsertion(USER, info, password.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(PATIENCE_S)
