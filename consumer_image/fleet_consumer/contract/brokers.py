"""The `connection` of worker.json: addresses of the brokers, TLS files and login."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract.section import Section, SettingsInvalid

OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_END: Final = b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files; None for the system's authorities, and for no client certificate.

    The name in `ca_file` may have an asterisk: the certificates of all files that match it are trusted.
    """

    ca_file: str | None
    cert_file: str | None
    key_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """Source of OAUTHBEARER tokens."""

    url: str
    scope: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSource:
    """Login settings. `directory` holds the files `credential_files(mechanism)`, without the first if `identity` is
    given."""

    mechanism: str
    directory: str
    identity: str | None
    oauth: TokenEndpoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """Connection to a cluster; `tls` None is plain text, `sasl` None is no login."""

    bootstrap_servers: tuple[str, ...]
    tls: TlsFiles | None
    sasl: SaslSource | None


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
    """The PEM certificates of some texts, in order.

    Other content is left out: not every text is one that OpenSSL and librdkafka take as a string.
    """
    return (f"{block}\n" for text in texts for block in _blocks(text))


def _blocks(text: bytes) -> Iterator[str]:
    """The whole PEM blocks of a text, in one pass, as it may be large and hostile.

    A block that ends before it is whole does not take the next one with it; one with other bytes than ASCII is none.
    """
    at = 0
    while (end := text.find(_END, at)) >= 0:
        begin = text.rfind(_BEGIN, at, end)
        at = end + len(_END)
        if begin >= 0 and (block := text[begin:at]).isascii():
            yield block.decode("ascii")


def parse_brokers(section: Section) -> Brokers:
    """Settings of a `connection`. Raises SettingsInvalid for the first bad field found."""
    return Brokers(
        bootstrap_servers=section.texts("bootstrapServers", least=1),
        tls=section.optional("tls", _tls),
        sasl=section.optional("sasl", _sasl),
    )


def _tls(section: Section) -> TlsFiles:
    files = TlsFiles(
        ca_file=section.optional_text("caFile"),
        cert_file=section.optional_text("certFile"),
        key_file=section.optional_text("keyFile"),
    )
    if (files.cert_file is None) != (files.key_file is None):
        raise SettingsInvalid(section.path, "certFile and keyFile go together; give both or neither")
    return files


def _sasl(section: Section) -> SaslSource:
    mechanism = section.choice("mechanism", *MECHANISMS)
    oauth = section.optional("oauth", _oauth)
    if (oauth is not None) != (mechanism == OAUTHBEARER):
        raise SettingsInvalid(section.at("oauth"), "goes with mechanism OAUTHBEARER; give both or neither")
    return SaslSource(
        mechanism=mechanism,
        directory=section.text("directory"),
        identity=section.optional_text("identity"),
        oauth=oauth,
    )


def _oauth(section: Section) -> TokenEndpoint:
    return TokenEndpoint(url=section.text("tokenEndpoint"), scope=section.optional_text("scope"))
