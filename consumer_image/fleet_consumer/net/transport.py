"""Connected non-blocking sockets, plain or with TLS, behind one small interface; TLS contexts, and OpenSSL's errors
explained.

Contexts are made from certificate files that are replaced at run time.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

from fleet_consumer.contract.brokers import TlsSettings
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import TlsFailed
from fleet_consumer.net.tls_files import authorities, chain, load_client, stamps_of

_NO_ROOT: Final = 2
"""X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT: Java's clients trust any listed certificate, OpenSSL's only up to a root."""
_EXPIRED: Final = 10
_OTHER_HOST: Final = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""

_CLIENT_CERTIFICATE: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)
"""The alerts by which a broker refuses the client's certificate, or requires one. Kafka's JVM sends
SSLV3_ALERT_BAD_CERTIFICATE for a missing one, and SSLV3_ALERT_CERTIFICATE_UNKNOWN for one that has expired or is not
trusted."""


def client_context(tls: TlsSettings, address: BrokerAddress) -> ssl.SSLContext:
    """Read the files of `tls`. They are renewed as a whole, so an inconsistent mixture of old and new is read again.

    Raises TlsFailed if they cannot be used.
    """
    paths = [path for path in (tls.ca_file, tls.cert_file, tls.key_file) if path is not None]
    while True:
        before = stamps_of(paths)
        try:
            context = ssl.create_default_context(cadata=None if tls.ca_file is None else authorities(tls.ca_file))
            # Python 3.13 sets both. Private authorities often lack key identifiers, which strict checks ask for; and a
            # chain that ends before its root would pass here, and not in librdkafka.
            context.verify_flags &= ~(ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)
            if tls.cert_file is not None:
                load_client(context, chain(tls.cert_file), tls.key_file or tls.cert_file)
        except (OSError, ValueError) as error:
            if stamps_of(paths) != before:
                continue
            raise TlsFailed(
                f"TLS to broker {address}: cannot use the files ca={tls.ca_file} cert={tls.cert_file} "
                f"key={tls.key_file}: {error}; they must exist, be PEM, and the key must fit and have no passphrase",
                address=address,
                reason="TlsFilesInvalid",
            ) from error
        return context


def not_trusted(error: ssl.SSLCertVerificationError, address: BrokerAddress) -> TlsFailed:
    """The error of an untrusted broker; `reason` is CertificateExpired, HostNameMismatch or CertificateNotTrusted."""
    reason, remedy = "CertificateNotTrusted", "check that the CA file holds the authority that signed it"
    if error.verify_code == _EXPIRED:
        reason, remedy = "CertificateExpired", "renew it at the broker, and check this machine's clock"
    elif error.verify_code == _NO_ROOT:
        remedy = "the CA file holds an authority without the one that signed it: add the root's certificate"
    elif error.verify_code in _OTHER_HOST:
        reason = "HostNameMismatch"
        remedy = f"connect by a name in the certificate, or have it issued for {address.host} too"
    return TlsFailed(
        f"TLS to broker {address}: its certificate is not trusted: {error.verify_message}; {remedy}",
        address=address,
        reason=reason,
    )


def refused(error: ssl.SSLError, address: BrokerAddress, tls: TlsSettings | None) -> TlsFailed:
    """The error of a TLS handshake ended by the broker: ClientCertificateMissing, ClientCertificateRefused,
    TlsFailed."""
    seen = error.reason or str(error)
    if seen not in _CLIENT_CERTIFICATE:
        return TlsFailed(
            f"TLS to broker {address} failed: {seen}; check that this listener speaks TLS, and its protocol versions",
            address=address,
        )
    if tls is None or tls.cert_file is None:
        return TlsFailed(
            f"broker {address} requires a client certificate and none is configured ({seen}); set certificate and key",
            address=address,
            reason="ClientCertificateMissing",
        )
    return TlsFailed(
        f"broker {address} refuses the client certificate {tls.cert_file} ({seen}); check whether it has expired, "
        "and whether the broker trusts the authority that signed it",
        address=address,
        reason="ClientCertificateRefused",
    )


RECEIVE_BYTES: Final = 256 * 1024
"""The most bytes received from one connection before the next has its turn."""


class Transport:
    """Non-blocking send and receive, without TLS. Socket errors (OSError, which includes ssl.SSLError) pass through."""

    wants_write = False
    """True if the transport itself has to write before it can continue; only TLS does."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def handshake(self) -> bool:
        """Continue the opening of the transport; True once it is open."""
        return True

    def receive(self) -> bytes | None:
        """Received bytes; None if there are none, b"" at the end of the stream."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def send(self, data: bytes) -> int:
        """Send the beginning of `data`; returns the number of bytes taken."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class TlsTransport(Transport):
    """TLS by the `ssl` module. Reading a TLS record may need writing, and the other way round."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._tls = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        super().__init__(self._tls)

    def handshake(self) -> bool:
        self.wants_write = False
        try:
            self._tls.do_handshake()
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
        while len(received) < RECEIVE_BYTES or self._tls.pending():
            try:
                chunk = self._tls.recv(RECEIVE_BYTES)
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
            return self._tls.send(data)
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return 0


def make_transport(connected: socket.socket, tls: TlsSettings | None, address: BrokerAddress) -> Transport:
    """The transport for these settings. Raises TlsFailed if the files of `tls` cannot be used."""
    if tls is None:
        return Transport(connected)
    context = client_context(tls, address)
    try:
        return TlsTransport(connected, context, address.certified)
    except ValueError as error:  # a host name that no certificate can have
        raise TlsFailed(f"TLS to broker {address}: {error}", address=address) from error
