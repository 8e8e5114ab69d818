"""The worker's HTTP port: read-only pages for probes, Prometheus and the operator, rendered on request.

One thread accepts connections, and each connection has its own thread. All of them are daemon threads, so they never
delay the worker's exit. Only GET is supported.
"""

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
"""Seconds after which the connection of a silent client is closed."""


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    content_type: str
    body: bytes


def text_page(ok: bool, text: str) -> Page:
    """Return a page with one line of text for probes. The status is 200 if `ok`, otherwise 503."""
    return Page(200 if ok else 503, TEXT, f"{text}\n".encode())


def json_page(document: object) -> Page:
    return Page(200, "application/json", json.dumps(document).encode())


UNAUTHORIZED: Final = Page(401, TEXT, b"this page requires the pod's uid as a bearer token\n")


class HttpServer:
    """Serves `pages`, which maps each path to a function. The constructor binds the port but starts no thread.

    Raises OSError if the port cannot be bound. With port 0, any free port is bound, and the property `port` returns its
    number. With an empty `host`, the server listens on all IPv6 and IPv4 addresses, because kubelets of dual-stack and
    IPv6 clusters probe over IPv6. `tokens` maps the paths of protected pages to their bearer tokens.
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
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error. The base class prints it, which raises on a closed pipe and ends the accepting thread."""
        LOG.debug("an HTTP request failed", exc_info=True)


class _DualStack(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _bind(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    if not host and socket.has_dualstack_ipv6():
        try:
            return _DualStack((host, port), handler)
        except OSError as error:  # a host with IPv6 support may have no IPv6 address
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
            make, authorization = pages.get(path), self.headers.get("Authorization", "")
            try:
                if make is None:
                    page = Page(404, TEXT, b"no such page\n")
                elif path in tokens and not hmac.compare_digest(
                    authorization.encode(), f"Bearer {tokens[path]}".encode()
                ):
                    page = UNAUTHORIZED
                else:
                    page = make()
            except Exception:
                LOG.exception("rendering an HTTP page failed")
                page = Page(500, TEXT, b"internal error; see the log\n")
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - name of the base class
            """Log no requests, because probes send one every few seconds."""

    return Handler
