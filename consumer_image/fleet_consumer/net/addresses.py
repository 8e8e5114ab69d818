"""Broker addresses."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DEFAULT_PORT: Final = 9092

_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/]+))(?::(?P<port>[0-9]{1,5}))?")


class BrokerAddress(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> BrokerAddress:
    """Read "host:port", "[ipv6]:port" or "host" (port 9092). Raises ValueError, naming the text."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise ValueError(f"bootstrap server {text!r} is not host:port, such as broker-0.kafka:9092")
    return BrokerAddress(match["v6"] or match["host"], port)
