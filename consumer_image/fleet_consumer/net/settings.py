"""How to reach a Kafka cluster: addresses, TLS, SASL, patience."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

DEFAULT_PORT: Final = 9092
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The SASL mechanisms that `net` speaks."""

_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/]+))(?::(?P<port>[0-9]{1,5}))?")


class BrokerAddress(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> BrokerAddress:
    """Read "host:port", "[ipv6]:port" or "host" (port 9092). Raises ValueError that names the text."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise ValueError(f"bootstrap server {text!r} is no host:port, such as broker-0.kafka:9092")
    return BrokerAddress(match["v6"] or match["host"], port)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Paths of PEM files. Without `ca_file` the system's authorities are trusted.

    `cert_file` (with its chain) and `key_file` authenticate the client, where the broker asks for it. The files are
    read anew for every connection, so that renewed certificates need no restart. Host names are always checked.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Credentials for one of `SASL_MECHANISMS`. The password never appears in a text of ours."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in SASL_MECHANISMS:
            raise ValueError(f"SASL mechanism {self.mechanism!r} is not one of {', '.join(SASL_MECHANISMS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach a cluster. Times are in milliseconds, names and defaults those of Kafka's own clients.

    `bootstrap_servers` are "host:port" texts; one that answers is enough. `request_timeout_ms` is a request's patience
    where the caller gives none; `connect_timeout_ms` bounds name lookup, TCP, TLS and SASL together. After a failure
    an address is left alone for `reconnect_backoff_ms`, doubled with every further failure up to
    `reconnect_backoff_max_ms`.
    """

    bootstrap_servers: tuple[str, ...]
    client_id: str
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 100
    reconnect_backoff_max_ms: int = 2_000

    def __post_init__(self) -> None:
        if not self.bootstrap_servers:
            raise ValueError("bootstrap_servers names no server")
        for text in self.bootstrap_servers:
            parse_address(text)

    @property
    def bootstrap_addresses(self) -> tuple[BrokerAddress, ...]:
        """`bootstrap_servers`, parsed."""
        return tuple(parse_address(text) for text in self.bootstrap_servers)
