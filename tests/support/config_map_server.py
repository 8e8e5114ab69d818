"""A fake API server for a process under test: ConfigMaps with resource versions, over HTTP.

It can refuse connections for a while, lose a response after the write, and call back on each write.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.lifetime import Server

__all__ = ["ConfigMapServer"]


class ConfigMapServer(Server):
    """Serves `GET` and `PUT` of ConfigMaps. `put` and `data` are the test's own access."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[str, dict[str, Any]] = {}
        self._version = 0
        self.requests = 0
        self.away = False
        self.lose_next_answer = False
        self.on_write: Callable[[str, dict[str, str]], object] = lambda name, data: None
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner._serve(self, None)

            def do_PUT(self) -> None:
                owner._serve(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: object) -> None:
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="config-maps", daemon=True)

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, name: str, data: dict[str, str]) -> None:
        """Write an object as another client."""
        with self._lock:
            self._store(name, {"kind": "ConfigMap", "metadata": {"name": name}, "data": data})

    def data(self, name: str) -> dict[str, str]:
        """The object's present data."""
        with self._lock:
            return dict(self._objects[name].get("data") or {})

    def _store(self, name: str, document: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        stored = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self._version)}}
        self._objects[name] = stored
        return stored

    def _serve(self, request: BaseHTTPRequestHandler, document: dict[str, Any] | None) -> None:
        self.requests += 1
        if self.away:
            request.close_connection = True
            return None
        name = request.path.rpartition("/")[2]
        with self._lock:
            known = self._objects.get(name)
            if known is None:
                return self._answer(request, 404, {"message": f'configmaps "{name}" not found'})
            if document is None:
                return self._answer(request, 200, known)
            if document["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
                return self._answer(request, 409, {"message": "the object has been modified"})
            stored = self._store(name, document)
        self.on_write(name, stored["data"])
        if self.lose_next_answer:
            self.lose_next_answer = False
            request.close_connection = True
            return None
        return self._answer(request, 200, stored)

    @staticmethod
    def _answer(request: BaseHTTPRequestHandler, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
