"""Brokers with TLS and SASL: the worker's own login with the mounted files, and no secret in a log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.security import token_server
from tests.broker.workers import Kafka
from tests.spark.scene import Place, Scene, every, origins
from tests.support.kafka import KafkaBroker
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET


@pytest.fixture(scope="module")
def secured(place: Place) -> Iterator[tuple[KafkaBroker, Place]]:
    """A broker with TLS, client certificates and SASL listeners."""
    with KafkaBroker(tls="mutual", sasl_users={"shop": "plain-secret"}) as broker:
        yield broker, Place(Kafka(broker.bootstrap), broker.bootstrap, place.python)


def test_scram_over_tls_and_a_client_certificate(secured: tuple[KafkaBroker, Place], tmp_path: Path) -> None:
    broker, place = secured
    login = tmp_path / "login"
    login.mkdir()
    (login / "username").write_text("shop\n")
    (login / "password").write_text("plain-secret\n")
    tls = {"caFile": broker.pki.ca_file, "certFile": None, "keyFile": None}
    sasl: dict[str, Any] = {"mechanism": "SCRAM-SHA-512", "directory": str(login), "identity": None, "oauth": None}
    with Scene(place, tmp_path / "a") as scene:
        sink = f"{scene.name}-sink"
        scene.kafka.create(sink)
        scene.send(100)
        connection: dict[str, Any] = {"bootstrapServers": [broker.sasl_tls_bootstrap], "tls": tls, "sasl": sasl}
        worker: dict[str, Any] = {"worker.connection": connection}
        driver = scene.run(sink={"topic": sink, "parquet": None}, **worker)
        assert len(scene.kafka.read(sink)) == 100
        said = driver.log.read_text() + driver.output.read_text() + str(scene.api.data("bf-ledger"))
        assert "plain-secret" not in said
        own: dict[str, Any] = {
            "caFile": broker.pki.ca_file,
            "certFile": broker.pki.cert_file,
            "keyFile": broker.pki.key_file,
        }
        connection = {"bootstrapServers": [broker.mutual_bootstrap], "tls": own, "sasl": None}
        scene.api.put("third", {})
        mutual: dict[str, Any] = {"worker.connection": connection, "ledger": "third"}
        scene.run(sink=scene.parquet, id="id-three", **mutual)
        assert origins(scene.rows(of="id-three")) == every({0: 50, 1: 50})


def test_tokens_of_oauthbearer(place: Place, tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.mkdir()
    (login / "clientId").write_text(CLIENT_ID)
    (login / "clientSecret").write_text(CLIENT_SECRET)
    with KafkaBroker(tls="mutual", oauth=True) as broker, token_server(broker) as tokens:
        tls = {"caFile": broker.pki.ca_file, "certFile": None, "keyFile": None}
        oauth = {"tokenEndpoint": tokens.url, "scope": "kafka"}
        sasl = {"mechanism": "OAUTHBEARER", "directory": str(login), "identity": None, "oauth": oauth}
        where = Place(Kafka(broker.bootstrap), broker.bootstrap, place.python)
        with Scene(where, tmp_path / "a") as scene:
            sink = f"{scene.name}-sink"
            scene.kafka.create(sink)
            scene.send(100)
            connection: dict[str, Any] = {"bootstrapServers": [broker.sasl_tls_bootstrap], "tls": tls, "sasl": sasl}
            worker: dict[str, Any] = {"worker.connection": connection}
            scene.run(sink={"topic": sink, "parquet": None}, **worker)
            assert len(scene.kafka.read(sink)) == 100
