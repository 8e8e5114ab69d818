"""The worker's port answers by every protocol that the machine has."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from fleet_consumer.worker.http_server import HttpServer, text_page


def answered(server: HttpServer, host: str) -> bytes:
    with urllib.request.urlopen(f"http://{host}:{server.port}/ready", timeout=10) as answer:
        return bytes(answer.read())


@pytest.mark.parametrize("dual", [True, False], ids=["both", "IPv4 alone"])
def test_all_addresses_answer_where_no_host_is_named(dual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an IPv6 or dual-stack cluster probes come by IPv6, and no worker became ready."""
    both = dual and socket.has_dualstack_ipv6()
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: both)
    server = HttpServer(0, {"/ready": lambda: text_page(True, "ready")})
    server.start()
    try:
        for host in ("127.0.0.1", "[::1]") if both else ("127.0.0.1",):
            assert answered(server, host) == b"ready\n"
    finally:
        server.close()


def test_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError, match="in use"):
        HttpServer(taken.getsockname()[1], {})


def test_named_host_alone_answers() -> None:
    server = HttpServer(0, {"/ready": lambda: text_page(True, "ready")}, "127.0.0.1")
    server.start()
    try:
        assert answered(server, "127.0.0.1") == b"ready\n"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", server.port), 5)
    finally:
        server.close()
