"""OAUTHBEARER without I/O: settings, tokens, an endpoint's answers, and the exchange of RFC 7628."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.net import OAuthSettings, OAuthToken, SaslSettings
from fleet_consumer.net.negotiation import COMPLAINT_CHARS_MAX, OAuthBearer, SaslRefused
from fleet_consumer.net.oauth import token_from_answer

NOW = 1_700_000_000.0
EXAMPLES = settings(max_examples=200, deadline=None, print_blob=True)


def token(**changes: Any) -> OAuthToken:
    values: dict[str, Any] = {"value": "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==", "expires_at": NOW + 60}
    return OAuthToken(**(values | changes))


def jwt(claims: object) -> str:
    parts = (b"{}", json.dumps(claims).encode(), b"signature")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def test_first_message_is_that_of_kafkas_own_client() -> None:
    """KIP-255's form: no authorization id, no host, no port."""
    exchange = OAuthBearer(token(extensions={"logicalCluster": "lkc-1", "identityPoolId": "pool 2"}))
    assert exchange.start() == (
        b"n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01logicalCluster=lkc-1"
        b"\x01identityPoolId=pool 2\x01\x01"
    )
    assert exchange.respond(b"") is None


def test_refusal_is_answered_with_control_a_and_kept() -> None:
    exchange = OAuthBearer(token())
    exchange.start()
    refusal = b'{"status":"insufficient_scope","scope":"kafka","openid-configuration":"https://x"}'
    assert exchange.respond(refusal) == b"\x01"
    assert exchange.complaint == "'insufficient_scope (required scope: kafka)'"
    with pytest.raises(SaslRefused, match="insufficient_scope"):
        exchange.respond(b"")


@EXAMPLES
@given(st.binary(max_size=2000) | st.recursive(st.text() | st.none(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_exchange_ends_in_two_steps_for_any_server_answer(challenge: bytes) -> None:
    exchange = OAuthBearer(token())
    exchange.start()
    first = exchange.respond(challenge)
    assert first == (b"\x01" if challenge else None)
    assert len(exchange.complaint) <= 12 * COMPLAINT_CHARS_MAX
    assert exchange.complaint.isprintable()
    if challenge:
        with pytest.raises(SaslRefused):
            exchange.respond(challenge)


@pytest.mark.parametrize("value", ["", "two words", "a\x01b", "tök", "a,b", "=a", "x" * 70_000])
def test_text_that_would_break_the_message_is_no_token(value: str) -> None:
    with pytest.raises(ValueError, match="not a bearer token") as caught:
        token(value=value)
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize(
    "extensions", [{"auth": "x"}, {"": "x"}, {"a b": "x"}, {"a=b": "x"}, {"a": ""}, {"a": "x\x01y"}, {"a": "ö"}]
)
def test_extension_that_would_break_the_message_is_refused(extensions: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="SASL extension"):
        token(extensions=extensions)


@pytest.mark.parametrize(
    ("document", "expires_at"),
    [
        ({"access_token": "abc", "token_type": "Bearer", "expires_in": 300}, NOW + 300),
        ({"access_token": "abc", "token_type": "bearer", "expires_in": 0.5}, NOW + 0.5),
        ({"access_token": "abc", "expires_in": "300", "scope": "x", "more": [1]}, NOW + 300),
        ({"access_token": jwt({"exp": NOW + 5}), "token_type": "Bearer"}, NOW + 5),
    ],
)
def test_answers_of_token_endpoints_are_read(document: dict[str, Any], expires_at: float) -> None:
    read = token_from_answer(json.dumps(document).encode(), NOW)
    assert (read.value, read.expires_at) == (document["access_token"], expires_at)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no `access_token`"),
        (b'{"access_token": 5}', "no `access_token`"),
        (b'{"access_token": "abc", "token_type": "mac", "expires_in": 5}', "of type 'mac'"),
        (b'{"access_token": "a b", "expires_in": 5}', "not a bearer token"),
        (b'{"access_token": "abc"}', "the token no `exp`"),
        (json.dumps({"access_token": jwt({"exp": "soon"})}).encode(), "the token no `exp`"),
        (json.dumps({"access_token": jwt([1])}).encode(), "the token no `exp`"),
        (b'{"access_token": "a.!.c"}', "the token no `exp`"),
        (b'{"access_token": "abc", "expires_in": true}', "not a number"),
        (b'{"access_token": "abc", "expires_in": 0}', "not a number"),
        (b'{"access_token": "abc", "expires_in": -1}', "not a number"),
        (b'{"access_token": "abc", "expires_in": NaN}', "not a number"),
        (b'{"access_token": "abc", "expires_in": 1e300}', "not a number"),
    ],
)
def test_invalid_answer_is_refused_with_its_defect(body: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        token_from_answer(body, NOW)


@EXAMPLES
@given(st.integers(0, 2**32), st.binary(max_size=100))
def test_damaged_answers_are_read_or_refused(seed: int, noise: bytes) -> None:
    chance = random.Random(seed)
    answer = bytearray(json.dumps({"access_token": jwt({"exp": 5}), "token_type": "Bearer", "expires_in": 9}).encode())
    for _ in range(chance.randint(0, 5)):
        at = chance.randrange(len(answer))
        answer[at : at + chance.randint(0, 9)] = noise[: chance.randint(0, 5)]
    for body in (bytes(answer), noise):
        try:
            assert token_from_answer(body, NOW).value
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("login.example/token", "not a URL"),
        ("file:///etc/passwd", "not a URL"),
        ("https://", "not a URL"),
        ("http://login.example/token", "get the client secret unencrypted"),
    ],
)
def test_insecure_token_endpoint_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        OAuthSettings(token_endpoint=url, client_id="c", client_secret="s")


def test_settings_that_do_not_fit_together_are_refused() -> None:
    oauth = OAuthSettings(token_endpoint="https://login.example/token", client_id="c", client_secret="hidden-secret")
    assert "hidden-secret" not in repr(SaslSettings(mechanism="OAUTHBEARER", oauth=oauth))
    assert "vF9dft4" not in repr(token())
    for wrong in (
        {"mechanism": "OAUTHBEARER"},
        {"mechanism": "OAUTHBEARER", "oauth": oauth, "token_callback": token},
        {"mechanism": "OAUTHBEARER", "oauth": oauth, "username": "alice"},
        {"mechanism": "PLAIN"},
        {"mechanism": "PLAIN", "username": "alice", "password": "p", "oauth": oauth},
    ):
        with pytest.raises(ValueError, match="needs"):
            SaslSettings(**wrong)


def test_equal_credentials_are_equal_settings_with_any_token_source() -> None:
    """A worker compares them to find out whether mounted credentials have changed."""
    first, second, other = (
        SaslSettings(
            mechanism="OAUTHBEARER",
            oauth=OAuthSettings(token_endpoint="https://login.example/token", client_id="c", client_secret=secret),
        )
        for secret in ("a", "a", "b")
    )
    assert first == second != other
    assert first.tokens is not second.tokens
