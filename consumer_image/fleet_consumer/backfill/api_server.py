"""ConfigMaps of the Kubernetes API, read and replaced with the pod's own service account: the ledger and the control.

A restart of the API server must not end a backfill: requests are repeated for minutes. The token is read from its file
for every request, because the kubelet renews it.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from fleet_consumer.backfill.errors import Superseded
from fleet_consumer.clock import Clock
from fleet_consumer.contract.backfill_ledger import (
    ALIVE_KEY,
    CONTROL_KEY,
    LEDGER_KEY,
    Control,
    Ledger,
    ledger_text,
    parse_control,
    parse_ledger,
)
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API_URL: Final = "FLEET_API_SERVER"
"""Environment variable that replaces the pod's own API server, such as http://127.0.0.1:8001 behind a proxy."""
PATIENCE_S: Final = 600.0
"""Requests that find no API server are repeated for so long."""
REFUSED_PATIENCE_S: Final = 30.0
"""The same for 401, 403 and 404: a token or a RoleBinding may be new."""
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 15.0
TIMEOUT_S: Final = 30.0
REFUSALS: Final = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}

Document = dict[str, Any]


class ApiConflict(Exception):
    """The object was changed since it was read."""


class ApiFailed(Exception):
    """The API server is away for too long, or refuses the request."""

    reason = "ApiServerFailed"


class ConfigMaps(Protocol):
    """Access to the ConfigMaps of one namespace."""

    def read(self, name: str) -> Document:
        """The object. Raises ApiFailed."""

    def replace(self, document: Document) -> Document:
        """Replace the object if it is still the one that was read. Raises ApiConflict and ApiFailed."""


class ApiServer:
    """ConfigMaps by HTTP. One thread uses it; `wait` passes the time between two tries."""

    def __init__(
        self,
        namespace: str,
        environment: Mapping[str, str],
        clock: Clock,
        *,
        account: Path = ACCOUNT,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        url = environment.get(API_URL)
        if url is None:
            host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
            url = f"https://{f'[{host}]' if ':' in host else host}:{port or 443}" if host else ""
        self._url = urlsplit(url)
        self._base = f"/api/v1/namespaces/{quote(namespace)}/configmaps/"
        self._account = account
        self._clock = clock
        self._wait = wait or threading.Event().wait

    def read(self, name: str) -> Document:
        return self._ask("GET", name, None)

    def replace(self, document: Document) -> Document:
        return self._ask("PUT", document["metadata"]["name"], document)

    def _ask(self, method: str, name: str, document: Document | None) -> Document:
        began, pause = self._clock.monotonic(), PAUSE_S
        while True:
            status, answer = self._once(method, name, document)
            if status == 200:
                with suppress(ValueError):
                    if isinstance(found := json.loads(answer), dict):
                        return found
                answer = "an answer that is no JSON object"
            if status == 409:
                raise ApiConflict(f"ConfigMap {name} was changed meanwhile")
            patience = REFUSED_PATIENCE_S if status in REFUSALS else PATIENCE_S
            if self._clock.monotonic() - began + pause > patience or (
                400 <= status < 500 and status not in (*REFUSALS, 429)
            ):
                raise ApiFailed(f"{method} of ConfigMap {name}: {_seen(status, answer)}")
            LOG.warning("the API server is asked again", extra=fields(error=_seen(status, answer)))
            self._wait(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _once(self, method: str, name: str, document: Document | None) -> tuple[int, str]:
        """Status and body; status 0 and the error's text if there was no answer."""
        if not self._url.hostname:
            return 400, f"no API server is known: neither {API_URL} nor KUBERNETES_SERVICE_HOST is set"
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        body = None if document is None else json.dumps(document)
        try:
            token = self._account / "token"
            if token.exists():
                headers["Authorization"] = f"Bearer {token.read_text().strip()}"
            with closing(self._connection()) as connection:
                connection.request(method, self._base + quote(name), body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{type(error).__name__}: {error}"

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        authority = self._account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _seen(status: int, answer: str) -> str:
    if status == 0:
        return f"no answer: {answer}"
    try:
        message = str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        message = answer[:200]
    advice = "; allow the driver's service account to get and update it" if status in (401, 403) else ""
    return f"{status} {REFUSALS.get(status, '')}: {message}{advice}"


CONFLICTS_MAX: Final = 20
"""Somebody who changes the ledger more often than this in a row works against the driver."""


class LedgerStore:
    """Reads and writes the ledger of one attempt. A ledger of a newer attempt raises Superseded, from every call."""

    def __init__(self, objects: ConfigMaps, name: str, attempt: int) -> None:
        self._objects = objects
        self._name = name
        self._attempt = attempt
        self._document: Document = {}

    def read(self) -> Ledger | None:
        """The stored ledger, None before the first was written. Raises SettingsInvalid for one that is unreadable.

        Only a document of this attempt or an older one is the base of the next write: a caller that goes on after
        Superseded would replace the ledger of the newer attempt.
        """
        document = self._objects.read(self._name)
        text = _data(document).get(LEDGER_KEY)
        ledger = None if text is None else parse_ledger(text)
        if ledger is not None and ledger.attempt > self._attempt:
            raise Superseded(
                f"ledger {self._name} belongs to attempt {ledger.attempt}, and this is attempt {self._attempt}"
            )
        self._document = document
        return ledger

    def alive(self, sign: int) -> None:
        """Store a sign of progress next to the ledger. It is tried once: the next one comes soon."""
        try:
            self._put(ALIVE_KEY, str(sign))
        except ApiConflict:
            self.read()

    def write(self, ledger: Ledger) -> None:
        """Store a ledger. What this attempt wrote before is replaced, also if its answer was lost on the way."""
        text = ledger_text(ledger)
        for _ in range(CONFLICTS_MAX):
            try:
                self._put(LEDGER_KEY, text)
                return
            except ApiConflict:
                self.read()
                if _data(self._document).get(LEDGER_KEY) == text:
                    return
        raise ApiFailed(f"ConfigMap {self._name} is changed by others all the time; only the driver may write it")

    def _put(self, key: str, text: str) -> None:
        """Replace a text of the object that was read or written last. Raises ApiConflict."""
        data = {**_data(self._document), key: text}
        self._document = self._objects.replace({**self._document, "data": data})


def _data(document: Document) -> Mapping[str, str]:
    return document.get("data") or {}


def read_control(objects: ConfigMaps, name: str) -> Control:
    """The operator's orders as they are now. Raises SettingsInvalid if they are missing or unreadable."""
    text = _data(objects.read(name)).get(CONTROL_KEY)
    if text is None:
        raise SettingsInvalid(f"ConfigMap {name}", f"has no {CONTROL_KEY}; the operator writes it")
    return parse_control(text)
