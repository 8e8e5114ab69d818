"""Reads from an API server in this process: kubectl costs half a second of a busy machine for every look."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from fleet_operator.clients.kinds import KINDS, Kind

NAMES = {kind.plural: kind for kind in KINDS}


class NotFoundError(AssertionError):
    """The object is not there (yet); an assertion, so that waiting helpers wait."""


class Reader:
    """GET requests as administrator, over one connection, from one thread; a context manager."""

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
        self._connection: http.client.HTTPSConnection | None = None

    def get(self, plural: str, namespace: str, name: str) -> dict[str, Any]:
        """One object; NotFoundError when it does not exist."""
        return self._read(NAMES[plural].path(namespace, name))

    def list(self, plural: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """The objects of a kind, of one namespace or all."""
        kind: Kind = NAMES[plural]
        items: list[dict[str, Any]] = self._read(f"{kind.path(namespace)}?labelSelector={quote(selector)}")["items"]
        return [{**item, "kind": kind.kind} for item in items]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, path: str) -> dict[str, Any]:
        try:
            status, text = self._request(path)
        except (http.client.HTTPException, OSError):
            self.close()  # the server closes connections that were idle for long
            status, text = self._request(path)
        if status == 404:
            raise NotFoundError(f"{path} does not exist")
        assert status == 200, (path, status, text)
        parsed: dict[str, Any] = json.loads(text)
        return parsed

    def _request(self, path: str) -> tuple[int, bytes]:
        if self._connection is None:
            host, port = self._address.hostname, self._address.port
            assert host
            self._connection = http.client.HTTPSConnection(host, port, context=self._context, timeout=20)
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, answer.read()
