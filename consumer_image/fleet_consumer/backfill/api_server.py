"""ConfigMaps of the Kubernetes API (ledger and control), read and replaced with the pod's service account.

Failed requests are retried for several minutes, so that a restart of the API server does not end a backfill. Each
request reads the token from its file, because the kubelet renews it.
"""

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
"""Environment variable with the URL of the API server or of a proxy; overrides KUBERNETES_SERVICE_HOST and _PORT."""
PATIENCE_S: Final = 600.0
"""Maximum time for retries of a request that is answered with 429 or 5xx, or not at all."""
REFUSED_PATIENCE_S: Final = 30.0
"""Maximum time for retries after 401, 403 or 404: a new token or RoleBinding takes effect with a delay."""
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 15.0
TIMEOUT_S: Final = 30.0
REFUSALS: Final = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}

Document = dict[str, Any]


class ApiConflict(Exception):
    """The object has changed since it was read."""


class ApiFailed(Exception):
    """The API server was unavailable for too long, or it refused the request."""

    reason = "ApiServerFailed"


class ConfigMaps(Protocol):
    """Access to the ConfigMaps of one namespace."""

    def get(self, name: str) -> Document:
        """Read the object. Raises ApiFailed."""

    def replace(self, document: Document) -> Document:
        """Replace the object if it has not changed since it was read. Raises ApiConflict and ApiFailed."""


class ApiServer:
    """Reads and replaces ConfigMaps over HTTP. Not thread-safe. `wait` sleeps before a retry."""

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

    def get(self, name: str) -> Document:
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
                answer = "the response is not a JSON object"
            if status == 409:
                raise ApiConflict(f"ConfigMap {name} has changed since it was read")
            patience = REFUSED_PATIENCE_S if status in REFUSALS else PATIENCE_S
            if self._clock.monotonic() - began + pause > patience or (
                400 <= status < 500 and status not in (*REFUSALS, 429)
            ):
                raise ApiFailed(f"{method} of ConfigMap {name}: {_seen(status, answer)}")
            LOG.warning("request to the API server failed; retrying", extra=fields(error=_seen(status, answer)))
            self._wait(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _once(self, method: str, name: str, document: Document | None) -> tuple[int, str]:
        """Return the HTTP status and the body, or 0 and the error message if there is no answer."""
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
"""Maximum number of consecutive conflicts of a write. More conflicts mean that another client keeps changing the
ledger."""


class LedgerStore:
    """Reads and writes the ledger for one attempt. Every method raises Superseded if a newer attempt owns it."""

    def __init__(self, objects: ConfigMaps, name: str, attempt: int) -> None:
        self._objects = objects
        self._name = name
        self._attempt = attempt
        self._document: Document = {}

    def load(self) -> Ledger | None:
        """Return the stored ledger, or None before the first write. Raises SettingsInvalid for an unreadable ledger.

        If a newer attempt owns the ledger, its ConfigMap is not remembered. A caller that wrongly continues after
        Superseded then gets a conflict, and cannot overwrite the newer ledger.
        """
        document = self._objects.get(self._name)
        text = _data(document).get(LEDGER_KEY)
        ledger = None if text is None else parse_ledger(text)
        if ledger is not None and ledger.attempt > self._attempt:
            raise Superseded(
                f"ledger {self._name} belongs to attempt {ledger.attempt}, but this is attempt {self._attempt}"
            )
        self._document = document
        return ledger

    def alive(self, sign: int) -> None:
        """Store `sign`, a number that changes while the driver makes progress. A conflict is not retried, because the
        next number follows soon."""
        try:
            self._put(ALIVE_KEY, str(sign))
        except ApiConflict:
            self.load()

    def write(self, ledger: Ledger) -> None:
        """Replace this attempt's stored ledger. Raises ApiFailed after CONFLICTS_MAX consecutive conflicts.

        After each conflict, the stored ledger is read: an earlier request may have succeeded although its answer was
        lost.
        """
        text = ledger_text(ledger)
        for _ in range(CONFLICTS_MAX):
            try:
                self._put(LEDGER_KEY, text)
                return
            except ApiConflict:
                self.load()
                if _data(self._document).get(LEDGER_KEY) == text:
                    return
        raise ApiFailed(f"ConfigMap {self._name} keeps changing; find out what changes it, because only the driver may")

    def _put(self, key: str, text: str) -> None:
        data = {**_data(self._document), key: text}
        self._document = self._objects.replace({**self._document, "data": data})


def _data(document: Document) -> Mapping[str, str]:
    return document.get("data") or {}


def read_control(objects: ConfigMaps, name: str) -> Control:
    """Read the control, the operator's instructions. Raises SettingsInvalid if the control is missing or unreadable."""
    text = _data(objects.get(name)).get(CONTROL_KEY)
    if text is None:
        raise SettingsInvalid(
            f"ConfigMap {name}", f"has no {CONTROL_KEY}, which the operator writes; check that the operator runs"
        )
    return parse_control(text)
