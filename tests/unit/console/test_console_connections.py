"""Connections to the console: stalled readers, slow senders, and their number. Nothing waits without a limit."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest
from aiohttp import web

from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.console import feed as feed_module
from fleet_operator.console import server as server_module
from tests.support.waiting import eventually
from tests.unit.console.bodies import fleet
from tests.unit.console.site import Site, site

PATIENCE_S = 60.0
HEAD = "HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-root\r\n"


async def connection(there: Site, text: str) -> socket.socket:
    """A connection that has sent this text, and takes few bytes before its buffer is full."""
    loop, taker = asyncio.get_running_loop(), socket.socket()
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    taker.setblocking(False)
    await loop.sock_connect(taker, ("127.0.0.1", there.server.port))
    await loop.sock_sendall(taker, text.encode())
    return taker


def server_of(there: Site) -> web.Server:
    runner = there.server._runner
    assert runner is not None
    assert runner.server is not None
    return runner.server


async def connections(there: Site, wanted: int) -> None:
    """Wait until the console has this many connections."""
    server, what = server_of(there), f"{wanted} connections"
    await asyncio.to_thread(eventually, lambda: len(server.connections) == wanted, what=what, timeout_s=PATIENCE_S)


async def closed(taker: socket.socket) -> None:
    """Wait until the console closes the connection."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            while await loop.sock_recv(taker, 65_536):
                pass


@pytest.mark.parametrize("path", ["/stream/", "/"])
async def test_viewer_that_reads_nothing_is_disconnected(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 0.3)
    monkeypatch.setattr(server_module, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(feed_module, "TICK_SECONDS", 0.02)
    huge = "x" * 8_000_000
    async with site(fleets=[fleet(behindText=huge)]) as there:
        with await connection(there, f"GET {path} {HEAD}\r\n"):
            server = server_of(there)
            await asyncio.to_thread(eventually, lambda: server.requests_count, what="the request", timeout_s=PATIENCE_S)
            there.see(CONSUMER_GROUP, fleet(behindText=huge + "y"))
            await connections(there, 0)


async def test_slow_form_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_SECONDS", 0.2)
    async with site() as there:
        origin = "Origin: http://x\r\nContent-Length: 100\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        with await connection(there, f"POST /login {HEAD}{origin}\r\ntoken=") as taker:
            answer = await asyncio.get_running_loop().sock_recv(taker, 12)
            assert answer == b"HTTP/1.1 408"


@pytest.mark.parametrize("text", ["", "GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_connection_without_a_complete_request_is_closed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.2)
    async with site() as there:
        with await connection(there, text) as taker:
            await closed(taker)


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 3)
    async with site() as there:
        with await connection(there, ""), await connection(there, ""):
            with await connection(there, ""):
                await connections(there, 3)
                with await connection(there, "") as refused:
                    await closed(refused)
            await connections(there, 2)
            await there.text("/login", "")
