"""The worker's HTTP port: a few pages that are made on request, for probes, Prometheus and the operator.

One thread accepts, each request has its own; all of them are daemons, because nothing here may keep a worker from
ending. Only GET, no bodies, nothing that changes anything.
"""

from __future__ import annotations

import errno
import hmac
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Final

LOG = logging.getLogger("fleet_consumer.http")

TEXT: Final = "text/plain; charset=utf-8"

REQUEST_TIMEOUT_S: Final = 10.0
"""A peer that connects and says nothing holds a thread no longer than this."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status, media type, body."""

    status: int
    content_type: str
    body: bytes


def text_page(ok: bool, text: str) -> Page:
    """200 or 503 with a line of text, as probes want it."""
    return Page(200 if ok else 503, TEXT, f"{text}\n".encode())


def json_page(document: object) -> Page:
    """200 with a JSON document."""
    return Page(200, "application/json", json.dumps(document).encode())


UNAUTHORIZED: Final = Page(401, TEXT, b"this page asks for the pod's uid as a bearer token\n")


class HttpServer:
    """Serves `pages` (path to a function that makes the page). Making one binds the port and starts no thread.

    Without a `host` all addresses of the machine answer, IPv6 and IPv4 alike: kubelets of a dual-stack or IPv6 cluster
    probe by IPv6. Port 0 takes any free one, and `port` is its number. `tokens` are the bearer tokens of the paths that
    ask for one. Raises OSError when the port is taken.
    """

    def __init__(
        self,
        port: int,
        pages: Mapping[str, Callable[[], Page]],
        host: str = "",
        tokens: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._server = _bind(host, port, _request_handler(pages, tokens))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Log it: the base class prints, which on a closed pipe would end the thread that accepts."""
        LOG.debug("a request ended by an error", exc_info=True)


class _DualStack(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _bind(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    if not host and socket.has_dualstack_ipv6():
        try:
            return _DualStack((host, port), handler)
        except OSError as error:  # a kernel that knows IPv6 may have no address of it
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return _Server((host, port), handler)


def _request_handler(
    pages: Mapping[str, Callable[[], Page]], tokens: Mapping[str, str]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            make, said = pages.get(path), self.headers.get("Authorization", "")
            try:
                if make is None:
                    page = Page(404, TEXT, b"no such page\n")
                elif path in tokens and not hmac.compare_digest(said.encode(), f"Bearer {tokens[path]}".encode()):
                    page = UNAUTHORIZED
                else:
                    page = make()
            except Exception:
                LOG.exception("a page could not be made")
                page = Page(500, TEXT, b"internal error; see the log\n")
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - so named by its base
            """Probes come every few seconds; their requests are no news."""

    return Handler
