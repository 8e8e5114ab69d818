"""A TCP proxy that parses just enough of Kafka to cut a connection at a chosen request or before its answer."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from dataclasses import dataclass, field

from e2e.local_cluster.daemons import free_ports
from tests.support.kafka import ADDRESS

__all__ = ["Guillotine", "ResettingProxy"]


@dataclass(slots=True)
class Guillotine:
    """The cut that all proxies of a cluster wait for: a request of this API, before it or before its answer.

    `at_answer`: the broker executes the request and the client gets no answer; otherwise the broker never sees it.
    """

    api_key: int | None = None
    at_answer: bool = False
    fallen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, api_key: int, *, at_answer: bool) -> None:
        """Cut the next connection that carries this."""
        with self._lock:
            self.api_key, self.at_answer, self.fallen = api_key, at_answer, 0

    def falls(self, api_key: int | None, *, at_answer: bool) -> bool:
        """Return whether this is the one; only the first is."""
        with self._lock:
            if api_key is None or self.api_key != api_key or self.at_answer != at_answer:
                return False
            self.api_key = None
            self.fallen += 1
            return True


class ResettingProxy:
    """Forwards connections to `address` to `target`, on its own thread, until `close`."""

    def __init__(self, guillotine: Guillotine) -> None:
        self._guillotine = guillotine
        self.target = ""
        self._port = free_ports(1, ADDRESS)[0]
        self.address = f"{ADDRESS}:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accepted, ADDRESS, self._port), self._loop
        ).result(10)

    def close(self) -> None:
        """Cut all connections and end."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The loop holds tasks weakly.
        task = self._loop.create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            from_broker, to_broker = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        asked: dict[int, int] = {}
        there = asyncio.ensure_future(self._requests(reader, to_broker, asked))
        back = asyncio.ensure_future(self._answers(from_broker, writer, asked))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in (there, back):
                direction.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            _reset(writer)
            _reset(to_broker)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = await _frame(reader)
            api_key, _version, correlation = struct.unpack_from(">hhi", frame, 4)
            if self._guillotine.falls(api_key, at_answer=False):
                return
            asked[correlation] = api_key
            writer.write(frame)
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]) -> None:
        while True:
            frame = await _frame(reader)
            (correlation,) = struct.unpack_from(">i", frame, 4)
            if self._guillotine.falls(asked.pop(correlation, None), at_answer=True):
                return
            writer.write(frame)
            await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


def _reset(writer: asyncio.StreamWriter) -> None:
    # Without lingering the kernel answers with RST instead of FIN, as a crash or a middlebox would.
    sock: socket.socket = writer.get_extra_info("socket")
    if sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
