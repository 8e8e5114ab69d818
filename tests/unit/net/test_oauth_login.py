"""Logging in with tokens on connections: the I/O loop never waits for a token, and no ended login is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fleet_consumer.net import (
    AuthenticationFailed,
    NetError,
    NetworkClient,
    OAuthToken,
    SaslSettings,
    TokenUnavailable,
)
from fleet_consumer.wire.connection import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import ListGroupsRequest
from tests.support.waiting import eventually
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected, finish
from tests.unit.net.scripted_broker import HANG_UP, SILENT, Answer, Asked, ScriptedBroker

REFUSAL = b'{"status":"invalid_token"}'


class Callback:
    """Numbers its tokens; `failure` is raised instead, `gate` is waited for first."""

    def __init__(self, lifetime_s: float = 3600.0) -> None:
        self.asked_at: list[float] = []
        self.ends_at = 0.0
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self._lifetime_s = lifetime_s

    def __call__(self) -> OAuthToken:
        self.asked_at.append(time.monotonic())
        number = self.given
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        self.ends_at = time.time() + self._lifetime_s
        return OAuthToken(value=f"token-{number}", expires_at=self.ends_at)

    @property
    def given(self) -> int:
        """Number of requests for a token."""
        return len(self.asked_at)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(error_code=0, mechanisms=("OAUTHBEARER",)))
        broker.on(SaslAuthenticateRequest, accept())
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        yield broker


def accept(lifetime_ms: int = 0, auth_bytes: bytes = b"") -> Callable[[Asked], Answer]:
    return lambda _: SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=auth_bytes, session_lifetime_ms=lifetime_ms
    )


def refuse(asked: Asked) -> Answer:
    """As a broker does: the reason first, and the refusal after the client's control-A."""
    if asked.request.auth_bytes == b"\x01":
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=None, auth_bytes=b""
        )
    return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=REFUSAL)


def sasl(callback: Callback) -> SaslSettings:
    return SaslSettings(mechanism="OAUTHBEARER", token_callback=callback)


def logins(broker: ScriptedBroker) -> list[bytes]:
    return [asked.request.auth_bytes for asked in broker.asked if isinstance(asked.request, SaslAuthenticateRequest)]


def shown(number: int) -> bytes:
    return f"n,,\x01auth=Bearer token-{number}\x01\x01".encode()


def list_groups(client: NetworkClient, broker: ScriptedBroker) -> None:
    assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS


def test_token_is_shown_before_the_first_request(broker: ScriptedBroker) -> None:
    callback = Callback()
    with connected(broker.address, sasl=sasl(callback)) as client:
        list_groups(client, broker)
        finish(client, client.send(broker.address, LIST_GROUPS, lane="second"))
    assert logins(broker) == [shown(1), shown(1)]
    assert callback.given == 1


def test_other_connections_continue_while_a_token_is_fetched(broker: ScriptedBroker) -> None:
    """Heartbeats live on such a loop: a slow token endpoint must not look like a dead member."""
    callback = Callback(lifetime_s=0.2)
    broker.on(SaslAuthenticateRequest, accept(lifetime_ms=3_600_000))
    with connected(broker.address, sasl=sasl(callback)) as client:
        list_groups(client, broker)
        eventually(lambda: time.time() > callback.ends_at, timeout_s=PATIENCE_S, what="the token to end")
        callback.gate.clear()
        try:
            waiting = client.send(broker.address, LIST_GROUPS, lane="second", timeout_s=PATIENCE_S)
            for _ in range(20):
                list_groups(client, broker)
            assert not waiting.done
        finally:
            callback.gate.set()
        finish(client, waiting)
        assert waiting.error is None


def test_refused_token_names_status_and_remedy(broker: ScriptedBroker) -> None:
    broker.on(SaslAuthenticateRequest, refuse)
    callback = Callback()
    with connected(broker.address, sasl=sasl(callback)) as client:
        for _ in range(3):
            with pytest.raises(AuthenticationFailed) as caught:
                client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
            told = str(caught.value)
            assert all(part in told for part in ("OAUTHBEARER", "invalid_token", str(broker.address), "audience"))
            assert "token-1" not in told
    assert logins(broker) == [shown(1), b"\x01"]  # the refused token is shown to nobody again, nor a new one at once
    assert callback.given == 1


@pytest.mark.together
@pytest.mark.parametrize("after", [HANG_UP, SILENT], ids=["hangs up", "falls silent"])
def test_broker_that_breaks_off_after_its_refusal_ends_the_call(broker: ScriptedBroker, after: Answer) -> None:
    broker.on(SaslAuthenticateRequest, lambda asked: after if asked.request.auth_bytes == b"\x01" else refuse(asked))
    with connected(broker.address, sasl=sasl(Callback())) as client, pytest.raises(NetError):
        client.call(broker.address, LIST_GROUPS, timeout_s=0.5)


def test_broker_that_never_ends_the_exchange_is_left(broker: ScriptedBroker) -> None:
    broker.on(SaslAuthenticateRequest, accept(auth_bytes=REFUSAL))
    with (
        connected(broker.address, sasl=sasl(Callback())) as client,
        pytest.raises(AuthenticationFailed, match="the server reports 'invalid_token'"),
    ):
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
    assert len(logins(broker)) == 2


@pytest.mark.together
def test_token_that_cannot_be_had_ends_the_call_with_the_reason(broker: ScriptedBroker) -> None:
    callback = Callback()
    callback.failure = TokenUnavailable("the endpoint is away")
    with connected(broker.address, sasl=sasl(callback)) as client:
        with pytest.raises(TokenUnavailable, match="the endpoint is away"):
            client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
        callback.failure = None
        client.metadata(timeout_s=PATIENCE_S)  # tries again until it is there
    assert logins(broker) == [shown(callback.given)]


def test_token_that_never_comes_ends_the_call_in_time(broker: ScriptedBroker) -> None:
    callback = Callback()
    callback.gate.clear()
    try:
        with (
            connected(broker.address, sasl=sasl(callback), connect_timeout_ms=100) as client,
            pytest.raises(TokenUnavailable, match=r"no token for the login at broker .* after 0\.1 s"),
        ):
            client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
    finally:
        callback.gate.set()


@pytest.mark.together
def test_login_is_renewed_with_a_new_token_on_the_same_connection(broker: ScriptedBroker) -> None:
    broker.on(SaslAuthenticateRequest, accept(lifetime_ms=1_300))
    with connected(broker.address, sasl=sasl(Callback(lifetime_s=1.3))) as client:
        list_groups(client, broker)

        def renewed() -> bool:
            list_groups(client, broker)
            return len(logins(broker)) >= 3

        eventually(renewed, timeout_s=PATIENCE_S, what="two renewals")
    assert logins(broker)[:3] == [shown(1), shown(2), shown(3)]
    assert broker.connections == 1


@pytest.mark.together
def test_requests_continue_while_the_new_token_is_late_and_stop_when_the_login_expires(broker: ScriptedBroker) -> None:
    """A broker cuts the connection of whoever uses an ended login; until its end it is as good as ever."""
    broker.on(SaslAuthenticateRequest, accept(lifetime_ms=5_000))
    callback = Callback(lifetime_s=5.0)
    with connected(broker.address, sasl=sasl(callback), connect_timeout_ms=500) as client:
        list_groups(client, broker)
        callback.gate.clear()
        try:

            def refused() -> bool:
                call = client.send(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
                finish(client, call)
                assert call.error is None or isinstance(call.error, TokenUnavailable)
                return call.error is not None

            eventually(refused, timeout_s=PATIENCE_S, what="the login to end", poll_s=0.002)
        finally:
            callback.gate.set()
        client.metadata(timeout_s=PATIENCE_S)
    asked_again_at = callback.asked_at[1]
    assert any(asked.at > asked_again_at and asked.connection == 1 for asked in broker.asked)
    assert [asked.connection for asked in broker.asked if isinstance(asked.request, SaslAuthenticateRequest)] == [1, 2]
