"""Broker addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

DEFAULT_PORT: Final = 9092

_ADDRESS: Final = re.compile(
    r"(?:(?!https?:)[A-Za-z0-9_.-]+://)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[^\s\]/]+)?)\](?::(?P<v6port>[0-9]{1,5}))?"
    r"|(?P<bare>[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[^\s:\[\]/]+)?):(?P<bareport>[0-9]{1,5})"
    r"|(?P<host>[^\s:\[\]/,]+)(?::(?P<port>[0-9]{1,5}))?)"
)
"""The forms that Java's clients take: a listener's protocol in front is left out, since the settings say how to
connect; an IPv6 address stands in brackets or not, with a zone or not."""


class BrokerAddress(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def certified(self) -> str:
        """The name that a certificate has: without the dot that ends an absolute name, and without an IPv6 zone."""
        return self.host.partition("%")[0].rstrip(".")


def parse_address(text: str) -> BrokerAddress:
    """Read "host:port", "[ipv6]:port" or "host" (port 9092), with a protocol (`SASL_SSL://`) or not.

    Raises ValueError, naming the text.
    """
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["v6port"] or match["bareport"] or match["port"] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise ValueError(f"bootstrap server {text!r} is not host:port, such as broker-0.kafka:9092")
    return BrokerAddress(match["v6"] or match["bare"] or match["host"], port)


def parse_addresses(texts: Sequence[str]) -> tuple[BrokerAddress, ...]:
    """Read addresses, of which a text may have several with commas between them, as Java's `bootstrap.servers`.

    Raises ValueError, naming the text, and for none at all.
    """
    found = tuple(parse_address(part) for text in texts for part in text.split(",") if part.strip())
    if not found and texts:
        parse_address(texts[0])
    if not found:
        raise ValueError("bootstrap_servers is empty; name at least one host:port")
    return found
