"""Checks of PEM texts from Secrets by OpenSSL itself, as whoever connects will read them.

They block and need files, so they run on a thread. The texts are at most as large as a Secret, 1 MiB.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path


def authorities_fault(pem: bytes) -> str | None:
    """The reason why no authority can be read from a text, in OpenSSL's words; None if one can."""
    with tempfile.TemporaryDirectory(prefix="fleet-pem-") as directory:
        file = _written(Path(directory, "ca"), pem)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except (ssl.SSLError, ValueError) as error:
            return str(error)
    return None


def pair_fault(certificate: bytes, key: bytes) -> str | None:
    """The reason why a client's certificate and private key cannot be used together; None if they can."""
    with tempfile.TemporaryDirectory(prefix="fleet-pem-") as directory:
        files = _written(Path(directory, "cert"), certificate), _written(Path(directory, "key"), key)
        try:
            # Without the callback, OpenSSL would ask for the passphrase of an encrypted key on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(*files, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            return str(error)
    return None


def _written(path: Path, pem: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(pem)
    return path
