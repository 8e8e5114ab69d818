"""Addresses of brokers in every form that Java's clients take."""

from __future__ import annotations

import pytest

from fleet_consumer.net import BrokerAddress, ConnectionSettings, TlsSettings, parse_address
from fleet_operator.api.v1alpha1 import KafkaCluster


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("broker-0.kafka:9092", "broker-0.kafka", 9092),
        ("broker", "broker", 9092),
        (" broker:1 ", "broker", 1),
        ("SASL_SSL://broker:9093", "broker", 9093),
        ("my-listener.1://10.0.0.1:9093", "10.0.0.1", 9093),
        ("[::1]:9092", "::1", 9092),
        ("[fe80::1%eth0]:9092", "fe80::1%eth0", 9092),
        ("PLAINTEXT://[2001:db8::7]:9092", "2001:db8::7", 9092),
        ("2001:db8::7:9092", "2001:db8::7", 9092),
        ("kafka.shop.svc.cluster.local.:9092", "kafka.shop.svc.cluster.local.", 9092),
        ("kafka_1:9092", "kafka_1", 9092),
    ],
)
def test_address_is_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == BrokerAddress(host, port)


@pytest.mark.parametrize(
    "text", ["", ":9092", "a b:1", "broker:0", "broker:65536", "broker:port", "//broker:1", "[::1:9092"]
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        parse_address(text)


def settings(*strings: str, tls: bool = False) -> ConnectionSettings:
    return ConnectionSettings(bootstrap_servers=strings, client_id="c", tls=TlsSettings() if tls else None)


def test_one_text_may_list_several_addresses() -> None:
    found = settings("a:1, SSL://b:2,", "[::1]:3")
    assert [str(each) for each in found.bootstrap_addresses] == ["a:1", "b:2", "[::1]:3"]
    assert found.bootstrap_text == "a:1,b:2,[::1]:3"
    with pytest.raises(ValueError, match="is not host:port"):
        settings(" , ")


def test_names_are_compared_with_certificates_without_the_dot_that_ends_an_absolute_one() -> None:
    assert settings("kafka.example.com.:9093", tls=True).bootstrap_text == "kafka.example.com:9093"
    assert settings("kafka.example.com.:9092").bootstrap_text == "kafka.example.com.:9092"
    assert parse_address("kafka.example.com.:9093").certified == "kafka.example.com"
    assert parse_address("[fe80::1%eth0]:9093").certified == "fe80::1"


@pytest.mark.parametrize(
    "text", ["SASL_SSL://b:9093", "a:1,b:2", "a:1, b:2", "[fe80::1%eth0]:9092", "::1:9092", "kafka.svc.:9092"]
)
def test_kafka_cluster_takes_these_forms_too(text: str) -> None:
    body = {"metadata": {"name": "main", "namespace": "shop"}, "spec": {"bootstrapServers": [text]}}
    assert settings(*KafkaCluster.model_validate(body).spec.bootstrap_servers).bootstrap_addresses
