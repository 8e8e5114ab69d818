"""An HTTP service on loopback that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

from e2e.local_cluster.daemons import free_ports
from tests.support.lifetime import Server

__all__ = ["Answer", "Asked", "Service"]

ADDRESS: Final = "127.0.0.1"


class Asked(NamedTuple):
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """One response."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)


class Service(Server):
    """A server whose `answer` makes each response. The port stays the same over `close` and `start`."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1, ADDRESS)
        self.answer: Callable[[Asked], Answer] = lambda asked: Answer()
        self.asked: list[Asked] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The address without a path."""
        return f"http://{ADDRESS}:{self.port}"

    def start(self) -> None:
        """Listen."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def respond(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                asked = Asked(self.path, dict(self.headers.items()), body)
                service.asked.append(asked)
                answer = service.answer(asked)
                self.send_response(answer.status)
                headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body))}
                for name, value in {**headers, **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def do_GET(self) -> None:
                self.respond()

            def do_POST(self) -> None:
                self.respond()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer((ADDRESS, self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop listening. Does nothing if it does not listen."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
