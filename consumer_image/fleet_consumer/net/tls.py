"""TLS contexts from certificate files that are replaced at run time, and OpenSSL's errors explained."""

from __future__ import annotations

import ssl
from typing import Final

from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import TlsFailed
from fleet_consumer.net.settings import TlsSettings
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
