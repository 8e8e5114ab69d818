"""Bearer tokens, shared by all clients with the same SASL settings. Tokens are fetched on separate threads and cached.

The network clients of a process and its librdkafka clients use the same token. A separate source for each client would
triple the requests to the identity provider. The blocking request to the token endpoint runs on a thread of
`TokenSource`. librdkafka's callback, which runs on a separate thread, is the only caller that waits for a token.
"""

import base64
import contextlib
import http.client
import io
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from functools import partial
from typing import IO, Any, Final
from urllib.parse import quote_plus, urlencode

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.net.errors import AuthenticationFailed, NetError, TlsFailed, TokenUnavailable
from fleet_consumer.net.oauth import OAuthSettings, OAuthToken, token_from_answer
from fleet_consumer.net.tls_files import authorities

ANSWER_BYTES_MAX: Final = 256 * 1024
WAIT_S: Final = 10.0
"""Timeout in seconds of each step. A step is a connection attempt to one of the endpoint's addresses, or one read."""
ASK_S: Final = 20.0
"""Timeout in seconds of the whole request. It is needed for an endpoint that slowly sends single bytes, so that no
single read exceeds `WAIT_S`."""
WORDS_MAX: Final = 200
"""Maximum number of characters that an error quotes from the endpoint's response."""
REFUSALS: Final = (400, 401, 403)
"""HTTP statuses with which an endpoint refuses the credentials (RFC 6749, section 5.2)."""


def ask_for_token(settings: OAuthSettings, clock: Clock) -> OAuthToken:
    """Request a token with the client's credentials in the Authorization header.

    Raises AuthenticationFailed if the endpoint refuses the client. Raises TlsFailed if the endpoint's certificate is
    not trusted, or `ca_file` cannot be read. Raises TokenUnavailable for any other error, which may be transient.
    """
    endpoint = settings.token_endpoint
    fields = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
    login = f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret)}"
    request = urllib.request.Request(
        endpoint,
        data=urlencode(fields).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        method="POST",
    )
    deadline = _Deadline(clock)
    opener = urllib.request.build_opener(_NoRedirect, _InTime(deadline, _trust(settings)))
    try:
        with opener.open(request, timeout=WAIT_S) as answer:
            body = answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as refusal:
        raise _refused(settings, refusal) from refusal
    except urllib.error.URLError as error:
        raise _unreachable(endpoint, error.reason) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(endpoint, error) from error
    try:
        return token_from_answer(body, clock.wall())
    except ValueError as error:
        raise TokenUnavailable(
            f"token endpoint {endpoint}: {error}; check that this is the URL of the token endpoint"
        ) from error


class _Deadline:
    """The deadline of one request, which applies to all reads of the response."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = clock.monotonic() + ASK_S

    def connection(self, kind: Any, host: str, **settings: Any) -> Any:
        """Create an http.client connection whose responses must arrive before the deadline."""
        made = kind(host, **settings)
        made.response_class = partial(_Response, self)
        return made

    def left_s(self) -> float:
        """Return the seconds left for the next step. Raises TimeoutError if no time is left."""
        left = self._at - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, WAIT_S)


class _Response(http.client.HTTPResponse):
    """A response of the endpoint or a proxy. All of it, from status line to body, must arrive before the deadline."""

    def __init__(self, deadline: _Deadline, connected: socket.socket, *arguments: Any, **settings: Any) -> None:
        super().__init__(connected, *arguments, **settings)
        self.fp.close()
        self.fp = io.BufferedReader(_Pieces(deadline, connected))


class _Pieces(io.RawIOBase):
    """A stream of the bytes received from a socket. A read after the deadline raises TimeoutError."""

    def __init__(self, deadline: _Deadline, connected: socket.socket) -> None:
        self._deadline = deadline
        self._connected = connected
        # Keeps the socket open: urllib closes its own reference before the body is read.
        self._file = connected.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._connected.settimeout(self._deadline.left_s())
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _InTime(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens http and https URLs with a deadline."""

    def __init__(self, deadline: _Deadline, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._deadline = deadline

    def do_open(self, http_class: Any, req: urllib.request.Request, **settings: Any) -> http.client.HTTPResponse:
        return super().do_open(partial(self._deadline.connection, http_class), req, **settings)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Reports redirects as HTTP errors, so that the secret is sent only to the configured URL."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        return None


def _trust(settings: OAuthSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # Clear this flag, which Python 3.13 sets by default: it requires key identifiers, which private CAs often lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        if settings.ca_file is not None:
            context.load_verify_locations(cadata=authorities(settings.ca_file))
    except (OSError, ValueError) as error:
        raise TlsFailed(
            f"token endpoint {settings.token_endpoint}: cannot use the file ca={settings.ca_file}: {error}; "
            "it must exist and be PEM",
            reason="TlsFilesInvalid",
        ) from error
    return context


def _refused(settings: OAuthSettings, refusal: urllib.error.HTTPError) -> NetError:
    body = b""
    with refusal, contextlib.suppress(OSError, http.client.HTTPException):  # the status alone is enough
        body = refusal.read(ANSWER_BYTES_MAX)
    words = f"HTTP {refusal.code} {_words(body)}".strip()
    if refusal.code in REFUSALS:
        return AuthenticationFailed(
            f"token endpoint {settings.token_endpoint} refuses client {settings.client_id!r} a token: {words}; "
            "check client id, client secret and scope"
        )
    return TokenUnavailable(f"token endpoint {settings.token_endpoint} answered {words}; check the URL and the server")


def _words(body: bytes) -> str:
    """Return the error that a response reports in the form of RFC 6749, or the beginning of any other body."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        text = f"{answer['error']} {answer.get('error_description') or ''}"
    else:
        text = body.decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text[:WORDS_MAX]).strip()


def _unreachable(endpoint: str, cause: object) -> NetError:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"token endpoint {endpoint}: its certificate is not trusted: {cause.verify_message}; "
            "check the CA file and the host name in the certificate",
            reason="CertificateNotTrusted",
        )
    seen = "no answer in time" if isinstance(cause, socket.timeout) else str(cause)
    return TokenUnavailable(f"token endpoint {endpoint} cannot be reached: {seen}; check URL, DNS and network policies")


REFRESH_SHARE: Final = 0.8
"""The share of a token's lifetime after which the token is replaced. Logins are renewed later (`lane.RENEWAL_SHARES`),
so each renewal uses a new token."""
MARGIN_S: Final = 10.0
"""A token is used for a new login only if at least this remains of its lifetime, in seconds. For a token with a short
lifetime, a tenth of its lifetime is enough."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
REJECTED_PAUSE_S: Final = 5.0
"""Pause after a broker has rejected a token, because identity providers lock out clients that retry fast."""
STUCK_S: Final = 30.0
"""Seconds after which an unfinished token request no longer prevents another request. Its thread cannot be stopped."""
ATTEMPTS_MAX: Final = 4
"""Maximum number of unfinished token requests."""

_SYSTEM_CLOCK: Final = SystemClock()


@dataclass(slots=True, eq=False)
class TokenRequest:
    """A pending request for a token. `result` is written before `done` becomes true, and never changes afterwards."""

    started_at: float = 0.0
    done: bool = False
    result: OAuthToken | NetError = field(default_factory=lambda: TokenUnavailable("the token has not arrived yet"))
    listeners: list[Callable[[], None]] = field(default_factory=list)


class TokenSource:
    """A cache of the newest token. Thread-safe. `get` fetches a token; it runs on a separate thread and may block."""

    def __init__(self, get: Callable[[], OAuthToken], clock: Clock = _SYSTEM_CLOCK) -> None:
        self._get = get
        self._clock = clock
        # Guards all fields below. Never held during a wait.
        self._lock = threading.Lock()
        self._token: OAuthToken | None = None
        self._fetched_at = 0.0
        self._under_way: TokenRequest | None = None
        self._attempts = 0
        self._failure: NetError | None = None
        self._failures = 0
        self._retry_at = 0.0

    def request(self, on_done: Callable[[], None]) -> TokenRequest:
        """Request a token without blocking. If the request is not done on return, another thread calls `on_done` later.
        While no new token is available, the result is the previous token, as long as this token can be used for a
        login."""
        with self._lock:
            now = self._clock.monotonic()
            if self._token is not None and self._age_share(self._token) < REFRESH_SHARE:
                return TokenRequest(now, done=True, result=self._token)
            if now < self._retry_at and self._failure is not None:
                return TokenRequest(now, done=True, result=self._usable() or self._failure)
            under_way = self._under_way
            stuck = under_way is not None and now > under_way.started_at + STUCK_S
            if stuck and self._attempts >= ATTEMPTS_MAX:
                seen = f"{ATTEMPTS_MAX} requests for a token have not finished"
                advice = "check the timeouts of the token callback"
                return TokenRequest(now, done=True, result=self._usable() or TokenUnavailable(f"{seen}; {advice}"))
            if under_way is None or stuck:
                under_way = TokenRequest(now)
                threading.Thread(target=self._fetch, args=(under_way,), name="token", daemon=True).start()
                self._under_way = under_way  # set only after the thread's start, which may fail
                self._attempts += 1
            under_way.listeners.append(on_done)
            return under_way

    def wait(self, timeout_s: float) -> OAuthToken:
        """Request a token and wait for it. Raises NetError; after `timeout_s` seconds, TokenUnavailable."""
        ready = threading.Event()
        request = self.request(ready.set)
        if not request.done:
            ready.wait(timeout_s)
        result = request.result if request.done else TokenUnavailable(f"no token came within {round(timeout_s, 2):g} s")
        if isinstance(result, NetError):
            raise result
        return result

    def reject(self, token: OAuthToken, error: NetError) -> None:
        """Discard a token that a broker has rejected, and pause token requests for `REJECTED_PAUSE_S`."""
        with self._lock:
            if self._token == token:
                self._token = None
                self._failure = error
                self._retry_at = self._clock.monotonic() + REJECTED_PAUSE_S

    def _fetch(self, request: TokenRequest) -> None:
        result: OAuthToken | NetError
        try:
            result = self._get()
            if result.expires_at <= self._clock.wall():
                result = TokenUnavailable("the new token has already expired; check that the clocks agree")
        except NetError as error:
            result = error
        except BaseException as error:  # catches even SystemExit: if the thread died, no further request would be made
            result = TokenUnavailable(f"the token callback failed: {type(error).__name__}: {error}")
        with self._lock:
            self._attempts -= 1
            if self._under_way is request:
                self._under_way = None
            if isinstance(result, NetError):
                result = self._failed(result)
            else:
                self._token, self._fetched_at = result, self._clock.wall()
                self._failure, self._failures = None, 0
            listeners, request.listeners = request.listeners, []
            request.result = result
            request.done = True
        for listener in listeners:
            listener()

    def _failed(self, error: NetError) -> OAuthToken | NetError:
        self._retry_at = self._clock.monotonic() + min(RETRY_FIRST_S * 2.0 ** min(self._failures, 16), RETRY_MAX_S)
        self._failures += 1
        self._failure = error
        return self._usable() or error

    def _age_share(self, token: OAuthToken) -> float:
        life_s = token.expires_at - self._fetched_at
        return (self._clock.wall() - self._fetched_at) / life_s if life_s > 0 else 1.0

    def _usable(self) -> OAuthToken | None:
        token = self._token
        if token is None:
            return None
        margin_s = min(MARGIN_S, 0.1 * (token.expires_at - self._fetched_at))
        return token if self._clock.wall() < token.expires_at - margin_s else None
