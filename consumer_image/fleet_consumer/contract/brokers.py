"""The `connection` of worker.json: addresses of the brokers, TLS files and login."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.section import Section, SettingsInvalid

OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----([^-]*)-----END \1-----")
"""Matches a PEM block. A match never spans two blocks, and matching takes linear time even for large, hostile input."""
_LAYOUT: Final = re.compile(rb"\\[nr]|\s")
"""Matches white space in a PEM block, including escaped line breaks (as in JSON or environment variables)."""


@fields.settings
class TlsSettings:
    """Paths of PEM files. If `ca_file` is None, the system's CAs are trusted.

    The file name of `ca_file` may have one asterisk, such as `/etc/kafka/ca/*.crt`. The certificates of all matching
    files are trusted, as needed while one CA replaces another.

    `cert_file` (with its chain) and `key_file` authenticate the client, if the broker requires it. Files are read again
    for every connection, so renewed certificates need no restart. Host names are always verified.
    """

    ca_file: str | None = fields.text(null=True, default=None)
    cert_file: str | None = fields.text(null=True, default=None)
    key_file: str | None = fields.text(null=True, default=None)


def _tls(section: Section) -> TlsSettings:
    files = fields.parse(TlsSettings, section)
    if (files.cert_file is None) != (files.key_file is None):
        raise SettingsInvalid(section.path, "certFile and keyFile go together; give both or neither")
    return files


@fields.settings
class TokenEndpoint:
    url: str = fields.text(name="tokenEndpoint")
    scope: str | None = fields.text(null=True)


@fields.settings
class SaslSource:
    """Login settings. `directory` contains the two `credential_files`; `identity`, if set, replaces the first file."""

    mechanism: str = fields.choice(*MECHANISMS)
    oauth: TokenEndpoint | None = fields.nested(TokenEndpoint, null=True)
    directory: str = fields.text()
    identity: str | None = fields.text(null=True)


def _sasl(section: Section) -> SaslSource:
    source = fields.parse(SaslSource, section)
    if (source.oauth is not None) != (source.mechanism == OAUTHBEARER):
        raise SettingsInvalid(section.at("oauth"), "goes with mechanism OAUTHBEARER; give both or neither")
    return source


@fields.settings
class Brokers:
    """Connection to a cluster: plaintext if `tls` is None, without login if `sasl` is None."""

    bootstrap_servers: tuple[str, ...] = fields.strings(1)
    tls: TlsSettings | None = fields.nested(_tls, null=True)
    sasl: SaslSource | None = fields.nested(_sasl, null=True)


def credential_files(mechanism: str) -> tuple[str, str]:
    """Return the names of a mounted login's two files. The same names are the default keys of its Secret."""
    return ("clientId", "clientSecret") if mechanism == OAUTHBEARER else ("username", "password")


def credential_text(value: bytes) -> str:
    """Decode a credential, and remove the byte order mark and line end that editors and `echo` add. Raises
    UnicodeDecodeError."""
    return value.decode("utf-8-sig").rstrip("\r\n")


def matching_files(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that match a pattern with one asterisk, sorted. Hidden names (the kubelet's links) never
    match."""
    start, _, end = pattern.partition("*")
    long_enough = len(start) + len(end)
    return sorted(
        name
        for name in names
        if len(name) >= long_enough and name.startswith(start) and name.endswith(end) and not name.startswith(".")
    )


def certificates(contents: Iterable[bytes]) -> Iterator[str]:
    """Yield the PEM certificates in files' contents, in order, in a form that OpenSSL and librdkafka can read.

    As in Java's clients, lines may be indented, and blocks may follow each other without a line break. Other content is
    skipped: comments, OpenSSL's own text, and the trust settings of a TRUSTED CERTIFICATE.
    """
    for text in contents:
        for label, body in _CERTIFICATE.findall(text):
            try:
                der = base64.b64decode(_LAYOUT.sub(b"", body), validate=True)
            except binascii.Error:
                continue
            encoded = base64.b64encode(der[: _length(der)] if label.startswith(b"TRUSTED") else der).decode()
            lines = (encoded[at : at + 64] for at in range(0, len(encoded), 64))
            yield "\n".join(("-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""))


def _length(der: bytes) -> int:
    """Return the length in bytes of the first DER element, including its header."""
    size = der[1] if len(der) > 1 else 0
    if size < 0x80:
        return 2 + size
    octets = size & 0x7F
    return 2 + octets + int.from_bytes(der[2 : 2 + octets], "big")


def parse_brokers(section: Section) -> Brokers:
    """Parse a `connection`. Raises SettingsInvalid for the first invalid field."""
    return fields.parse(Brokers, section)
