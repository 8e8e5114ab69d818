"""Logging in at a real broker: each mechanism, a wrong password, a listener that wants a login, renewal."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fleet_consumer.net import (
    AllBrokersUnreachable,
    AuthenticationFailed,
    ConnectionSettings,
    NetworkClient,
    SaslSettings,
    parse_address,
)
from fleet_consumer.wire.groups import ListGroupsRequest
from tests.support.kafka import KafkaBroker

USER, PASSWORD = "alice", "alice-secret"
PATIENCE_S = 30.0
RENEWAL_MS = 1_000
LIST_GROUPS = ListGroupsRequest(states_filter=(), types_filter=())


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaBroker]:
    """A broker whose logins expire after a second."""
    with KafkaBroker(sasl_users={USER: PASSWORD}, properties={"connections.max.reauth.ms": str(RENEWAL_MS)}) as running:
        yield running


def logged_in(broker: KafkaBroker, mechanism: str, password: str) -> NetworkClient:
    sasl = SaslSettings(mechanism=mechanism, username=USER, password=password)
    return NetworkClient(
        ConnectionSettings(bootstrap_servers=(broker.sasl_bootstrap,), client_id="net-sasl", sasl=sasl)
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_right_password_connects_and_wrong_password_is_reported(guarded: KafkaBroker, mechanism: str) -> None:
    client = logged_in(guarded, mechanism, PASSWORD)
    try:
        assert client.metadata(timeout_s=PATIENCE_S).brokers
    finally:
        client.close()
    client = logged_in(guarded, mechanism, "wrong-secret")
    try:
        begun = time.monotonic()
        with pytest.raises(AuthenticationFailed) as caught:
            client.metadata(timeout_s=PATIENCE_S)
        assert time.monotonic() - begun < PATIENCE_S / 2
    finally:
        client.close()
    text = str(caught.value)
    assert all(part in text for part in (repr(USER), mechanism, guarded.sasl_bootstrap, "SASL_AUTHENTICATION_FAILED"))
    assert "wrong-secret" not in text


def test_listener_that_wants_a_login_is_recognized_by_a_client_without(guarded: KafkaBroker) -> None:
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(guarded.sasl_bootstrap,), client_id="net-sasl"))
    try:
        with pytest.raises(AllBrokersUnreachable, match="TLS or SASL, which is not configured"):
            client.metadata(timeout_s=1.0)
    finally:
        client.close()


def test_listener_without_login_refuses_a_client_that_brings_one(guarded: KafkaBroker) -> None:
    sasl = SaslSettings(mechanism="PLAIN", username=USER, password=PASSWORD)
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(guarded.bootstrap,), client_id="net-sasl", sasl=sasl))
    try:
        with pytest.raises(AuthenticationFailed, match="refuses SASL mechanism PLAIN"):
            client.metadata(timeout_s=PATIENCE_S)
    finally:
        client.close()


def test_connection_outlives_its_login(guarded: KafkaBroker) -> None:
    """The broker would close the connection at the first request after a second; no call may fail."""
    client = logged_in(guarded, "SCRAM-SHA-512", PASSWORD)
    address = parse_address(guarded.sasl_bootstrap)
    try:
        end = time.monotonic() + 3.5 * RENEWAL_MS / 1000
        while time.monotonic() < end:
            client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S)
            client.poll(0.05)
    finally:
        client.close()
