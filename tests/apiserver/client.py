"""Requests to an API server from this process: each kubectl call costs half a second on a busy machine."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

from fleet_operator.clients.kinds import KINDS, Kind
from tests.support.waiting import eventually

CLUSTER_KINDS = (
    Kind("", "v1", "Namespace", "namespaces"),
    Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses"),
    Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses"),
)
OTHER_KINDS = (*CLUSTER_KINDS, Kind("", "v1", "ServiceAccount", "serviceaccounts"))
NAMES = {kind.plural: kind for kind in (*KINDS, *OTHER_KINDS)}
TYPES = {(kind.api_version, kind.kind): kind for kind in NAMES.values()}
FIELD_MANAGER = "kubectl"
"""The field manager of a user: an apply removes the fields that its previous one had and it lacks."""
STRICT = {"fieldValidation": "Strict"}
"""Strict validation, as kubectl requests it: an unknown field is an error."""
DRY = {"dryRun": "All", **STRICT}
TIMEOUT_S = 60
BUSY = (429, 500, 503, 504)
"""Status codes of a server too busy for the request; it asks for another try."""
BUSY_PATIENCE_S = 60.0


class NotFoundError(AssertionError):
    """The object does not exist (yet); an AssertionError, so that waiting helpers keep waiting."""


class RefusedError(AssertionError):
    """The API server refused the request; the text is its message."""


class Client:
    """Requests as administrator, over one connection for each thread that asks; a context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(server["server"])
        authority = base64.b64decode(server["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as pem:
            pem.write(base64.b64decode(user["client-certificate-data"]))
            pem.write(base64.b64decode(user["client-key-data"]))
            pem.flush()
            self._context.load_cert_chain(pem.name)
        self._here = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    def get(self, plural: str, namespace: str, name: str) -> dict[str, Any]:
        """Return one object; raise NotFoundError if it does not exist."""
        return self.ask("GET", NAMES[plural].path(namespace, name))

    def list(self, plural: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind, of one namespace or all."""
        kind = NAMES[plural]
        items: list[dict[str, Any]] = self.ask("GET", kind.path(namespace), query={"labelSelector": selector})["items"]
        return [{**item, "kind": kind.kind} for item in items]

    def apply(self, body: dict[str, Any]) -> None:
        """Apply on the server side, as `kubectl apply --server-side` does."""
        kind, metadata = kind_of(body), body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        self.ask(
            "PATCH", path, body, query={"fieldManager": FIELD_MANAGER, **STRICT}, kind="application/apply-patch+yaml"
        )

    def would_create(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the server would store (dry run)."""
        return self.ask("POST", _place(namespace, body), body, query=DRY)

    def would_replace(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """The same with an existing object, in its newest version."""
        path = f"{_place(namespace, body)}/{body['metadata']['name']}"
        version = self.ask("GET", path)["metadata"]["resourceVersion"]
        newest = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        return self.ask("PUT", path, newest, query=DRY)

    def create(self, namespace: str, body: dict[str, Any]) -> None:
        self.ask("POST", _place(namespace, body), body, query=STRICT)

    def delete(self, namespace: str, body: dict[str, Any]) -> None:
        self.ask("DELETE", f"{_place(namespace, body)}/{body['metadata']['name']}")

    def delete_all(self, plural: str, namespace: str) -> None:
        """Delete the objects of a kind in a namespace, pods without their grace; those with finalizers go later."""
        self.ask("DELETE", NAMES[plural].path(namespace), query={"gracePeriodSeconds": "0"})

    def merge_status(self, plural: str, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Write into the status of an object, as another controller would."""
        path = NAMES[plural].path(namespace, name, "status")
        self.ask("PATCH", path, {"status": status}, kind="application/merge-patch+json")

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        """Return the server's answer; repeat the request while the server is too busy or unreachable.

        Raises NotFoundError, RefusedError.
        """
        words = f"{path}?{urlencode(query)}" if query else path
        data = json.dumps(body) if body is not None else None

        def answered() -> tuple[int, bytes]:
            status, text = self._request(method, words, data, kind)
            assert status not in BUSY, text[:200]
            return status, text

        status, text = eventually(answered, timeout_s=BUSY_PATIENCE_S, what=f"an answer to {method} {path}", poll_s=0.1)
        if status == 404:
            raise NotFoundError(f"{path} does not exist")
        answer: dict[str, Any] = json.loads(text)
        if status >= 400:
            raise RefusedError(" ".join(str(answer.get("message")).split()))
        return answer

    def close(self) -> None:
        while self._connections:
            self._connections.pop().close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, method: str, path: str, body: str | None, kind: str) -> tuple[int, bytes]:
        connection = self._connection()
        headers = {"Content-Type": kind} if body is not None else {}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            # The server ends connections that were idle for long; and an answer that still comes would be taken for
            # that to the next request. The next one opens it again.
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPSConnection:
        """The connection of this thread; a closed one reopens when it is used."""
        found: http.client.HTTPSConnection | None = getattr(self._here, "connection", None)
        if found is None:
            host, port = self._address.hostname, self._address.port
            assert host
            found = http.client.HTTPSConnection(host, port, context=self._context, timeout=TIMEOUT_S)
            self._here.connection = found
            self._connections.append(found)
        return found


def kind_of(body: Mapping[str, Any]) -> Kind:
    """The kind of an object that a test may use; raises KeyError for another."""
    return TYPES[body["apiVersion"], body["kind"]]


def _place(namespace: str, body: Mapping[str, Any]) -> str:
    kind = kind_of(body)
    return kind.path(None if kind in CLUSTER_KINDS else namespace)
