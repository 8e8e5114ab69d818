"""A handler behind HTTP, with the standard library only. Any language can do the same.

The value of a record is the body of a POST. A 2xx status means done; the response has outputs as JSON with base64
values. A 4xx status means that this record has failed. 503 with Retry-After means that it is retried later.
"""

from __future__ import annotations

import base64
import json
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OUTPUT = os.environ.get("OUTPUT", "orders-done")


class Orders(BaseHTTPRequestHandler):
    """Converts orders to upper case; refuses an empty order with 422."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Handle one record."""
        order = self.rfile.read(int(self.headers["Content-Length"]))
        if not order.strip():
            self._answer(422, {"error": f"order {self.headers['X-Kafka-Offset']} is empty"})
            return
        output = {"topic": OUTPUT, "value": base64.b64encode(order.upper()).decode()}
        if "X-Kafka-Key" in self.headers:
            output["key"] = self.headers["X-Kafka-Key"]
        self._answer(200, {"outputs": [output]})

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    # Process 1 of a container ignores SIGTERM without a signal handler; the kubelet would wait and then kill it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ThreadingHTTPServer(("127.0.0.1", 8080), Orders).serve_forever()
