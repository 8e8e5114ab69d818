"""Name lookup without blocking the I/O loop.

`getaddrinfo` can block for many seconds and has no deadline, so every lookup of a name runs in a thread of its own,
which ends with the lookup. Literal addresses need none.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any

from fleet_consumer.net.addresses import BrokerAddress

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
        try:
            ipaddress.ip_address(self._address.host)
        except ValueError:
            name = f"resolve {self._address.host}"
            threading.Thread(target=self._run_and_tell, name=name, daemon=True).start()
        else:
            self._run()

    def _run_and_tell(self) -> None:
        self._run()
        self._on_done()

    def _run(self) -> None:
        try:
            found = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
            self.result = [(family, where) for family, _, _, _, where in found]
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            self.result = error if isinstance(error, OSError) else OSError(f"not a host name: {error}")
        self.done = True
