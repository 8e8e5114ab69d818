"""Broker addresses, and name lookups that do not block the I/O loop.

`getaddrinfo` can block for minutes and has no timeout, so each lookup of a name runs in its own thread. Literal IP
addresses need no lookup and no thread.
"""

import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

DEFAULT_PORT: Final = 9092

LOOKUPS_MAX: Final = 8
"""Maximum number of concurrent name lookups of a client. A broker may list many names, and each lookup needs a thread,
which is blocked for minutes if the DNS server does not answer."""

_ADDRESS: Final = re.compile(
    r"(?:(?!https?:)[A-Za-z0-9_.-]+://)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[^\s\]/]+)?)\](?::(?P<v6port>[0-9]{1,5}))?"
    r"|(?P<bare>[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[^\s:\[\]/]+)?):(?P<bareport>[0-9]{1,5})"
    r"|(?P<host>[^\s:\[\]/,]+)(?::(?P<port>[0-9]{1,5}))?)"
)
"""The forms of addresses that Java's clients accept. A protocol prefix is ignored, because the settings decide how to
connect. An IPv6 address may have brackets and a zone."""


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def certified(self) -> str:
        """The host in the form used in certificates: without the trailing dot of an absolute name, and without an IPv6
        zone."""
        return self.host.partition("%")[0].rstrip(".")


def parse_address(text: str) -> BrokerAddress:
    """Parse "host:port", "[ipv6]:port" or "host" (port 9092), with or without a protocol (`SASL_SSL://`). Raises
    ValueError, whose message quotes the string."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["v6port"] or match["bareport"] or match["port"] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise ValueError(f"bootstrap server {text!r} is not host:port, such as broker-0.kafka:9092")
    return BrokerAddress(match["v6"] or match["bare"] or match["host"], port)


def parse_addresses(strings: Sequence[str]) -> tuple[BrokerAddress, ...]:
    """Parse addresses. A string may contain several, separated by commas, as in Java's `bootstrap.servers`. Raises
    ValueError for an invalid address, and for an empty list."""
    found = tuple(parse_address(part) for text in strings for part in text.split(",") if part.strip())
    if not found and strings:
        parse_address(strings[0])
    if not found:
        raise ValueError("bootstrap_servers is empty; name at least one host:port")
    return found


SocketAddress = tuple[socket.AddressFamily, Any]
"""An address family, and an address in the form that `socket` functions accept for it."""


class Lookup:
    """One lookup. Its thread writes `result` before `done`; the client's thread reads `result` after `done`."""

    def __init__(self, address: BrokerAddress, on_done: Callable[[], None]) -> None:
        self._address = address
        self._on_done = on_done
        self.done = False
        self.result: list[SocketAddress] | OSError = []

    def start(self) -> None:
        """Resolve a literal address immediately, and a name in a daemon thread, which calls `on_done` at its end."""
        if _is_literal(self._address.host):
            self._run(lambda: None)
            return
        name = f"resolve {self._address.host}"
        try:
            threading.Thread(target=self._run, args=(self._on_done,), name=name, daemon=True).start()
        except RuntimeError as error:  # the process or its container has reached its limit of threads
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
    """One client's lookups: one per address at a time, LOOKUPS_MAX in total. Only the client's thread may use it."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._running: dict[BrokerAddress, Lookup] = {}

    def has_room(self, address: BrokerAddress) -> bool:
        """True if `start` may be called for the address now. This is so if fewer than LOOKUPS_MAX lookups are running,
        if the address needs no thread, or if its lookup is already running."""
        if len(self._running) < LOOKUPS_MAX or address in self._running or _is_literal(address.host):
            return True
        self._running = {address: lookup for address, lookup in self._running.items() if not lookup.done}
        return len(self._running) < LOOKUPS_MAX

    def start(self, address: BrokerAddress) -> Lookup:
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
