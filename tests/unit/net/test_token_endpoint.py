"""Asking a token endpoint: what is sent, and what each way of failing is called."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from e2e.local_cluster.pki import Authority
from fleet_consumer.clock import SystemClock
from fleet_consumer.net import (
    AuthenticationFailed,
    NetError,
    OAuthSettings,
    OAuthToken,
    TlsFailed,
    TokenUnavailable,
    tokens,
)
from fleet_consumer.net.tokens import ask_for_token
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, Answer, TokenServer, answer


def ask(url: str, *, secret: str = CLIENT_SECRET, scope: str | None = None, ca_file: str | None = None) -> OAuthToken:
    settings = OAuthSettings(
        token_endpoint=url, client_id=CLIENT_ID, client_secret=secret, scope=scope, ca_file=ca_file
    )
    return ask_for_token(settings, SystemClock())


def test_client_shows_its_credentials_and_its_scope() -> None:
    with TokenServer(lambda _: answer("abc", 300)) as server:
        token = ask(server.url, scope="kafka read")
        assert ask(server.url).value == "abc"
    assert token.value == "abc"
    assert 0 < token.expires_at - SystemClock().wall() <= 300
    assert server.asked[0].form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert server.asked[1].form == {"grant_type": ["client_credentials"]}


def test_refused_client_is_reported_without_its_secret() -> None:
    with TokenServer(lambda _: answer("abc")) as server, pytest.raises(AuthenticationFailed) as caught:
        ask(server.url, secret="wrong-secret")
    assert f"refuses client '{CLIENT_ID}' a token: HTTP 401 invalid_client Invalid client" in str(caught.value)
    assert "check client id, client secret and scope" in str(caught.value)
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ((400, {}, b'{"error": "invalid_scope"}'), AuthenticationFailed, "HTTP 400 invalid_scope"),
        ((403, {}, b"no\x00entry"), AuthenticationFailed, "HTTP 403 no entry"),
        ((500, {}, b'{"error": 5}'), TokenUnavailable, 'HTTP 500 {"error": 5}'),
        ((503, {}, b""), TokenUnavailable, "HTTP 503"),
        ((404, {}, b"<html>"), TokenUnavailable, "HTTP 404 <html>; check the URL"),
        ((302, {"Location": "http://127.0.0.1:1/evil"}, b""), TokenUnavailable, "HTTP 302"),
        ((307, {"Location": "http://127.0.0.1:1/evil"}, b""), TokenUnavailable, "HTTP 307"),
        ((200, {}, b"<html>"), TokenUnavailable, "not JSON; check that this is the URL"),
        ((200, {}, b"{}"), TokenUnavailable, "no `access_token`"),
    ],
)
def test_each_way_of_failing_has_its_error(given: Answer, error: type[NetError], told: str) -> None:
    """A redirect is not followed: the secret goes nowhere but where the settings say."""
    with TokenServer(lambda _: given) as server, pytest.raises(error) as caught:
        ask(server.url)
    assert told in str(caught.value)
    assert server.url in str(caught.value)
    assert CLIENT_SECRET not in str(caught.value)


def test_unreachable_endpoint_is_reported() -> None:
    with pytest.raises(TokenUnavailable, match=r"http://127\.0\.0\.1:1/token cannot be reached: .*refused"):
        ask("http://127.0.0.1:1/token")


def test_endpoint_must_be_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    authority.ensure()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server", "server", names=("IP:127.0.0.1",)))
    with TokenServer(lambda _: answer("abc"), context) as server:
        assert ask(server.url, ca_file=str(authority.root_certificate)).value == "abc"
        with pytest.raises(TlsFailed, match=r"certificate is not trusted: .*check the CA file") as caught:
            ask(server.url)
        assert caught.value.reason == "CertificateNotTrusted"
        with pytest.raises(TlsFailed, match="cannot use the file") as unusable:
            ask(server.url, ca_file=str(tmp_path / "missing.crt"))
        assert unusable.value.reason == "TlsFilesInvalid"
        (tmp_path / "broken.crt").write_bytes(authority.root_certificate.read_bytes().replace(b"\nM", b"\n\xe9", 1))
        with pytest.raises(TlsFailed, match="holds a PEM certificate"):
            ask(server.url, ca_file=str(tmp_path / "*.crt"))
        assert len(server.asked) == 1


@contextmanager
def dripping(at_once: bytes, drops: bytes) -> Iterator[str]:
    """The URL of an endpoint that sends the first bytes at once, and of the others one every few milliseconds."""
    over = threading.Event()

    def serve() -> None:
        connected, _ = listener.accept()
        with connected, suppress(OSError):
            connected.recv(65536)
            connected.sendall(at_once)
            for number in itertools.count():
                if over.wait(0.02):
                    return
                connected.sendall(drops[number % len(drops) :][:1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/token"
        finally:
            over.set()
            thread.join(10)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("at_once", "drops"),
    [(b"", b"HTTP/1.1 "), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (HEAD, b" "), (CHUNKED, b"1\r\n \r\n")],
    ids=["status", "continue", "body", "chunks"],
)
def test_endpoint_that_drips_is_left_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, at_once: bytes, drops: bytes
) -> None:
    monkeypatch.setattr(tokens, "ASK_S", 0.3)
    began = time.monotonic()
    with dripping(at_once, drops) as url, pytest.raises(TokenUnavailable, match="no answer in time"):
        ask(url)
    assert time.monotonic() - began < 5


def test_refusal_that_drips_is_reported_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "ASK_S", 0.3)
    head = HEAD.replace(b"200 OK", b"401 Unauthorized")
    with dripping(head, b" ") as url, pytest.raises(AuthenticationFailed, match="HTTP 401"):
        ask(url)
