"""One connection to a broker: name lookup, TCP connect, TLS, negotiation, use, close.

After a method has raised NetError, the connection is unusable, and its owner must call `close`.
"""

import contextlib
import errno
import os
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from fleet_consumer.net import transport
from fleet_consumer.net.addresses import BrokerAddress, Lookups, SocketAddress
from fleet_consumer.net.errors import ConnectFailed, Disconnected, NetError, TokenUnavailable
from fleet_consumer.net.oauth import OAuthToken
from fleet_consumer.net.session import AuthenticatedSession, Call
from fleet_consumer.net.settings import ConnectionSettings
from fleet_consumer.net.transport import Transport, make_transport

TOKEN_RETRY_S: Final = 1.0
"""Interval in seconds at which a token for re-authentication is requested while none is available."""

SEND_BYTES: Final = 256 * 1024
"""Maximum number of bytes passed to the kernel per send."""

_CONNECTING_ERRNOS: Final = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


class ConnectionPhase(Enum):
    """The state of a connection. Error messages insert the value after "while it was"."""

    AUTHORIZING = "waiting for a token"
    RESOLVING = "looking up the name"
    CONNECTING = "connecting"
    SECURING = "opening TLS"
    NEGOTIATING = "negotiating versions and login"
    OPEN = "in use"


class IoLoop(NamedTuple):
    """A network client's I/O loop. Any thread may call `wakeup`, to end the loop's wait."""

    selector: selectors.BaseSelector
    wakeup: Callable[[], None]
    lookups: Lookups


class Connection:
    """A connection to one broker, registered in the loop's selector with `owner` as the key's data. Another thread
    calls `loop.wakeup` when a resolved name or a token is ready for `advance`."""

    def __init__(
        self,
        address: BrokerAddress,
        settings: ConnectionSettings,
        *,
        loop: IoLoop,
        owner: object,
        renewal_share: float,
        now: float,
    ) -> None:
        self.address = address
        self._tokens = settings.sasl.tokens if settings.sasl is not None else None
        self.phase = ConnectionPhase.RESOLVING if self._tokens is None else ConnectionPhase.AUTHORIZING
        self.session = AuthenticatedSession(address, settings.client_id, settings.sasl, renewal_share)
        self.opened = False
        """True once the first negotiation has completed."""
        self._settings = settings
        self._loop = loop
        self._owner = owner
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
        self._lookup = loop.lookups.start(address)
        self._token: OAuthToken | None = None
        # The pending token request. The first is made immediately, for the first login; later requests when a renewal
        # is due.
        self._token_request = self._tokens.request(loop.wakeup) if self._tokens is not None else None

    @property
    def next_at(self) -> float:
        """The time at which `advance` must be called, unless a socket event comes first."""
        if self._setup_deadline is not None:
            return self._attempt_deadline if self.phase is ConnectionPhase.CONNECTING else self._setup_deadline
        if not self.session.idle:
            return float("inf")  # idle timeout and re-authentication wait for pending responses
        idle_end = self._last_used_at + self._idle_s
        if self._token_request is not None:
            return min(
                idle_end, self.session.expires_at + self._patience_s
            )  # the arrival of a token calls `loop.wakeup`
        return idle_end if self.session.renew_at is None else min(idle_end, self.session.renew_at)

    @property
    def unused_since(self) -> float | None:
        """The time of the last use; None while the connection is being opened or a response is due."""
        return self._last_used_at if self.phase is ConnectionPhase.OPEN and self.session.idle else None

    def has_idled_out(self, now: float) -> bool:
        return self.unused_since is not None and now >= self.unused_since + self._idle_s

    def advance(self, now: float) -> None:
        """Continue after a deadline has passed, a name has been resolved, or a token has arrived. Raises NetError."""
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
                    f"no token for the login at broker {self.address} after {self._patience_s:g} s; "
                    "is the token endpoint slow?"
                )
            raise ConnectFailed(
                f"broker {self.address} was still {self.phase.value} after {self._patience_s:g} s; "
                "check the address and the firewall, and that the broker is running",
                address=self.address,
            )
        if self.session.renew_at is not None and now >= self.session.renew_at:
            self._renew(now)

    def submit(self, call: Call[Any], now: float) -> None:
        """Queue a call's request. Raises the same errors as `AuthenticatedSession.submit`."""
        self.session.submit(call)
        self._last_used_at = now

    def on_events(self, mask: int, now: float) -> None:
        if self.phase is ConnectionPhase.CONNECTING:
            self._finish_connect(now)
        if self.phase is ConnectionPhase.SECURING:
            self._secure()
        if self.phase not in (ConnectionPhase.NEGOTIATING, ConnectionPhase.OPEN) or self._transport is None:
            return
        if mask & selectors.EVENT_READ or self._transport.wants_write:
            self._receive(now)

    def flush(self) -> None:
        """Send as much as the socket accepts, and register for the events that are still needed."""
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
        """Close and unregister, in any phase. Idempotent."""
        self._unwatch()
        if self._transport is not None:
            self._transport.close()
        if self._socket is not None:
            self._socket.close()

    def rejected(self, error: NetError) -> None:
        """Report a failed login to the token source, so that the rejected token is not used again."""
        if self._tokens is not None and self._token is not None:
            self._tokens.reject(self._token, error)

    def _renew(self, now: float) -> None:
        """Re-authenticate before the broker closes the connection. New requests are accepted until a new token is
        available or the current login expires. After that, new requests wait until the re-authentication has ended."""
        if self._tokens is not None and not self.session.renewing and not self._renew_token(now):
            return
        self.session.renewing = True
        if self.session.idle:
            self._setup_deadline = now + self._patience_s
            self.phase = ConnectionPhase.NEGOTIATING
            self.session.renew(self._token)

    def _renew_token(self, now: float) -> bool:
        """Return True if a token for the renewal is available. Raises NetError if none is available after the login has
        expired."""
        assert self._tokens is not None
        expires_at = self.session.expires_at
        if self._token_request is None:
            self._token_request = self._tokens.request(self._loop.wakeup)
        try:
            if self._take_token():
                return True
        except NetError:
            if now >= expires_at:
                raise
            self.session.renew_at = min(now + TOKEN_RETRY_S, expires_at)
        if now >= expires_at + self._patience_s:
            raise TokenUnavailable(
                f"the login at broker {self.address} has expired, and no new token came within {self._patience_s:g} s; "
                "check the token endpoint",
                address=self.address,
            )
        return False

    def _take_token(self) -> bool:
        """Use the requested token. Returns False if the token has not arrived. Raises NetError if the request
        failed."""
        request = self._token_request
        if request is None or not request.done:
            return False
        self._token_request = None
        if isinstance(request.result, NetError):
            raise request.result
        self._token = request.result
        return True

    def _take_lookup(self) -> None:
        found = self._lookup.result
        if isinstance(found, OSError) or not found:
            raise ConnectFailed(
                f"broker {self.address}: cannot resolve the name: {found or 'none found'}; check the name and DNS",
                address=self.address,
                reason="NameNotResolved",
            )
        self._targets.extend(found)
        self.phase = ConnectionPhase.CONNECTING

    def _connect_next(self, now: float) -> None:
        """Try the next address, with an equal share of the remaining time. Raises ConnectFailed if no address is
        left."""
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
        except OSError as error:  # no IPv6 on this host, or no descriptors left
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
        # On loopback, a closed port in the ephemeral range can be our own local port: TCP then connects to itself.
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
        except OSError as error:  # the peer has already closed
            raise self._broken(error) from error

    def _secure(self) -> None:
        assert self._transport is not None
        try:
            finished = self._transport.handshake()
        except ssl.SSLCertVerificationError as error:
            raise transport.not_trusted(error, self.address) from error
        except OSError as error:
            raise self._broken(error) from error
        if finished:
            self.phase = ConnectionPhase.NEGOTIATING
            self.session.start_session(self._token)

    def _receive(self, now: float) -> None:
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
        """Return the TLS alert that the broker sent before it closed the connection, or None. If sending failed, the
        alert may have arrived without having been read."""
        assert self._transport is not None
        try:
            self._transport.receive()
        except ssl.SSLError as alert:
            return None if isinstance(alert, ssl.SSLEOFError) else alert
        except OSError:
            return None
        return None

    def _broken(self, error: OSError | None) -> NetError:
        seen = "closed by the broker" if error is None else (error.strerror or str(error))
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return transport.refused(error, self.address, self._settings.tls)
        if self.phase is ConnectionPhase.SECURING:
            return ConnectFailed(
                f"broker {self.address} hung up at the start of TLS: {seen}; does this listener speak TLS?",
                address=self.address,
            )
        wanted = "TLS or SASL" if self._settings.tls is None else "SASL or a client certificate"
        hint = "" if self.session.answers > 1 else f"; does this listener require {wanted}, which is not configured?"
        return Disconnected(
            f"connection to broker {self.address} ended while it was {self.phase.value}: {seen}{hint}",
            address=self.address,
        )

    def _watch(self) -> None:
        """Register in the selector for exactly the events that this connection waits for."""
        if self._socket is None:
            return
        wants_write = self.phase is ConnectionPhase.CONNECTING or bool(self.session.outbox)
        if self._transport is not None:
            wants_write = self._transport.wants_write or (wants_write and self.phase is not ConnectionPhase.SECURING)
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_write else 0)
        if self._registered is None:
            descriptor = self._socket.fileno() if self._transport is None else self._transport.fileno()
            self._loop.selector.register(descriptor, interest, self._owner)
            self._registered = descriptor
        elif interest != self._interest:
            self._loop.selector.modify(self._registered, interest, self._owner)
        self._interest = interest

    def _unwatch(self) -> None:
        if self._registered is not None:
            self._loop.selector.unregister(self._registered)
            self._registered = None


def _peer_name(connected: socket.socket) -> object:
    with contextlib.suppress(OSError):
        return connected.getpeername()
    return None
