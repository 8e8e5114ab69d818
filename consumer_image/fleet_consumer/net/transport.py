"""Connected non-blocking sockets with and without TLS, TLS contexts, and the conversion of OpenSSL's errors."""

import socket
import ssl
from typing import Final

from fleet_consumer.contract.brokers import TlsSettings
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import TlsFailed
from fleet_consumer.net.tls_files import authorities, chain, load_client, stamps_of

_NO_ROOT: Final = 2
"""X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT: the CA file lacks the root certificate. Java's clients accept any certificate
of the CA file as trusted, but OpenSSL also requires the root."""
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
"""Alerts with which a broker refuses the client's certificate, or requires a certificate. Kafka's JVM sends
SSLV3_ALERT_BAD_CERTIFICATE if the certificate is missing, and SSLV3_ALERT_CERTIFICATE_UNKNOWN if it has expired or is
not trusted."""


def client_context(tls: TlsSettings, address: BrokerAddress) -> ssl.SSLContext:
    """Make a TLS context from the files of `tls`. If files were replaced during the read and do not match, all files
    are read again. Raises TlsFailed if the files cannot be used."""
    paths = [path for path in (tls.ca_file, tls.cert_file, tls.key_file) if path is not None]
    while True:
        before = stamps_of(paths)
        try:
            context = ssl.create_default_context(cadata=None if tls.ca_file is None else authorities(tls.ca_file))
            # Clear two flags, which Python sets by default since 3.13. The strict checks require key identifiers, which
            # private CAs often lack. Partial chains would be accepted here, but not by librdkafka.
            context.verify_flags &= ~(ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)
            if tls.cert_file is not None:
                load_client(context, chain(tls.cert_file), tls.key_file or tls.cert_file)
        except (OSError, ValueError) as error:
            if stamps_of(paths) != before:
                continue
            raise TlsFailed(
                f"TLS to broker {address}: cannot use the files ca={tls.ca_file} cert={tls.cert_file} "
                f"key={tls.key_file}: {error}; check that they are PEM, and that the key fits and has no passphrase",
                address=address,
                reason="TlsFilesInvalid",
            ) from error
        return context


def not_trusted(error: ssl.SSLCertVerificationError, address: BrokerAddress) -> TlsFailed:
    """Return the error for a broker whose certificate is not trusted, with a `reason` for each remedy."""
    reason, remedy = "CertificateNotTrusted", "check that the CA file contains the CA that signed it"
    if error.verify_code == _EXPIRED:
        reason, remedy = "CertificateExpired", "renew it at the broker, and check this machine's clock"
    elif error.verify_code == _NO_ROOT:
        remedy = "the CA file contains an intermediate CA without its root CA: add the root's certificate"
    elif error.verify_code in _OTHER_HOST:
        reason = "HostNameMismatch"
        remedy = f"connect by a name in the certificate, or get a certificate that also names {address.host}"
    return TlsFailed(
        f"TLS to broker {address}: its certificate is not trusted: {error.verify_message}; {remedy}",
        address=address,
        reason=reason,
    )


def refused(error: ssl.SSLError, address: BrokerAddress, tls: TlsSettings | None) -> TlsFailed:
    """Return the error for a handshake that the broker has ended, with a `reason` for each remedy."""
    seen = error.reason or str(error)
    if seen not in _CLIENT_CERTIFICATE:
        return TlsFailed(
            f"TLS to broker {address} failed: {seen}; check that this listener speaks TLS, and in which versions",
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
        "and whether the broker trusts the CA that signed it",
        address=address,
        reason="ClientCertificateRefused",
    )


RECEIVE_BYTES: Final = 256 * 1024
"""Maximum number of bytes received from one connection before the next connection is served."""


class Transport:
    """Non-blocking send and receive, without TLS. Raises socket errors (OSError, which includes ssl.SSLError)."""

    wants_write = False
    """True if TLS must write before it can continue."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def handshake(self) -> bool:
        """Continue the handshake. Returns True once it is complete."""
        return True

    def receive(self) -> bytes | None:
        """Return the received bytes, None if no bytes have arrived yet, or b"" at the end of the stream."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def send(self, data: bytes) -> int:
        """Send as much of the beginning of `data` as the socket accepts. Returns the number of bytes sent."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class TlsTransport(Transport):
    """TLS with the `ssl` module. A receive may first require a write, and a send may first require a read."""

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
        """Receive, and drain TLS's own buffer, because the selector does not report bytes that TLS has already
        decrypted."""
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
    """Return the transport for these settings. Raises TlsFailed if the files of `tls` cannot be used."""
    if tls is None:
        return Transport(connected)
    context = client_context(tls, address)
    try:
        return TlsTransport(connected, context, address.certified)
    except ValueError as error:  # a host name that no certificate can have
        raise TlsFailed(f"TLS to broker {address}: {error}", address=address) from error
