"""SASL: the published examples, refusals in both directions, renewal; the password never leaves in words."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Callable

import pytest

from fleet_consumer.net import AuthenticationFailed, ConnectionSettings, SaslSettings
from fleet_consumer.net.negotiation import SaslRefused, Scram, mechanism
from fleet_consumer.wire.connection import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import ListGroupsRequest
from tests.support.waiting import eventually
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected
from tests.unit.net.scripted_broker import Answer, Asked, ScriptedBroker

PASSWORD = "correct horse"
PLAIN = SaslSettings(mechanism="PLAIN", username="alice", password=PASSWORD)
SCRAM = SaslSettings(mechanism="SCRAM-SHA-256", username="alice", password=PASSWORD)


def accept(lifetime_ms: int = 0) -> Callable[[Asked], Answer]:
    return lambda _: SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=lifetime_ms
    )


def refuse(asked: Asked) -> Answer:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="Invalid username or password", auth_bytes=b""
    )


def offering(broker: ScriptedBroker, authenticate: Callable[[Asked], Answer]) -> None:
    broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(error_code=0, mechanisms=("PLAIN",)))
    broker.on(SaslAuthenticateRequest, authenticate)
    broker.on(ListGroupsRequest, lambda _: NO_GROUPS)


def test_scram_sha_256_equals_the_example_of_rfc_7677() -> None:
    settings = SaslSettings(mechanism="SCRAM-SHA-256", username="user", password="pencil")
    exchange = Scram(settings, "rOprNGfwEbeRWgbNEkqO")
    assert exchange.start() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert exchange.respond(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()) == (
        f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )
    assert exchange.respond(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(
    ("server_first", "complaint"),
    [
        ("r=other,s=c2FsdA==,i=4096", "nonce"),
        ("r=abc,s=c2FsdA==,i=4096", "nonce"),
        ("r=abcdef,s=,i=4096", "no salt"),
        ("r=abcdef,s=%%%,i=4096", "no salt"),
        ("r=abcdef,s=c2FsdA==", "iteration count"),
        ("r=abcdef,s=c2FsdA==,i=-4096", "iteration count"),
        ("r=abcdef,s=c2FsdA==,i=99999999999999999999", "iteration count"),
        ("r=abcdef,s=c2FsdA==,i=4095", "4095 iterations"),
        ("r=abcdef,s=c2FsdA==,i=100001", "100001 iterations"),
        ("", "nonce"),
        ("\x00\xff", "nonce"),
    ],
)
def test_scram_refuses_a_server_that_breaks_the_rules(server_first: str, complaint: str) -> None:
    """Among them one that asks for so many iterations that the client would compute for minutes."""
    exchange = Scram(SCRAM, "abc")
    exchange.start()
    with pytest.raises(SaslRefused, match=complaint):
        exchange.respond(server_first.encode())


def test_scram_refuses_a_server_that_does_not_know_the_password() -> None:
    exchange = Scram(SCRAM, "abc")
    exchange.start()
    exchange.respond(b"r=abcdef,s=c2FsdA==,i=4096")
    forged = base64.b64encode(hmac.digest(b"guess", b"anything", hashlib.sha256))
    with pytest.raises(SaslRefused, match="could not prove") as caught:
        exchange.respond(b"v=" + forged)
    assert caught.value.reason == "ServerNotAuthentic"


def test_scram_escapes_delimiters_in_the_user_name() -> None:
    settings = SaslSettings(mechanism="SCRAM-SHA-512", username="a,b=c", password="p")
    assert mechanism(settings, "n").start() == b"n,,n=a=2Cb=3Dc,r=n"


def test_login_comes_before_the_first_request() -> None:
    with ScriptedBroker() as broker, connected(broker.address, sasl=PLAIN) as client:
        offering(broker, accept())
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        kinds = [type(asked.request) for asked in broker.asked]
        assert kinds == [SaslHandshakeRequest, SaslAuthenticateRequest, ListGroupsRequest, ListGroupsRequest]
        assert broker.asked[1].request.auth_bytes == b"\0alice\0" + PASSWORD.encode()


def test_wrong_password_names_mechanism_and_user_but_not_the_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedBroker() as broker, connected(broker.address, sasl=PLAIN) as client:
        offering(broker, refuse)
        for attempt in (
            lambda: client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S),
            lambda: client.metadata(timeout_s=PATIENCE_S),
        ):
            with pytest.raises(AuthenticationFailed) as caught:
                attempt()
            assert caught.value.reason == "AuthenticationFailed"
            for part in ("'alice'", "PLAIN", "Invalid username or password", str(broker.address)):
                assert part in str(caught.value)
            assert PASSWORD not in repr(caught.value)
    assert PASSWORD not in caplog.text
    settings = ConnectionSettings(bootstrap_servers=("b:1",), client_id="c", sasl=PLAIN)
    assert PASSWORD not in repr(settings)


def test_unsupported_mechanism_is_reported_with_the_supported_ones() -> None:
    with ScriptedBroker() as broker, connected(broker.address, sasl=SCRAM) as client:
        broker.on(
            SaslHandshakeRequest,
            lambda _: SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=("GSSAPI", "PLAIN")
            ),
        )
        with pytest.raises(AuthenticationFailed, match=r"SCRAM-SHA-256 .* it offers: GSSAPI, PLAIN"):
            client.metadata(timeout_s=PATIENCE_S)


def test_server_that_never_ends_the_exchange_is_left() -> None:
    with ScriptedBroker() as broker, connected(broker.address, sasl=SCRAM) as client:
        offering(broker, accept())
        with pytest.raises(AuthenticationFailed, match="nonce"):
            client.metadata(timeout_s=PATIENCE_S)


@pytest.mark.together
def test_login_is_renewed_on_the_same_connection_before_it_ends() -> None:
    """KIP-368: brokers close connections whose login has run out."""
    with ScriptedBroker() as broker, connected(broker.address, sasl=PLAIN) as client:
        offering(broker, accept(lifetime_ms=1_300))
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)

        def logins() -> list[Asked]:
            client.poll(0.02)
            return [asked for asked in broker.asked if isinstance(asked.request, SaslAuthenticateRequest)][2:]

        eventually(logins, timeout_s=PATIENCE_S, what="the third login")
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        assert broker.connections == 1


@pytest.mark.together
def test_login_that_ends_within_a_second_is_renewed_no_sooner() -> None:
    """Kafka's brokers refuse that; the requests wait, since an ended login would cost the connection."""
    with ScriptedBroker() as broker, connected(broker.address, sasl=PLAIN) as client:
        offering(broker, accept(lifetime_ms=300))
        ended_at = time.monotonic() + 0.3
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        eventually(lambda: time.monotonic() > ended_at + 0.3, timeout_s=PATIENCE_S, what="the login to end")
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        handshake, _, _, again, *_ = broker.asked
        assert isinstance(again.request, SaslHandshakeRequest)
        assert again.at - handshake.at > 1.0
        assert broker.connections == 1


@pytest.mark.together
def test_refused_renewal_ends_waiting_calls_with_the_reason() -> None:
    with ScriptedBroker() as broker, connected(broker.address, sasl=PLAIN) as client:
        offering(broker, accept(lifetime_ms=1_100))
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        broker.on(SaslAuthenticateRequest, refuse)

        def refused() -> bool:
            call = client.send(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
            while not call.done:
                client.poll(PATIENCE_S)
            return isinstance(call.error, AuthenticationFailed)

        eventually(refused, timeout_s=PATIENCE_S, what="the refusal to reach a call")
