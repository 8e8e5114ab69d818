"""librdkafka's configuration: what is always set, what users may set, what never appears."""

from __future__ import annotations

import confluent_kafka
import pytest

from fleet_consumer.librdkafka.settings import (
    ALLOWED_PRODUCER_PROPERTIES,
    ALLOWED_PROPERTIES,
    CONSUMER_DEFAULTS,
    PropertyNotAllowed,
    check_properties,
    connection_config,
    consumer_config,
    observation_config,
    producer_config,
)
from fleet_consumer.net import ConnectionSettings, SaslSettings, TlsSettings
from tests.support.waiting import eventually


def connection(**changes: object) -> ConnectionSettings:
    return ConnectionSettings(bootstrap_servers=("a:1", "b:2"), client_id="me", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [(False, False, "PLAINTEXT"), (True, False, "SSL"), (False, True, "SASL_PLAINTEXT"), (True, True, "SASL_SSL")],
)
def test_security_protocol_follows_from_the_credentials(tls: bool, sasl: bool, protocol: str) -> None:
    config = connection_config(
        connection(
            tls=TlsSettings(ca_file="/ca.pem") if tls else None,
            sasl=SaslSettings(mechanism="PLAIN", username="u", password="p") if sasl else None,
        )
    )
    assert config["security.protocol"] == protocol
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert ("ssl.ca.location" in config) == tls
    assert ("sasl.password" in config) == sasl


def test_refused_passwords_are_not_tried_hotly() -> None:
    sasl = SaslSettings(mechanism="PLAIN", username="u", password="p")
    assert connection_config(connection(sasl=sasl))["reconnect.backoff.max.ms"] >= 10_000


def test_librdkafka_never_joins_commits_or_resets_on_its_own() -> None:
    config = consumer_config(connection(), "g", "read_committed", {"queued.min.messages": "500"})
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False
    assert config["auto.offset.reset"] == "error"
    assert config["isolation.level"] == "read_committed"
    assert config["queued.min.messages"] == "500"
    assert not {"group.instance.id", "partition.assignment.strategy"} & config.keys()


def test_every_property_that_we_name_exists_in_librdkafka() -> None:
    config = consumer_config(connection(), "g", "read_committed", {})
    known = {name: value for name, value in config.items() if name not in ("logger", "bootstrap.servers")}
    confluent_kafka.Consumer(known).close()
    values = {
        "check.crcs": "true",
        "client.rack": "r",
        "fetch.max.bytes": "2000000",
        "receive.message.max.bytes": "200000000",
        "socket.keepalive.enable": "true",
        "socket.nagle.disable": "true",
    }
    for name in ALLOWED_PROPERTIES:
        confluent_kafka.Consumer({"group.id": "g", "log_level": 0, name: values.get(name, "100000")}).close()


def test_producer_s_properties_exist_in_librdkafka_and_touch_nothing_that_we_rely_on() -> None:
    values = {"compression.type": "zstd", "compression.level": "3", "linger.ms": "5"}
    values |= {"socket.keepalive.enable": "true", "socket.nagle.disable": "true"}
    for name in ALLOWED_PRODUCER_PROPERTIES:
        confluent_kafka.Producer({"log_level": 0, name: values.get(name, "100000")}).close()
    assert not {"acks", "enable.idempotence", "partitioner"} & ALLOWED_PRODUCER_PROPERTIES
    with pytest.raises(PropertyNotAllowed, match=r"acks, bootstrap\.servers cannot be set; allowed are batch"):
        producer_config(connection(), {"acks": "0", "bootstrap.servers": "x"})
    assert producer_config(connection(), {"connections.max.idle.ms": "9000"})["connections.max.idle.ms"] == "9000"


def test_no_connection_is_kept_for_longer_than_load_balancers_remember_it() -> None:
    """Azure's forget a connection after four minutes without a word; a request on it waits for a time-out."""
    for config in (producer_config(connection(), {}), consumer_config(connection(), "g", "read_committed", {})):
        assert config["connections.max.idle.ms"] < 240_000
        assert config["socket.keepalive.enable"] is True
        assert config["socket.timeout.ms"] <= 30_000
    assert connection().connections_max_idle_ms < 240_000


def test_forbidden_settings_are_refused_with_all_names() -> None:
    with pytest.raises(PropertyNotAllowed, match=r"bootstrap\.servers, enable\.auto\.commit cannot be set"):
        check_properties({"enable.auto.commit": "true", "bootstrap.servers": "x", "client.rack": "r"})


def test_statistics_callback_that_raises_is_logged_and_reading_continues(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def record(statistics: str) -> None:
        told.append(statistics)
        raise ValueError("mine")

    config = observation_config(record, 20, "fetch", 7)
    assert (config["debug"], config["log_level"]) == ("fetch", 7)
    consumer = confluent_kafka.Consumer({"group.id": "g", **config, "log_level": 0})
    try:
        eventually(lambda: (consumer.poll(0.05), len(told) >= 2)[1], timeout_s=20, what="statistics twice")
    finally:
        consumer.close()
    assert told[0].startswith("{")
    assert "the statistics callback failed" in caplog.text


def test_crcs_are_checked_by_default() -> None:
    assert consumer_config(connection(), "g", "read_committed", {})["check.crcs"] is True
    assert consumer_config(connection(), "g", "read_committed", {"check.crcs": "false"})["check.crcs"] == "false"


def test_nothing_that_we_rely_on_may_be_set() -> None:
    changeable = {"check.crcs", "queued.min.messages", "queued.max.messages.kbytes", "fetch.queue.backoff.ms"}
    assert not (CONSUMER_DEFAULTS.keys() - changeable) & ALLOWED_PROPERTIES
