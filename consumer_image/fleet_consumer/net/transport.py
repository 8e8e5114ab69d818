"""Connected non-blocking sockets, plain or with TLS, behind one small interface."""

from __future__ import annotations

import socket
import ssl
from typing import Final, Protocol

from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import TlsFailed
from fleet_consumer.net.settings import TlsSettings
from fleet_consumer.net.tls import client_context

RECEIVE_BYTES: Final = 256 * 1024
"""The most bytes received from one connection before the next has its turn."""


class Transport(Protocol):
    """Non-blocking send and receive. Socket errors (OSError, which includes ssl.SSLError) pass through."""

    wants_write: bool
    """True if the transport itself has to write before it can continue; only TLS does."""

    def handshake(self) -> bool:
        """Continue the opening of the transport; True once it is open."""
        ...

    def receive(self) -> bytes | None:
        """Received bytes; None if there are none, b"" at the end of the stream."""
        ...

    def send(self, data: bytes) -> int:
        """Send the beginning of `data`; returns the number of bytes taken."""
        ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class PlainTransport:
    """A transport without TLS."""

    wants_write = False

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def handshake(self) -> bool:
        return True

    def receive(self) -> bytes | None:
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class TlsTransport:
    """TLS by the `ssl` module. Reading a TLS record may need writing, and the other way round."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        self.wants_write = False

    def handshake(self) -> bool:
        self.wants_write = False
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        return True

    def receive(self) -> bytes | None:
        """Receive, and empty TLS's own buffer: bytes already decrypted make no socket readable again."""
        received = bytearray()
        self.wants_write = False
        while len(received) < RECEIVE_BYTES or self._socket.pending():
            try:
                chunk = self._socket.recv(RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLWantWriteError:
                self.wants_write = True
                break
            if not chunk:
                return bytes(received)
            received += chunk
        return bytes(received) or None

    def send(self, data: bytes) -> int:
        self.wants_write = False
        try:
            return self._socket.send(data)
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def make_transport(connected: socket.socket, tls: TlsSettings | None, address: BrokerAddress) -> Transport:
    """The transport for these settings. Raises TlsFailed if the files of `tls` cannot be used."""
    if tls is None:
        return PlainTransport(connected)
    context = client_context(tls, address)
    try:
        return TlsTransport(connected, context, address.certified)
    except ValueError as error:  # a host name that no certificate can have
        raise TlsFailed(f"TLS to broker {address}: {error}", address=address) from error
