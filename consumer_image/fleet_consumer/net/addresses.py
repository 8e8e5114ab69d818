"""Broker addresses, and name lookup without blocking the I/O loop.

`getaddrinfo` can block for minutes and has no deadline, so every lookup of a name runs in a thread of its own, which
ends with the lookup. Literal addresses need none.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

DEFAULT_PORT: Final = 9092

LOOKUPS_MAX: Final = 8
"""The most names that a client looks up at a time: whoever owns the brokers chooses how many names they list, and a
name server that never answers holds each thread for minutes."""

_ADDRESS: Final = re.compile(
    r"(?:(?!https?:)[A-Za-z0-9_.-]+://)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[^\s\]/]+)?)\](?::(?P<v6port>[0-9]{1,5}))?"
    r"|(?P<bare>[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[^\s:\[\]/]+)?):(?P<bareport>[0-9]{1,5})"
    r"|(?P<host>[^\s:\[\]/,]+)(?::(?P<port>[0-9]{1,5}))?)"
)
"""The forms that Java's clients take: a listener's protocol in front is left out, since the settings say how to
connect; an IPv6 address stands in brackets or not, with a zone or not."""


class BrokerAddress(NamedTuple):
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


SocketAddress = tuple[socket.AddressFamily, Any]
"""An address family and an address in its form, as `socket` functions take them."""


class Lookup:
    """One lookup. `result` is written by its thread before `done`, and read by the client's thread after it."""

    def __init__(self, address: BrokerAddress, on_done: Callable[[], None]) -> None:
        self._address = address
        self._on_done = on_done
        self.done = False
        self.result: list[SocketAddress] | OSError = []

    def start(self) -> None:
        """Look up literal addresses at once, names in a daemon thread, which calls `on_done` at its end."""
        if _is_literal(self._address.host):
            self._run(lambda: None)
            return
        name = f"resolve {self._address.host}"
        try:
            threading.Thread(target=self._run, args=(self._on_done,), name=name, daemon=True).start()
        except RuntimeError as error:  # the process or its container has no thread left
            self.result = OSError(str(error))
            self.done = True

    def _run(self, on_done: Callable[[], None]) -> None:
        try:
            found = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
            self.result = [(family, where) for family, _, _, _, where in found]
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            self.result = error if isinstance(error, OSError) else OSError(f"not a host name: {error}")
        self.done = True
        on_done()


class Lookups:
    """The lookups of one client: one at a time for each address, LOOKUPS_MAX in all. Used by the client's thread."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._running: dict[BrokerAddress, Lookup] = {}

    def has_room(self, address: BrokerAddress) -> bool:
        """True if a lookup of the address can start now, needs no thread, or is under way."""
        if len(self._running) < LOOKUPS_MAX or address in self._running or _is_literal(address.host):
            return True
        self._running = {address: lookup for address, lookup in self._running.items() if not lookup.done}
        return len(self._running) < LOOKUPS_MAX

    def start(self, address: BrokerAddress) -> Lookup:
        """The lookup of the address that is under way, or a new one."""
        running = self._running.get(address)
        if running is None or running.done:
            running = self._running[address] = Lookup(address, self._on_done)
            running.start()
        return running


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
