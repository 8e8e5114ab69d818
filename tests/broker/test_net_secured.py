"""A real broker's TLS and SASL listeners: connections of network client, consumer and producer, and refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fleet_consumer import Consumer, ConsumerSettings, OffsetAndMetadata, TopicPartition
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import connection_config
from fleet_consumer.net import (
    AuthenticationFailed,
    ConnectionSettings,
    NetError,
    NetworkClient,
    OAuthToken,
    SaslSettings,
    TlsFailed,
    TlsSettings,
    parse_address,
)
from fleet_consumer.wire.groups import ListGroupsRequest
from fleet_consumer.worker.cli import main
from fleet_operator.observe.subscriptions import ObserverSettings, TlsMaterial
from tests.broker.members import create_topic, unique
from tests.broker.security import PASSWORD, USER, WAYS, connection, oauth, token_server
from tests.support.kafka import KafkaBroker
from tests.support.kafka_security import BrokerPki
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from tests.support.waiting import eventually

PATIENCE_S = 30.0
LOGIN_MS = 2_000
OTHER_NAME = "127.1"
"""An address of the broker that is not on its certificate."""
LIST_GROUPS = ListGroupsRequest(states_filter=(), types_filter=())


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaBroker]:
    """A broker with all listeners, whose logins expire after two seconds (without TLS after a minute)."""
    properties = {
        "connections.max.reauth.ms": str(LOGIN_MS),
        "listener.name.sasl.connections.max.reauth.ms": "60000",
    }
    with KafkaBroker(tls="mutual", oauth=True, sasl_users={USER: PASSWORD}, properties=properties) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(secured: KafkaBroker) -> Iterator[TokenServer]:
    with token_server(secured) as running:
        yield running


@contextmanager
def client_for(settings: ConnectionSettings) -> Iterator[NetworkClient]:
    made = NetworkClient(settings)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("way", WAYS)
def test_each_security_protocol_connects(secured: KafkaBroker, tokens: TokenServer, way: str) -> None:
    with client_for(connection(secured, tokens, way)) as client:
        known = client.metadata(timeout_s=PATIENCE_S).brokers
    assert [f"{broker.host}:{broker.port}" for broker in known] == list(
        connection(secured, tokens, way).bootstrap_servers
    )


@pytest.mark.parametrize("way", WAYS)
def test_records_are_written_consumed_and_committed_by_each_security_protocol(
    secured: KafkaBroker, tokens: TokenServer, way: str
) -> None:
    """The coordinator's connections, librdkafka's consumer and its producer all connect; a second member continues."""
    how = connection(secured, tokens, way)
    topic, group = create_topic(secured.bootstrap, 2), unique("group")
    producer = RecordProducer(connection_config(how))
    for start in (0, 100):
        for number in range(start, start + 100):
            producer.send(topic, key=None, value=str(number), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        with Consumer(ConsumerSettings(connection=how, group_id=group)) as consumer:
            consumer.subscribe([topic])
            seen = consume(consumer, 100)
            consumer.commit(timeout_s=PATIENCE_S)
        assert seen == sorted((number % 2, number // 2) for number in range(start, start + 100))


def test_offsets_command_connects_with_tls_and_a_token(
    secured: KafkaBroker, tokens: TokenServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group = create_topic(secured.bootstrap, 1), unique("group")
    with Consumer(ConsumerSettings(connection=connection(secured, tokens, "OAUTHBEARER"), group_id=group)) as consumer:
        consumer.subscribe([topic])
        eventually(
            lambda: consumer.poll(0.1) is not None and consumer.assignment(), timeout_s=PATIENCE_S, what="a share"
        )
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(7)}, PATIENCE_S)
    (tmp_path / "clientId").write_text(CLIENT_ID)
    (tmp_path / "clientSecret").write_text(CLIENT_SECRET)
    login = f"--sasl OAUTHBEARER --credentials {tmp_path} --token-endpoint {tokens.url} --token-scope kafka"
    where = f"--bootstrap {secured.sasl_tls_bootstrap} --tls-ca {secured.pki.ca_file}"
    status = main(["offsets", "--group", group, *where.split(), *login.split()])
    output = capsys.readouterr()
    assert status == 0, output.err
    assert [json.loads(line)["offset"] for line in output.out.splitlines()] == [7]


def consume(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """The places of the next `count` records, as sorted (partition, offset)."""
    seen: list[tuple[int, int]] = []

    def enough() -> bool:
        seen.extend((record.partition, record.offset) for record in consumer.poll(0.5))
        return len(seen) >= count

    eventually(enough, timeout_s=PATIENCE_S, what=f"{count} records", poll_s=0.001)
    return sorted(seen)


def test_connections_outlive_their_logins_by_each_mechanism(secured: KafkaBroker, tokens: TokenServer) -> None:
    """KIP-368: the broker closes connections with an expired login; no call may fail, on one connection each."""
    address = parse_address(secured.sasl_tls_bootstrap)
    others = _connections(secured)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(client_for(connection(secured, tokens, way)))
            for way in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
        ]
        for client in clients:
            client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S)
        ours = _connections(secured) - others
        assert len(ours) == len(clients)
        end = time.monotonic() + 2.5 * LOGIN_MS / 1000
        while time.monotonic() < end:
            for client in clients:
                assert client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S).error_code == 0
                client.poll(0.01)
        assert _connections(secured) - others == ours


def _connections(broker: KafkaBroker) -> set[str]:
    """Our end of each established connection to the TLS and SASL listener, by the kernel."""
    port = f"{parse_address(broker.sasl_tls_bootstrap).port:04X}"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port}") and row[3] == "01"}


def test_token_that_ends_before_the_brokers_limit_is_renewed_in_its_own_time(secured: KafkaBroker) -> None:
    """The limit is a minute here, so the token's three seconds decide."""
    address = parse_address(secured.sasl_bootstrap)
    with token_server(secured, lifetime_s=3.0) as tokens:
        way = connection(secured, tokens, "OAUTHBEARER", bootstrap_servers=(secured.sasl_bootstrap,), tls=None)
        with client_for(way) as client:
            end = time.monotonic() + 5.0
            while time.monotonic() < end:
                assert client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S).error_code == 0
                client.poll(0.05)
        assert len(tokens.asked) >= 2


def test_refused_tokens_are_reported_with_the_brokers_reason(secured: KafkaBroker, tokens: TokenServer) -> None:
    issuer, later = secured.issuer, time.time() + 3600
    other_broker_issuer_key = issuer.token("bob").rsplit(".", 1)[0] + ".AAAA"
    for value in (
        issuer.token("bob", audience="another"),
        issuer.token("bob", lifetime_s=-60),
        other_broker_issuer_key,
        "opaque",
    ):
        shown = OAuthToken(value=value, expires_at=later)
        sasl = SaslSettings(mechanism="OAUTHBEARER", token_callback=partial(replace, shown))
        with client_for(connection(secured, tokens, "OAUTHBEARER", sasl=sasl)) as client:
            with pytest.raises(AuthenticationFailed, match=r"invalid_token.*audience, scope and lifetime") as caught:
                client.metadata(timeout_s=PATIENCE_S)
            assert value not in str(caught.value)


def test_refused_client_is_reported_before_any_broker_is_asked(secured: KafkaBroker, tokens: TokenServer) -> None:
    wrong = connection(secured, tokens, "OAUTHBEARER", sasl=oauth(tokens, secret="wrong"))
    with client_for(wrong) as client, pytest.raises(AuthenticationFailed, match="a token: HTTP 401 invalid_client"):
        client.metadata(timeout_s=PATIENCE_S)


def test_each_refusal_of_tls_has_its_reason_and_its_remedy(
    secured: KafkaBroker, tokens: TokenServer, tmp_path: Path
) -> None:
    pki, other = secured.pki, BrokerPki(tmp_path / "other")
    expired, expired_key = pki.certificate("expired", expired=True)
    cases = {
        "CertificateNotTrusted": (secured.tls_bootstrap, TlsSettings(ca_file=other.ca_file), "CA file"),
        "HostNameMismatch": (f"{OTHER_NAME}:{parse_address(secured.tls_bootstrap).port}", None, OTHER_NAME),
        "ClientCertificateMissing": (secured.mutual_bootstrap, TlsSettings(ca_file=pki.ca_file), "set certificate"),
        "ClientCertificateRefused": (
            secured.mutual_bootstrap,
            TlsSettings(ca_file=pki.ca_file, cert_file=other.cert_file, key_file=other.key_file),
            "broker trusts the CA",
        ),
        "ClientCertificateRefused ": (
            secured.mutual_bootstrap,
            TlsSettings(ca_file=pki.ca_file, cert_file=expired, key_file=expired_key),
            "has expired",
        ),
    }
    for reason, (bootstrap, tls, remedy) in cases.items():
        changes = {"bootstrap_servers": (bootstrap,), **({"tls": tls} if tls is not None else {})}
        with client_for(connection(secured, tokens, "TLS", **changes)) as client:
            with pytest.raises(NetError) as caught:
                client.metadata(timeout_s=5.0)
            print(reason, "|", caught.value)
            assert isinstance(caught.value, TlsFailed), reason
            assert caught.value.reason == reason.strip()
            assert remedy in str(caught.value)


def test_operator_observes_through_tls_and_tokens(secured: KafkaBroker, tokens: TokenServer, tmp_path: Path) -> None:
    """The observer's settings hold PEM strings from Secrets and no paths; its client must connect with them."""
    pki = secured.pki
    material = TlsMaterial(ca=Path(pki.ca_file).read_bytes())
    mutual = replace(material, certificate=Path(pki.cert_file).read_bytes(), key=Path(pki.key_file).read_bytes())
    for number, settings in enumerate(
        (
            ObserverSettings(bootstrap_servers=(secured.sasl_tls_bootstrap,), tls=material, sasl=oauth(tokens)),
            ObserverSettings(bootstrap_servers=(secured.mutual_bootstrap,), tls=mutual),
        )
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        with client_for(settings.connection(directory)) as client:
            assert client.metadata(timeout_s=PATIENCE_S).brokers
