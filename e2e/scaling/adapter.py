"""A minimal adapter of external metrics: one gauge of the operator's metrics page as one metric of the API."""

from __future__ import annotations

import argparse
import json
import re
import ssl
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8443
GROUP_VERSION = "external.metrics.k8s.io/v1beta1"
METRIC = "consumer-group-lag"


def read_pages(pages: Sequence[str]) -> Iterator[str]:
    """The lines of all metrics pages; none from a replica that does not answer."""
    for address in pages:
        try:
            with urllib.request.urlopen(address, timeout=5) as page:
                yield from page.read().decode().splitlines()
        except OSError as error:
            print(address, error, flush=True)


def read_lag(lines: Iterable[str], namespace: str, group: str) -> float | None:
    """The lag in the operator's pages; None while it is unknown: no page then has such a line."""
    for line in lines:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if not line.startswith("consumer_fleet_group_lag_records{"):
            continue
        if namespace in labels.values() and group in labels.values():
            return float(line.rsplit(" ", 1)[1])
    return None


class Adapter(BaseHTTPRequestHandler):
    """Answers discovery and the one metric."""

    options: argparse.Namespace

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if path == f"/apis/{GROUP_VERSION}":
            resource = {"name": METRIC, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            kind = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION}
            self.answer(200, {**kind, "resources": [{**resource, "singularName": ""}]})
        elif path == f"/apis/{GROUP_VERSION}/namespaces/{self.options.namespace}/{METRIC}":
            self.answer_metric()
        else:
            self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

    def answer_metric(self) -> None:
        lag = read_lag(read_pages(self.options.metrics), self.options.namespace, self.options.group)
        items = []
        if lag is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            items = [{"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": str(round(lag))}]
        head = {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}}
        # No item does not mean zero: the HPA then does nothing.
        self.answer(200, {**head, "items": items})

    def answer(self, code: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metrics", required=True, nargs="+", help="the metrics of each replica of the operator")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--group", required=True)
    Adapter.options = parser.parse_args()
    server = ThreadingHTTPServer(("", PORT), Adapter)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/certificate/tls.crt", "/certificate/tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
