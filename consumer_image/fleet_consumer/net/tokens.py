"""Bearer tokens shared by all clients with the same SASL settings: fetched off the I/O threads, cached, renewed.

The network clients of a process and its librdkafka clients use the same token, so the identity provider is asked once
for all of them. Only librdkafka's callback waits here, on a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.net.errors import NetError, TokenUnavailable
from fleet_consumer.net.oauth import OAuthToken

REFRESH_SHARE: Final = 0.8
"""The part of its lifetime after which a token is replaced. Logins are renewed later than that (`lane.RENEWAL_SHARES`),
so that each renewal brings a new token."""
MARGIN_S: Final = 10.0
"""The least remaining lifetime of a token used for a new login (or a tenth of its lifetime, if that is less)."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
REJECTED_PAUSE_S: Final = 5.0
"""The pause of logins after a broker rejected a new token: identity providers lock out clients that retry fast."""
STUCK_S: Final = 30.0
"""The timeout of an attempt; its thread ends when the response comes."""

_SYSTEM_CLOCK: Final = SystemClock()


class TokenRequest:
    """A pending request for a token. `result` is written before `done` turns true, and never changes after it."""

    def __init__(self) -> None:
        self.done = False
        self.result: OAuthToken | NetError = TokenUnavailable("the token has not arrived yet")
        self.started_at = 0.0
        self.listeners: list[Callable[[], None]] = []

    @classmethod
    def finished(cls, result: OAuthToken | NetError) -> TokenRequest:
        """A request that is done from the start."""
        request = cls()
        request.result = result
        request.done = True
        return request


class TokenSource:
    """A source of tokens from `get` (blocking, on a thread of its own), which caches the newest. Thread-safe."""

    def __init__(self, get: Callable[[], OAuthToken], clock: Clock = _SYSTEM_CLOCK) -> None:
        self._get = get
        self._clock = clock
        # Guards everything below; never held while waiting.
        self._lock = threading.Lock()
        self._token: OAuthToken | None = None
        self._fetched_at = 0.0
        self._under_way: TokenRequest | None = None
        self._failure: NetError | None = None
        self._failures = 0
        self._retry_at = 0.0

    def request(self, on_done: Callable[[], None]) -> TokenRequest:
        """Request a token without blocking. Unless it is done at once, another thread calls `on_done`.

        While no new token is available, the previous one is returned as long as it is usable for a login.
        """
        with self._lock:
            now = self._clock.monotonic()
            if self._token is not None and self._age_share(self._token) < REFRESH_SHARE:
                return TokenRequest.finished(self._token)
            if now < self._retry_at and self._failure is not None:
                return TokenRequest.finished(self._usable() or self._failure)
            under_way = self._under_way
            if under_way is None or now > under_way.started_at + STUCK_S:
                under_way = self._under_way = TokenRequest()
                under_way.started_at = now
                threading.Thread(target=self._fetch, args=(under_way,), name="token", daemon=True).start()
            under_way.listeners.append(on_done)
            return under_way

    def wait(self, timeout_s: float) -> OAuthToken:
        """Request and wait. Raises NetError: TokenUnavailable after `timeout_s`."""
        ready = threading.Event()
        request = self.request(ready.set)
        if not request.done:
            ready.wait(timeout_s)
        result = request.result if request.done else TokenUnavailable(f"no token came within {round(timeout_s, 2):g} s")
        if isinstance(result, NetError):
            raise result
        return result

    def reject(self, token: OAuthToken, error: NetError) -> None:
        """Discard a token that a broker has rejected, and pause logins for a moment."""
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
        except Exception as error:
            result = TokenUnavailable(f"the token callback failed: {type(error).__name__}: {error}")
        with self._lock:
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
