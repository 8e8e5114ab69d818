"""One socket's life: name lookup, connect, TLS, negotiation, use, end.

Every method that moves it may raise a NetError; the connection is then over and its owner must `close` it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from fleet_consumer.net import tls_failures
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.call import Call
from fleet_consumer.net.errors import ConnectFailed, Disconnected, NetError, TokenUnavailable
from fleet_consumer.net.oauth import OAuthToken
from fleet_consumer.net.resolver import Lookup, SocketAddress
from fleet_consumer.net.session import AuthenticatedSession
from fleet_consumer.net.settings import ConnectionSettings
from fleet_consumer.net.transport import Transport, make_transport

TOKEN_RETRY_S: Final = 1.0
"""How soon a token is asked for again while there is none for the renewal of a login."""

SEND_BYTES: Final = 256 * 1024
"""How much is handed to the kernel at once."""

_CONNECTING_ERRNOS: Final = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


class ConnectionPhase(Enum):
    """How far a connection has come; the value completes "while it was ..."."""

    AUTHORIZING = "waiting for a token"
    RESOLVING = "looking up the name"
    CONNECTING = "connecting"
    SECURING = "opening TLS"
    NEGOTIATING = "negotiating versions and login"
    OPEN = "in use"


class Connection:
    """A connection to one broker, registered in `selector` with `owner` as the key's data.

    `on_news` is called, on another thread, when `advance` has something new to look at: a looked-up name, a token.
    """

    def __init__(
        self,
        address: BrokerAddress,
        settings: ConnectionSettings,
        *,
        selector: selectors.BaseSelector,
        owner: object,
        on_news: Callable[[], None],
        renewal_share: float,
        now: float,
    ) -> None:
        self.address = address
        self._tokens = settings.sasl.tokens if settings.sasl is not None else None
        self.phase = ConnectionPhase.RESOLVING if self._tokens is None else ConnectionPhase.AUTHORIZING
        self.session = AuthenticatedSession(address, settings.client_id, settings.sasl, renewal_share)
        self.opened = False
        """Whether the negotiation has ever been completed."""
        self._settings = settings
        self._selector = selector
        self._owner = owner
        self._on_news = on_news
        self._idle_s = settings.connections_max_idle_ms / 1000
        self._patience_s = settings.connect_timeout_ms / 1000
        self._setup_deadline: float | None = now + self._patience_s
        self._attempt_deadline = now + self._patience_s
        self._last_used_at = now
        self._targets: deque[SocketAddress] = deque()
        self._last_failure = ""
        self._socket: socket.socket | None = None
        self._transport: Transport | None = None
        self._registered: int | None = None
        self._interest = 0
        self._lookup = Lookup(address, on_news)
        self._lookup.start()
        self._token: OAuthToken | None = None
        # The wish for the next token: for the first login from the start, then whenever a renewal comes near.
        self._token_wish = self._tokens.request(on_news) if self._tokens is not None else None

    @property
    def due(self) -> float:
        """When `advance` must be called at the latest, though nothing happens on the socket."""
        if self._setup_deadline is not None:
            return self._attempt_deadline if self.phase is ConnectionPhase.CONNECTING else self._setup_deadline
        if not self.session.idle:
            return float("inf")  # an idle end or a new login has to wait for the answers
        idle_end = self._last_used_at + self._idle_s
        if self._token_wish is not None:
            return min(idle_end, self.session.expires_at + self._patience_s)  # the token itself is told
        return idle_end if self.session.renew_at is None else min(idle_end, self.session.renew_at)

    def has_idled_out(self, now: float) -> bool:
        """Whether this connection has been unused for so long that it should end."""
        return self.phase is ConnectionPhase.OPEN and self.session.idle and now >= self._last_used_at + self._idle_s

    def advance(self, now: float) -> None:
        """Do what time, the lookup or a token has made due."""
        if self.phase is ConnectionPhase.AUTHORIZING and self._take_token():
            self.phase = ConnectionPhase.RESOLVING
        if self.phase is ConnectionPhase.RESOLVING and self._lookup.done:
            self._take_lookup()
            self._connect_next(now)
        if self.phase is ConnectionPhase.CONNECTING and now >= self._attempt_deadline:
            self._last_failure = "no answer"
            self._connect_next(now)
        if self._setup_deadline is not None and now >= self._setup_deadline:
            if self.phase is ConnectionPhase.AUTHORIZING:
                raise TokenUnavailable(
                    f"no token to log in at broker {self.address} after {self._patience_s:g} s; "
                    "is the token endpoint slow?"
                )
            raise ConnectFailed(
                f"broker {self.address} was still {self.phase.value} after {self._patience_s:g} s; "
                "check address, firewall and whether the broker is alive",
                address=self.address,
            )
        if self.session.renew_at is not None and now >= self.session.renew_at:
            self._renew(now)

    def submit(self, call: Call[Any], now: float) -> None:
        """Send a call's request; see `AuthenticatedSession.submit`."""
        self.session.submit(call)
        self._last_used_at = now

    def on_events(self, mask: int, now: float) -> None:
        """Do what the selector has seen to be possible."""
        if self.phase is ConnectionPhase.CONNECTING:
            self._finish_connect(now)
        if self.phase is ConnectionPhase.SECURING:
            self._secure()
        if self.phase not in (ConnectionPhase.NEGOTIATING, ConnectionPhase.OPEN) or self._transport is None:
            return
        if mask & selectors.EVENT_READ or self._transport.wants_write:
            self._read(now)

    def flush(self) -> None:
        """Send what can be sent now, and ask the selector for what is still to come."""
        outbox = self.session.outbox
        transport = self._transport
        try:
            while transport is not None and self.phase is not ConnectionPhase.SECURING and outbox:
                sent = transport.send(bytes(memoryview(outbox)[:SEND_BYTES]))
                if sent == 0:
                    break
                del outbox[:sent]
        except OSError as error:
            raise self._broken(self._last_words() or error) from error
        self._watch()

    def close(self) -> None:
        """Give everything back. Safe in every phase, and twice."""
        self._unwatch()
        if self._transport is not None:
            self._transport.close()
        if self._socket is not None:
            self._socket.close()

    def rejected(self, error: NetError) -> None:
        """The login failed with `error`; if a token was refused, others must not show it again."""
        if self._tokens is not None and self._token is not None:
            self._tokens.reject(self._token, error)

    def _renew(self, now: float) -> None:
        """Log in again before the broker would close the connection.

        Requests go on until a new token is there, or the present login has ended; then they wait.
        """
        if self._tokens is not None and not self.session.renewing and not self._renew_token(now):
            return
        self.session.renewing = True
        if self.session.idle:
            self._setup_deadline = now + self._patience_s
            self.phase = ConnectionPhase.NEGOTIATING
            self.session.renew(self._token)

    def _renew_token(self, now: float) -> bool:
        """Whether a token for the renewal is there. Raises NetError once the login has ended and none will come."""
        assert self._tokens is not None
        expires_at = self.session.expires_at
        if self._token_wish is None:
            self._token_wish = self._tokens.request(self._on_news)
        try:
            if self._take_token():
                return True
        except NetError:
            if now >= expires_at:
                raise
            self.session.renew_at = min(now + TOKEN_RETRY_S, expires_at)
        if now >= expires_at + self._patience_s:
            raise TokenUnavailable(
                f"the login at broker {self.address} has ended and no new token came within {self._patience_s:g} s",
                address=self.address,
            )
        return False

    def _take_token(self) -> bool:
        """Whether the token that was wished for is there. Raises NetError when there will be none."""
        wish = self._token_wish
        if wish is None or not wish.done:
            return False
        self._token_wish = None
        if isinstance(wish.result, NetError):
            raise wish.result
        self._token = wish.result
        return True

    def _take_lookup(self) -> None:
        found = self._lookup.result
        if isinstance(found, OSError) or not found:
            raise ConnectFailed(
                f"broker {self.address}: no address for this name: {found or 'none found'}; check the name and DNS",
                address=self.address,
                reason="NameNotResolved",
            )
        self._targets.extend(found)
        self.phase = ConnectionPhase.CONNECTING

    def _connect_next(self, now: float) -> None:
        """Try the name's next address; each gets a share of the time, so that a silent one leaves some."""
        while self._targets:
            assert self._setup_deadline is not None
            share = (self._setup_deadline - now) / len(self._targets)
            self._attempt_deadline = now + share
            if self._connect_to(self._targets.popleft()):
                return
        raise ConnectFailed(
            f"broker {self.address} cannot be reached: {self._last_failure}; check that it runs at this address",
            address=self.address,
        )

    def _connect_to(self, target: SocketAddress) -> bool:
        self.close()
        try:
            self._socket = socket.socket(target[0], socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptors left
            self._last_failure = str(error)
            return False
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        code = self._socket.connect_ex(target[1])
        if code not in _CONNECTING_ERRNOS:
            self._last_failure = os.strerror(code)
            return False
        self._watch()
        return True

    def _finish_connect(self, now: float) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # On loopback a dead port in the ephemeral range can be handed out as our own end: we talk to ourselves then.
        if code == 0 and self._socket.getsockname() == _peer_name(self._socket):
            code = errno.ECONNREFUSED
        if code != 0:
            self._last_failure = os.strerror(code)
            self._connect_next(now)
            return
        self._unwatch()
        self.phase = ConnectionPhase.SECURING
        try:
            self._transport = make_transport(self._socket, self._settings.tls, self.address)
        except OSError as error:  # gone again already
            raise self._broken(error) from error

    def _secure(self) -> None:
        assert self._transport is not None
        try:
            finished = self._transport.handshake()
        except ssl.SSLCertVerificationError as error:
            raise tls_failures.not_trusted(error, self.address) from error
        except OSError as error:
            raise self._broken(error) from error
        if finished:
            self.phase = ConnectionPhase.NEGOTIATING
            self.session.begin(self._token)

    def _read(self, now: float) -> None:
        assert self._transport is not None
        try:
            data = self._transport.receive()
        except OSError as error:
            raise self._broken(error) from error
        if data is None:
            return
        if not data:
            raise self._broken(None)
        self.session.receive(data, now)
        if self.session.ready and self.phase is ConnectionPhase.NEGOTIATING:
            self.phase = ConnectionPhase.OPEN
            self.opened = True
            self._setup_deadline = None
        self._last_used_at = now

    def _last_words(self) -> ssl.SSLError | None:
        """What the broker said before it hung up, if it did: a TLS alert may wait unread when our own send fails."""
        assert self._transport is not None
        try:
            self._transport.receive()
        except ssl.SSLError as alert:
            return None if isinstance(alert, ssl.SSLEOFError) else alert
        except OSError:
            return None
        return None

    def _broken(self, error: OSError | None) -> NetError:
        """What a failed or ended socket means in this phase."""
        seen = "closed by the broker" if error is None else (error.strerror or str(error))
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return tls_failures.refused(error, self.address, self._settings.tls)
        if self.phase is ConnectionPhase.SECURING:
            return ConnectFailed(
                f"broker {self.address} hung up at the start of TLS: {seen}; does this listener speak TLS?",
                address=self.address,
            )
        wanted = "TLS or SASL" if self._settings.tls is None else "SASL or a client certificate"
        hint = "" if self.session.answers > 1 else f"; does this listener want {wanted} that is not configured?"
        return Disconnected(
            f"connection to broker {self.address} ended while it was {self.phase.value}: {seen}{hint}",
            address=self.address,
        )

    def _watch(self) -> None:
        """Ask the selector for exactly the events that can move this connection."""
        if self._socket is None:
            return
        wants_write = self.phase is ConnectionPhase.CONNECTING or bool(self.session.outbox)
        if self._transport is not None:
            wants_write = self._transport.wants_write or (wants_write and self.phase is not ConnectionPhase.SECURING)
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_write else 0)
        if self._registered is None:
            descriptor = self._socket.fileno() if self._transport is None else self._transport.fileno()
            self._selector.register(descriptor, interest, self._owner)
            self._registered = descriptor
        elif interest != self._interest:
            self._selector.modify(self._registered, interest, self._owner)
        self._interest = interest

    def _unwatch(self) -> None:
        if self._registered is not None:
            self._selector.unregister(self._registered)
            self._registered = None


def _peer_name(connected: socket.socket) -> object:
    with contextlib.suppress(OSError):
        return connected.getpeername()
    return None
