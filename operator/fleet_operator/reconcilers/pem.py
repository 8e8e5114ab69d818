"""Checks of PEM texts from Secrets by OpenSSL itself, as whoever connects will read them.

They block, and a key needs a file, so they run on a thread. The texts are at most as large as a Secret, 1 MiB.
"""

from __future__ import annotations

import ssl
import tempfile

from fleet_consumer.contract.brokers import certificates
from fleet_consumer.net.tls_files import load_client, readable_certificates


def authorities_fault(pem: bytes) -> str | None:
    """The reason why no authority can be read from a text; None if one can."""
    return None if readable_certificates([pem]) else "no certificate in it can be read"


def pair_fault(certificate: bytes, key: bytes) -> str | None:
    """The reason why a client's certificate and private key cannot be used together; None if they can."""
    found = "".join(certificates([certificate]))
    if not found:
        return "no certificate in it can be read"
    with tempfile.NamedTemporaryFile(prefix="fleet-key-") as file:  # only we can read it
        file.write(key)
        file.flush()
        try:
            load_client(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), found, file.name)
        except (ssl.SSLError, ValueError) as error:
            return str(error)
    return None
