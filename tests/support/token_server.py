"""An OAuth token endpoint on loopback (client credentials grant), with faults that tests set."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, unquote_plus

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "Asked", "TokenServer", "answer"]

CLIENT_ID, CLIENT_SECRET = "fleet", "s3cret/with+odd:signs"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the endpoint received it."""

    client_id: str
    client_secret: str
    form: dict[str, list[str]] = field(repr=False)


Answer = tuple[int, dict[str, str], bytes]


def answer(token: str, expires_in: float | None = 3600) -> Answer:
    """A successful response."""
    document = {"access_token": token, "token_type": "Bearer"}
    return 200, {}, json.dumps(document | ({"expires_in": expires_in} if expires_in is not None else {})).encode()


class TokenServer:
    """Listens while its context is open; ``respond`` may be replaced at any time, and may block.

    It knows one client, and answers others as RFC 6749 specifies.
    """

    def __init__(self, respond: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> None:
        self.respond = respond
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer._serve(self)

            def log_message(self, *args: object) -> None:
                """Nothing is logged: tests read `asked`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="token server")

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        scheme, _, login = request.headers["Authorization"].partition(" ")
        client, _, secret = base64.b64decode(login).decode().partition(":")
        asked = Asked(unquote_plus(client), unquote_plus(secret), parse_qs(body.decode()))
        self.asked.append(asked)
        known = scheme == "Basic" and (asked.client_id, asked.client_secret) == (CLIENT_ID, CLIENT_SECRET)
        if known and asked.form.get("grant_type") == ["client_credentials"]:
            code, headers, content = self.respond(asked)
        else:
            refusal = {"error": "invalid_client", "error_description": "Invalid client or Invalid client credentials"}
            code, headers, content = 401, {}, json.dumps(refusal).encode()
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)
