"""The start of the tests' brokers: an archive of their loaded classes, and formatted storage.

Both are made once for each version of Kafka and of the JVM, and kept in the cache. A suite starts dozens of brokers;
without them each start loads and verifies 9,000 classes and runs a second JVM to format (15 processor seconds, with
them 4).
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import run
from e2e.local_cluster.daemons import Daemon, free_ports
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import QUICK_JVM, find_java, format_properties, java_command, node_properties
from e2e.local_cluster.waiting import wait_until
from tests.support.kafka_topics import make_topics

__all__ = ["ADDRESS", "STARTED", "new_cluster_id", "quick_jvm", "static_quorum", "write_storage"]

ADDRESS: Final = "127.0.0.1"
TIMEOUT_S: Final = 180.0
STARTED: Final = b"Kafka Server started"
"""The log line of a broker whose listeners are open and which its controller has accepted."""
ARCHIVE: Final = "kafka.jsa"
BOOTSTRAP_RECORDS: Final = "bootstrap.checkpoint"
"""The first metadata records of a cluster: features without names, so equal for every cluster of this version."""


def quick_jvm() -> list[str]:
    """Options of a JVM with Kafka's class path that starts quickly; another class path may only append to it.

    It maps the classes that a broker loads into its memory (class data sharing, JEP 350).
    """
    # Another JVM's archive is ignored; the warning would go to standard output, between a tool's lines.
    return [*QUICK_JVM, "-Xshare:auto", f"-XX:SharedArchiveFile={_template() / ARCHIVE}", "-Xlog:cds*=off"]


def new_cluster_id() -> str:
    """A cluster id in the form of Kafka's own tool."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def static_quorum(settings: Mapping[str, str], controllers: Mapping[int, str], *, node_id: int) -> dict[str, str]:
    """A node's settings with configured voters: no node is first, so all can be formatted and started at once.
    `controllers` has their addresses by node id."""
    voters = ",".join(f"{node}@{address}" for node, address in controllers.items())
    others = {key: value for key, value in settings.items() if key != "controller.quorum.bootstrap.servers"}
    return others | {"node.id": str(node_id), "controller.quorum.voters": voters}


def write_storage(data: Path, *, node_id: int, cluster_id: str) -> None:
    """Write what `StorageTool format` writes for a node of a static quorum without SCRAM users."""
    data.mkdir(parents=True)
    shutil.copy(_template() / BOOTSTRAP_RECORDS, data)
    fields = {"version": "1", "node.id": node_id, "cluster.id": cluster_id, "directory.id": new_cluster_id()}
    (data / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in fields.items()))


@functools.cache
def _template() -> Path:
    jars, java = ensure_kafka_jars(), find_java().resolve()
    # The release file names vendor and build. The JVM compares the class path, so its folder counts too.
    marks = (java.parent.parent / "release").read_bytes() + str(jars).encode() + repr(QUICK_JVM).encode()
    folder = fleet_home() / "jars" / f"{jars.name}-start-{hashlib.sha256(marks).hexdigest()[:8]}"
    return cache_entry(folder, lambda into: _make(into, java, jars), purpose="recording a broker's classes")


def _make(into: Path, java: Path, jars: Path) -> None:
    """Run a broker that writes its archive at its end, with the work of most tests."""
    with tempfile.TemporaryDirectory(prefix="fleet-kafka-") as scratch:
        plain, controller = (f"{ADDRESS}:{port}" for port in free_ports(2, ADDRESS))
        data, properties = Path(scratch, "data"), Path(scratch, "server.properties")
        listeners = {"PLAINTEXT": plain}
        settings = node_properties(
            data=str(data), listeners=listeners, advertised=listeners, controller=controller, inter_broker="PLAINTEXT"
        )
        properties.write_text(format_properties(static_quorum(settings, {1: controller}, node_id=1)))
        arguments = ("format", f"--cluster-id={new_cluster_id()}", "--config", str(properties))
        run(java_command(java, jars, "kafka.tools.StorageTool", *arguments, options=QUICK_JVM), reason="BuildFailed")
        shutil.copy(data / BOOTSTRAP_RECORDS, into)
        log = Path(scratch, "broker.log")
        options = [*QUICK_JVM, f"-XX:ArchiveClassesAtExit={into / ARCHIVE}", "-Xlog:cds*=off"]
        broker = Daemon("kafka", java_command(java, jars, "kafka.Kafka", str(properties), options=options), log=log)
        try:
            broker.start()
            wait_until(lambda: STARTED in log.read_bytes(), what="a broker to start", timeout_s=TIMEOUT_S)
            _use(plain)
        finally:
            broker.stop(TIMEOUT_S)
        if not (into / ARCHIVE).exists():
            raise ClusterError("BuildFailed", f"the JVM wrote no archive of its classes: {broker.log_tail()}")


def _use(bootstrap: str) -> None:
    """Create a topic, write to it in a transaction and read it as a member of a group."""
    topic, group = "classes", "classes"
    make_topics(AdminClient({"bootstrap.servers": bootstrap}), [NewTopic(topic, 1, 1)])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "classes"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"record")
    producer.commit_transaction(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(1.0) is not None, what="the record", timeout_s=TIMEOUT_S)
        consumer.commit()
    finally:
        consumer.close()
