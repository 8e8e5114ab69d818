"""A TCP proxy in front of a real broker that refuses the first Produce request and forwards everything else."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from e2e.local_cluster.daemons import free_ports
from tests.support.kafka import ADDRESS

__all__ = ["RefusingProxy"]

PRODUCE: Final = 0
NOT_LEADER: Final = 6
VERSIONS: Final = (9, 10, 11, 12)
"""Versions of Produce whose response has the form of `_refusal`."""


class RefusingProxy:
    """Listens on `address` while its context is open and passes connections on to `target`.

    The first Produce request waits here until another one follows it. Then it is answered with NOT_LEADER_OR_FOLLOWER,
    as by a broker that does not know yet that it leads the partition; the other one is forwarded.
    """

    def __init__(self, topic: str) -> None:
        self.target = ""
        self._topic = topic.encode()
        self._port = free_ports(1, ADDRESS)[0]
        self.address = f"{ADDRESS}:{self._port}"
        self._listener = socket.create_server((ADDRESS, self._port))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self.holds = threading.Event()
        """Set when the first Produce request has arrived."""
        # Its correlation id, until it is answered.
        self._held: int | None = None

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()

    def _spawn(self, work: Callable[..., None], *pair: socket.socket) -> None:
        thread = threading.Thread(target=work, args=pair, name="refusing proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, _, port = self.target.rpartition(":")
                broker = socket.create_connection((host, int(port)))
                self._sockets += [client, broker]
                self._spawn(self._requests, client, broker)
                self._spawn(self._answers, client, broker)

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(client)) is not None:
                self._pass_on(frame, client, broker)

    def _pass_on(self, frame: bytes, client: socket.socket, broker: socket.socket) -> None:
        api_key, version, correlation = struct.unpack_from(">hhi", frame, 4)
        if api_key == PRODUCE and not self.holds.is_set():
            assert version in VERSIONS, f"Produce {version}: its answer is not known here"
            self._held = correlation
            self.holds.set()
            return
        if api_key == PRODUCE and self._held is not None:
            client.sendall(_refusal(self._held, self._topic))
            self._held = None
        broker.sendall(frame)

    def _answers(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(broker)) is not None:
                client.sendall(frame)


def _frame(stream: socket.socket) -> bytes | None:
    """One message with its size prefix; None at the end."""
    with contextlib.suppress(OSError):
        size = stream.recv(4, socket.MSG_WAITALL)
        if len(size) == 4:
            (length,) = struct.unpack(">i", size)
            body = stream.recv(length, socket.MSG_WAITALL)
            return size + body if len(body) == length else None
    return None


def _refusal(correlation: int, topic: bytes) -> bytes:
    """The answer to a Produce request for partition 0 of `topic` alone (ProduceResponse, versions 9 to 12)."""
    nothing, one = b"\x00", b"\x02"  # compact forms: no tags or null, an array of one
    partition = struct.pack(">ihqqq", 0, NOT_LEADER, -1, -1, -1) + b"\x01" + nothing + nothing
    topics = one + bytes([len(topic) + 1]) + topic + one + partition + nothing
    message = struct.pack(">i", correlation) + nothing + topics + struct.pack(">i", 0) + nothing
    return struct.pack(">i", len(message)) + message
