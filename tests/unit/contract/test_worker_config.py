"""worker.json is read strictly: what is refused names the field, and what this version cannot run is refused too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_consumer.contract.brokers import SaslSource, TlsSettings, TokenEndpoint
from fleet_consumer.contract.patterns import compile_pattern
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import HttpEndpoint, load_config, parse_config
from fleet_consumer.net import OAuthSettings
from fleet_consumer.worker.config.settings import (
    CredentialsUnreadable,
    connection_settings,
    consumer_settings,
    identify,
)
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.fleet.worker_config import worker_config
from tests.unit.worker.documents import changed, worker_document

ROOT = Path(__file__).resolve().parents[3]

PLAIN = {"mechanism": "PLAIN", "oauth": None}
LOGIN = {
    "mechanism": "OAUTHBEARER",
    "directory": "/x",
    "identity": None,
    "oauth": {"tokenEndpoint": "https://login.example/token", "scope": "kafka"},
}


def test_every_field_of_the_contracts_example_is_read() -> None:
    config = parse_config(worker_document())
    assert (config.group_id, config.topics, config.failed_topic) == ("flights", ("flights",), "_fleet.flights.failed")
    assert config.handler.python is not None
    assert config.handler.python.callable == "handler:handle"
    assert config.consumer.max_poll_records == 500
    assert config.brokers.tls is None
    assert config.policy_file is None


def test_retry_policies_stand_in_a_file_of_their_own() -> None:
    config = parse_config(worker_document(retry={"policyFile": "/etc/fleet/retry/policies.json"}))
    assert config.policy_file == "/etc/fleet/retry/policies.json"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("version", 2, "version: is 2; this worker reads only 1"),
        ("topics", [], "topics: must have at least 1 entry"),
        ("topics", "flights", "topics: must be a list of non-empty strings"),
        ("groupId", "two words", "groupId: is 'two words', which does not match"),
        ("revision", ..., "revision: is missing"),
        ("retry", ..., "retry: is missing"),
        ("retry", {"policyFile": ""}, "retry.policyFile: must be a non-empty string"),
        ("retry", {"policyFile": "/p", "delays": []}, "retry.delays: is not a setting that this version knows"),
        ("surprise", 1, "surprise: is not a setting that this version knows"),
        ("connection.sasl", {"mechanism": "GSSAPI", "directory": "/x"}, "connection.sasl.mechanism: is 'GSSAPI'"),
        ("connection.sasl", LOGIN | {"oauth": None}, "connection.sasl.oauth: goes with mechanism OAUTHBEARER"),
        ("connection.sasl", LOGIN | {"mechanism": "PLAIN"}, "connection.sasl.oauth: goes with mechanism OAUTHBEARER"),
        ("connection.sasl", LOGIN | {"oauth": {"scope": None}}, "connection.sasl.oauth.tokenEndpoint: is missing"),
        ("connection.tls", {"caFile": None, "certFile": "/c", "keyFile": None}, "certFile and keyFile go together"),
        ("connection", [], "connection: must be an object, not a list"),
        ("handler.timeoutSeconds", "60", "handler.timeoutSeconds: must be a whole number, not a string"),
        ("handler.timeoutSeconds", True, "handler.timeoutSeconds: must be a whole number, not true or false"),
        ("handler.timeoutSeconds", 0, "handler.timeoutSeconds: must be at least 1, not 0"),
        ("handler.decode.value", "Avro", "handler.decode.value: is 'Avro'; allowed are Bytes, String, Json"),
        ("handler.python.callable", "handler", "handler.python.callable: is 'handler', which does not match"),
        ("consumer.properties", {"a": 1}, "consumer.properties: must map names"),
        ("producer", {"properties": {"a": 1}}, "producer.properties: must map names"),
        ("producer", {"acks": "1"}, "producer.properties: is missing"),
        ("consumer.heartbeatIntervalSeconds", 45, "consumer.heartbeatIntervalSeconds: must be below session"),
        ("httpPort", 65536, "httpPort: must be 0 to 65535, not 65536"),
    ],
)
def test_bad_field_is_refused_by_its_path(path: str, value: Any, told: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        parse_config(changed(worker_document(), path, value))
    assert told in str(caught.value)


def test_pattern_stands_in_place_of_topics() -> None:
    document = changed(worker_document(), "topicPattern", "^orders\\..*")
    assert parse_config(changed(document, "topics", [])).topic_pattern == compile_pattern("^orders\\..*")
    with pytest.raises(SettingsInvalid, match="topicPattern: cannot be given together with `topics`"):
        parse_config(document)
    with pytest.raises(SettingsInvalid, match="topicPattern: '\\(' is not a usable regular expression: missing"):
        parse_config(changed(worker_document(), "topicPattern", "("))


def test_http_endpoint_stands_in_place_of_python() -> None:
    http = {"port": 9000, "path": "/records", "batch": True}
    document = changed(worker_document(), "handler.http", http)
    config = parse_config(changed(document, "handler.python", None))
    assert config.handler.http == HttpEndpoint(port=9000, path="/records", batch=True)
    assert config.handler.title == "http://127.0.0.1:9000/records"
    for both_or_none in (document, changed(worker_document(), "handler.python", None)):
        with pytest.raises(SettingsInvalid, match="handler: must have exactly one of `python` and `http`"):
            parse_config(both_or_none)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("consumer.protocol", "Consumer"),
    ],
)
def test_settings_of_a_later_version_are_refused_by_field(path: str, value: Any) -> None:
    with pytest.raises(SettingsInvalid, match="version") as caught:
        parse_config(changed(worker_document(), path, value))
    assert caught.value.field.startswith(path)


def test_file_that_cannot_be_read_or_parsed_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"cannot read .*missing"):
        load_config(str(tmp_path / "missing"))
    (tmp_path / "broken").write_text("{")
    with pytest.raises(SettingsInvalid, match="broken is not JSON"):
        load_config(str(tmp_path / "broken"))


def test_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "worker.json").write_text(json.dumps(worker_document()))
    assert load_config(str(tmp_path / "worker.json")) == parse_config(worker_document())


def test_pod_name_becomes_the_instance_id_of_a_static_member() -> None:
    identity = identify(parse_config(worker_document()), {"POD_NAME": "flights-12"})
    assert (identity.worker, identity.instance_id) == ("flights-12", "default.flights.0d9c2f3e-12")


def test_static_member_without_an_ordinal_is_refused() -> None:
    for environment in ({}, {"POD_NAME": "flights"}, {"POD_NAME": "flights-x"}):
        with pytest.raises(SettingsInvalid, match="POD_NAME"):
            identify(parse_config(worker_document()), environment)


def test_dynamic_member_needs_no_pod_name() -> None:
    config = parse_config(changed(worker_document(), "consumer.staticMembership", value=False))
    assert identify(config, {}).instance_id is None


def test_settings_become_kafkas_words(tmp_path: Path) -> None:
    (tmp_path / "username").write_text("alice\n")
    (tmp_path / "password").write_text("alice-secret\n")
    document = changed(
        worker_document(),
        "connection.sasl",
        {"mechanism": "PLAIN", "directory": str(tmp_path), "identity": None, "oauth": None},
    )
    document = changed(document, "connection.tls", {"caFile": "/ca.pem", "certFile": None, "keyFile": None})
    document = changed(document, "consumer.autoOffsetReset", "None")
    config = parse_config(changed(document, "consumer.isolationLevel", "ReadCommitted"))
    assert config.brokers.sasl == SaslSource(mechanism="PLAIN", directory=str(tmp_path), identity=None, oauth=None)
    assert config.brokers.tls == TlsSettings(ca_file="/ca.pem", cert_file=None, key_file=None)
    connection = connection_settings(config.brokers, "flights-0")
    assert connection.sasl is not None
    assert (connection.sasl.username, connection.sasl.password) == ("alice", "alice-secret")
    assert "alice-secret" not in repr(connection)
    consumer = consumer_settings(config, connection, identify(config, {"POD_NAME": "flights-0"}))
    assert (consumer.auto_offset_reset, consumer.isolation_level) == ("none", "read_committed")
    assert (consumer.session_timeout_ms, consumer.group_instance_id) == (45_000, "default.flights.0d9c2f3e-0")


def test_client_credentials_are_read_for_oauthbearer(tmp_path: Path) -> None:
    """The brokers' authority is trusted for the token endpoint too; a renewed secret makes other settings."""
    (tmp_path / "clientId").write_text("fleet\n")
    (tmp_path / "clientSecret").write_text("fleet-secret\n")
    document = changed(worker_document(), "connection.sasl", LOGIN | {"directory": str(tmp_path)})
    document = changed(document, "connection.tls", {"caFile": "/ca.pem", "certFile": None, "keyFile": None})
    config = parse_config(document)
    assert config.brokers.sasl is not None
    assert config.brokers.sasl.oauth == TokenEndpoint(url="https://login.example/token", scope="kafka")
    before = connection_settings(config.brokers, "flights-0")
    assert before.sasl is not None
    assert before.sasl.oauth == OAuthSettings(
        token_endpoint="https://login.example/token",
        client_id="fleet",
        client_secret="fleet-secret",
        scope="kafka",
        ca_file="/ca.pem",
    )
    assert "fleet-secret" not in repr(before)
    assert connection_settings(config.brokers, "flights-0") == before
    (tmp_path / "clientSecret").write_text("renewed")
    assert connection_settings(config.brokers, "flights-0") != before


def test_token_endpoint_that_would_show_the_secret_is_refused(tmp_path: Path) -> None:
    for name in ("clientId", "clientSecret"):
        (tmp_path / name).write_text("x")
    oauth = {"tokenEndpoint": "http://login.example/token", "scope": None}
    login = LOGIN | {"directory": str(tmp_path), "identity": None, "oauth": oauth}
    with pytest.raises(SettingsInvalid, match=r"connection\.sasl: token endpoint .* unencrypted; use https"):
        connection_settings(parse_config(changed(worker_document(), "connection.sasl", login)).brokers, "c")


def test_byte_order_mark_and_line_end_of_a_credential_are_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "username").write_text("\ufeffalice\n")
    (tmp_path / "password").write_text("\ufeffsecret\r\n")
    login = {"mechanism": "SCRAM-SHA-512", "directory": str(tmp_path), "identity": None, "oauth": None}
    settings = connection_settings(parse_config(changed(worker_document(), "connection.sasl", login)).brokers, "c")
    assert settings.sasl
    assert (settings.sasl.username, settings.sasl.password) == ("alice", "secret")


def test_missing_credentials_name_their_path(tmp_path: Path) -> None:
    document = changed(
        worker_document(),
        "connection.sasl",
        {"mechanism": "PLAIN", "directory": str(tmp_path), "identity": None, "oauth": None},
    )
    with pytest.raises(CredentialsUnreadable, match="username"):
        connection_settings(parse_config(document).brokers, "c")


def test_address_that_is_none_is_refused() -> None:
    document = changed(worker_document(), "connection.bootstrapServers", ["kafka:none"])
    with pytest.raises(SettingsInvalid, match=r"connection\.bootstrapServers"):
        connection_settings(parse_config(document).brokers, "c")


def test_worker_parses_the_rendered_settings() -> None:
    """Both sides of the contract, from the example that users copy; whatever one side adds alone fails here."""
    cluster, _, group = yaml.safe_load_all((ROOT / "examples/flights/fleet.yaml").read_text())
    for resource in (cluster, group):
        resource["metadata"] |= {"namespace": "default", "uid": "0d9c2f3e-7a51-4b7e-9d5e-1f6f6f4c0001", "generation": 1}
    cluster["spec"] |= {
        "tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "clientCertSecretRef": {"name": "client"}},
        "sasl": {"mechanism": "SCRAM-SHA-512", "secretRef": {"name": "login"}},
    }
    group["spec"]["consumer"] = {"properties": {"fetch.min.bytes": "1"}}
    group["spec"]["producer"] = {"properties": {"linger.ms": "50"}}
    rendered = worker_config(ConsumerGroup.model_validate(group), KafkaCluster.model_validate(cluster))
    config = parse_config(json.loads(json.dumps(rendered | {"revision": "a1b2c3d4e5"})))
    assert (config.name, config.group_id, config.topics) == ("flights", "default.flights", ("flights",))
    assert config.handler.outputs == ("flights-done",)
    assert config.brokers.sasl == SaslSource(
        mechanism="SCRAM-SHA-512", directory="/etc/consumer-fleet/credentials", identity=None, oauth=None
    )
    assert config.brokers.tls is not None
    assert config.consumer.properties == {"fetch.min.bytes": "1"}
    assert config.producer_properties == {"linger.ms": "50"}
