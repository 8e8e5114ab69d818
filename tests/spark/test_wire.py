"""Bytes between the processes of a Backfill: driver, its JVM, and an executor in a JVM of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from fleet_operator.planning.backfill.manifests import SECURE
from tests.broker.workers import Kafka
from tests.spark.scene import Place, Scene, every, origins
from tests.support.kafka import KafkaBroker
from tests.support.spark import ensure_driver_classes
from tests.support.suites import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a raw socket needs root")

PASSWORD = "Wire-Visible-Secret-4711"
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
"""Constants of Linux that Python's socket does not have."""


@contextmanager
def captured(words: dict[str, bytes]) -> Iterator[set[str]]:
    """The names of the words that cross the loopback interface meanwhile."""
    seen: set[str] = set()
    end = Event()
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(ETH_P_ALL))

    def listen() -> None:
        while not end.is_set():
            try:
                data = raw.recv(200_000)
            except TimeoutError:
                continue
            seen.update(name for name, word in words.items() if word in data)

    with raw:
        raw.bind(("lo", 0))
        raw.settimeout(0.2)
        raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        listener = Thread(target=listen)
        listener.start()
        try:
            yield seen
        finally:
            end.set()
            listener.join()


def apart(python: Path) -> dict[str, Any]:
    """An executor in a process of its own, as on a cluster, with the operator's settings of the wire."""
    packages = next(python.parents[1].glob("lib/python*/site-packages/pyspark"))
    # On Kubernetes Spark makes the secret.
    secure = {**SECURE, "spark.authenticate.secret": "of-this-test", "spark.executor.memory": "500m"}
    secure["spark.executor.extraJavaOptions"] = " ".join(["-XX:TieredStopAtLevel=1", *ensure_driver_classes()])
    environment = {"PYTHONPATH": str(ROOT / "consumer_image"), "PYTHONDONTWRITEBYTECODE": "1"}
    conf = secure | {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    java = Path("/usr/bin/java").resolve().parents[1]
    return {
        "master": "local-cluster[1,1,500]",
        "conf": " ".join(f"--conf '{name}={value}'" for name, value in conf.items()),
        "environment": {"SPARK_HOME": str(packages), "JAVA_HOME": str(java)},
    }


def test_neither_password_nor_key_crosses_the_wire(place: Place, tmp_path: Path) -> None:
    """Kafka's own wire shows neither, and Spark's tasks hold both; records that a producer writes prove the capture."""
    with KafkaBroker(tls="mutual", sasl_users={"shop": PASSWORD}) as broker:
        login = tmp_path / "login"
        login.mkdir()
        (login / "username").write_text("shop")
        (login / "password").write_text(PASSWORD)
        key = Path(broker.pki.key_file).read_bytes().splitlines()
        words = {"password": PASSWORD.encode(), "key": key[2], "first line of the key": key[1], "record": b"k17"}
        sasl = {"mechanism": "SCRAM-SHA-512", "directory": str(login), "identity": None, "oauth": None}
        files = {"caFile": broker.pki.ca_file, "certFile": broker.pki.cert_file, "keyFile": broker.pki.key_file}
        connection = {"bootstrapServers": [broker.sasl_tls_bootstrap], "tls": files, "sasl": sasl}
        worker: dict[str, Any] = {"worker.connection": connection}
        where = Place(Kafka(broker.bootstrap), broker.bootstrap, place.python)
        with Scene(where, tmp_path / "a", **apart(place.python)) as scene, captured(words) as seen:
            scene.send(100)
            scene.run(sink=scene.parquet, **worker)
            assert origins(scene.rows()) == every({0: 50, 1: 50})
        assert seen == {"record"}
