"""Reads from an API server in this process: waits poll, and each `kubectl get` needs 0.1 s of processor time."""

from __future__ import annotations

import atexit
import base64
import http.client
import json
import ssl
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import yaml

__all__ = ["Direct", "direct"]

FLEET: Final = "apis/consumerfleet.io/v1alpha1"
PLACES: Final = {
    "pod": ("api/v1", "pods"),
    "configmap": ("api/v1", "configmaps"),
    "statefulset": ("apis/apps/v1", "statefulsets"),
    "role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "rolebinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "sparkapplication": ("apis/sparkoperator.k8s.io/v1beta2", "sparkapplications"),
    "backfills.consumerfleet.io": (FLEET, "backfills"),
    "consumergroups.consumerfleet.io": (FLEET, "consumergroups"),
    "kafkaclusters.consumerfleet.io": (FLEET, "kafkaclusters"),
    "redrives.consumerfleet.io": (FLEET, "redrives"),
    "retrypolicies.consumerfleet.io": (FLEET, "retrypolicies"),
}
"""Group, version and plural name of each kind that is read often, by its name for kubectl."""
TIMEOUT_S: Final = 30.0


class Direct:
    """Requests with a client certificate, over one connection per thread."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self._address = urlsplit(server)
        self._context = context
        self._here = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []
        atexit.register(self.close)

    def close(self) -> None:
        """Close the connections of all threads; the next use opens them again."""
        for connection in self._connections:
            connection.close()

    def get(self, kind: str, name: str, *, namespace: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist. Raises LookupError if kubectl has to be asked."""
        status, found = self._ask(f"{_path(kind, namespace)}/{quote(name)}")
        if status == 404 and (found.get("details") or {}).get("name") == name:
            return None
        return _succeeded(status, found)

    def list(self, kind: str, *, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind in a namespace. Raises LookupError if kubectl has to be asked."""
        found = _succeeded(*self._ask(f"{_path(kind, namespace)}?labelSelector={quote(selector)}"))
        common = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [{**common, **item} for item in found["items"]]

    def _ask(self, path: str) -> tuple[int, dict[str, Any]]:
        connection: http.client.HTTPSConnection | None = getattr(self._here, "connection", None)
        if connection is None:
            host, port = self._address.hostname or "", self._address.port
            connection = http.client.HTTPSConnection(host, port, context=self._context, timeout=TIMEOUT_S)
            self._here.connection = connection
            self._connections.append(connection)
        try:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()  # the next request opens it again
            raise LookupError(str(error)) from error


@cache
def direct(kubeconfig: Path, _written_ns: int) -> Direct | None:
    """A client for a kubeconfig file as of a modification time; None without a client certificate in the file."""
    config = yaml.safe_load(kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    if len(config["clusters"]) > 1 or "client-key-data" not in user or "certificate-authority-data" not in server:
        return None
    authority = base64.b64decode(server["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile() as pem:
        pem.write(base64.b64decode(user["client-certificate-data"]))
        pem.write(base64.b64decode(user["client-key-data"]))
        pem.flush()
        context.load_cert_chain(pem.name)
    return Direct(server["server"], context)


def _path(kind: str, namespace: str) -> str:
    group, plural = PLACES[kind if kind in PLACES else kind.removesuffix("s")]
    return f"{group}/namespaces/{quote(namespace)}/{plural}"


def _succeeded(status: int, found: dict[str, Any]) -> dict[str, Any]:
    if status != 200:
        raise LookupError(f"{status}: {found.get('message')}")
    return found
