"""Reads from an API server in this process: kubectl costs half a second of a busy machine for every look."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from fleet_operator.clients.kinds import KINDS, Kind

NAMES = {kind.plural: kind for kind in KINDS}


class NotFoundError(AssertionError):
    """The object is not there (yet); an assertion, so that waiting helpers wait."""


class Reader:
    """GET requests as administrator; safe to use from several threads."""

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
        self._threads = threading.local()

    def get(self, plural: str, namespace: str, name: str) -> dict[str, Any]:
        """One object; NotFoundError when it does not exist."""
        return self._read(NAMES[plural].path(namespace, name))

    def list(self, plural: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """The objects of a kind, of one namespace or all."""
        kind: Kind = NAMES[plural]
        items: list[dict[str, Any]] = self._read(f"{kind.path(namespace)}?labelSelector={quote(selector)}")["items"]
        return [{**item, "kind": kind.kind} for item in items]

    def _read(self, path: str) -> dict[str, Any]:
        for attempt in (1, 2):
            connection = self._connection()
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError):
                del self._threads.connection  # the server closes connections that were idle for long
                if attempt == 2:
                    raise
        if answer.status == 404:
            raise NotFoundError(f"{path} does not exist")
        assert answer.status == 200, (path, answer.status, text)
        parsed: dict[str, Any] = json.loads(text)
        return parsed

    def _connection(self) -> http.client.HTTPSConnection:
        known: http.client.HTTPSConnection | None = getattr(self._threads, "connection", None)
        if known is None:
            host, port = self._address.hostname, self._address.port
            assert host
            known = http.client.HTTPSConnection(host, port, context=self._context, timeout=20)
            self._threads.connection = known
        return known
