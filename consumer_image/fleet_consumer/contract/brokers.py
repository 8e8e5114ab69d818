"""The `connection` of worker.json: addresses of the brokers, TLS files and login."""

from __future__ import annotations

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
"""No block takes the next one with it, and the search is linear: the text may be large and hostile."""
_LAYOUT: Final = re.compile(rb"\\[nr]|\s")
"""White space of the block's lines, also as escapes of a text that was once in JSON or in a variable."""


@fields.settings
class TlsSettings:
    """Paths of PEM files. Without `ca_file` the system's authorities are trusted.

    The file name of `ca_file` may have one asterisk, such as `/etc/kafka/ca/*.crt`: the certificates of all files that
    match are trusted together, as they are while an authority is replaced.

    `cert_file` (with its chain) and `key_file` authenticate the client, if the broker requires it. The files are read
    for every connection, so that renewed certificates need no restart. Host names are always verified.
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
    """Source of OAUTHBEARER tokens."""

    url: str = fields.text(name="tokenEndpoint")
    scope: str | None = fields.text(null=True)


@fields.settings
class SaslSource:
    """Login settings. `directory` holds the files `credential_files(mechanism)`, without the first if `identity` is
    given."""

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
    """Connection to a cluster; `tls` None is plain text, `sasl` None is no login."""

    bootstrap_servers: tuple[str, ...] = fields.texts(1)
    tls: TlsSettings | None = fields.nested(_tls, null=True)
    sasl: SaslSource | None = fields.nested(_sasl, null=True)


def credential_files(mechanism: str) -> tuple[str, str]:
    """Names of a login's mounted files, and default keys of its Secret: identity, then proof."""
    return ("clientId", "clientSecret") if mechanism == OAUTHBEARER else ("username", "password")


def credential_text(value: bytes) -> str:
    """Text of a credential, without the byte order mark and the line end that editors and `echo` add.

    Raises UnicodeDecodeError.
    """
    return value.decode("utf-8-sig").rstrip("\r\n")


def matching_files(names: Iterable[str], pattern: str) -> list[str]:
    """Names of files, or keys of a Secret, that match a pattern with one asterisk, in order.

    Hidden files match no pattern: the kubelet keeps its own links among mounted files.
    """
    start, _, end = pattern.partition("*")
    long_enough = len(start) + len(end)
    return sorted(
        name
        for name in names
        if len(name) >= long_enough and name.startswith(start) and name.endswith(end) and not name.startswith(".")
    )


def certificates(texts: Iterable[bytes]) -> Iterator[str]:
    """The PEM certificates of some texts, in order, as OpenSSL and librdkafka read them.

    As with Java's clients, lines may be indented, blocks may follow each other without a new line, and other content
    is left out, such as comments, OpenSSL's own text, and the trust settings of a TRUSTED CERTIFICATE.
    """
    for text in texts:
        for label, body in _CERTIFICATE.findall(text):
            try:
                der = base64.b64decode(_LAYOUT.sub(b"", body), validate=True)
            except binascii.Error:
                continue
            encoded = base64.b64encode(der[: _length(der)] if label.startswith(b"TRUSTED") else der).decode()
            lines = (encoded[at : at + 64] for at in range(0, len(encoded), 64))
            yield "\n".join(("-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""))


def _length(der: bytes) -> int:
    """The length in bytes of the first DER element, its header included."""
    size = der[1] if len(der) > 1 else 0
    if size < 0x80:
        return 2 + size
    octets = size & 0x7F
    return 2 + octets + int.from_bytes(der[2 : 2 + octets], "big")


def parse_brokers(section: Section) -> Brokers:
    """Settings of a `connection`. Raises SettingsInvalid for the first bad field found."""
    return fields.parse(Brokers, section)
