"""The operator's client of the Kubernetes API, over `kubernetes.aio`, and its errors.

Raw dicts are used rather than the library's models, as those validate replies and raise after a write has already
succeeded.

This module does not retry, cache or decide. A failed call raises one of the errors below, and the work queue comes back
later; every write of the operator is idempotent, so a write of unknown outcome is made again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from yarl import URL

from fleet_operator.clients import json_text
from fleet_operator.clients.bodies import read_body, read_lines
from fleet_operator.clients.kinds import WHOLE, JsonObject, Kind, View, kind_of
from fleet_operator.planning.foreign_json import read_object

FIELD_MANAGER: Final = "consumer-fleet"
"""The one owner of every field the operator applies."""

REQUEST_TIMEOUT_SECONDS: Final = 30.0
CALLS_AT_ONCE_MAX: Final = 32
"""Bounds sockets and the load on the API server; a reconcile makes its calls one after the other."""

WATCH_SECONDS: Final = 300
"""Time after which the API server ends a watch, for the next one to go on."""
SILENCE_SECONDS: Final = 70.0
"""A connection that is silent for longer is dead: the API server sends a bookmark every minute."""
CONNECT_SECONDS: Final = 10.0

PAGE_OBJECTS: Final = 5
"""Objects in the first page of a list; an object can have a little over a MiB."""
PAGE_OBJECTS_MAX: Final = 500
PAGE_BYTES: Final = 1024 * 1024
"""Size that the pages of a list are held near: to read one keeps the event loop for milliseconds."""
PAGE_BYTES_MAX: Final = 8 * PAGE_BYTES
"""Largest page that is read: after many small objects the next page may ask for hundreds of large ones."""

MESSAGE_CHARACTERS_MAX: Final = 1024
"""Foreign text is cut to this length before it enters our errors, logs and conditions."""


class KubeError(Exception):
    """Base of what a call to the API server can raise; never raised itself.

    `reason` is CamelCase. `retry_after` is what the server asked to wait, in seconds, or None.
    """

    reason = "KubernetesApiFailed"

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class KubeConflictError(KubeError):
    """The object changed in between, exists already, or another field manager owns the field (409)."""

    reason = "Conflict"


class KubeExpiredError(KubeError):
    """The API server remembers nothing as old as what was asked for (410): list again."""

    reason = "Expired"


class KubeForbiddenError(KubeError):
    """The operator's account lacks a right (401, 403): a person has to grant it."""

    reason = "Forbidden"


class KubeInvalidError(KubeError):
    """The API server refuses the object itself (400, 413, 415, 422); the same body is refused again."""

    reason = "RefusedByApiServer"


class KubeNotFoundError(KubeError):
    """The kind, the namespace or the parent of a subresource does not exist (404)."""

    reason = "NotFound"


class KubeUnavailableError(KubeError):
    """No answer, or an answer that says "later" (429, 5xx). A write may or may not have happened."""

    reason = "ApiServerUnavailable"


ERRORS: Final[Mapping[int, type[KubeError]]] = {
    401: KubeForbiddenError,
    403: KubeForbiddenError,
    404: KubeNotFoundError,
    409: KubeConflictError,
    410: KubeExpiredError,
}


class _PageTooLargeError(Exception):
    """A page of a list was not read to its end."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects of a list call, with the resourceVersion of the collection."""

    items: list[JsonObject]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change of an object, or with None as its body only a version that the watch has come to.

    `gone`: the object is deleted, or is selected no longer.
    """

    resource_version: str
    body: JsonObject | None
    gone: bool = False


UNTYPED: Final = "failed to create typed patch object"
"""Beginning of the API server's words for an applied object with a field that its schema does not have. It calls that
an internal error (500), and no repetition mends it."""


def _error(status: int, text: str, where: str, retry_after: float | None) -> KubeError:
    said = _message_of(text)
    later = (status == 429 or status >= 500) and not said.startswith(UNTYPED)
    error = KubeUnavailableError if later else ERRORS.get(status, KubeInvalidError)
    return error(f"{where}: {status}: {said}", status=status, retry_after=retry_after if later else None)


def _message_of(text: str) -> str:
    """The message of a `Status` reply, or the start of whatever else came."""
    said = read_object(text) or {}
    return str(said.get("message") or text)[:MESSAGE_CHARACTERS_MAX]


def _retry_after(headers: Any) -> float | None:
    """The seconds form of Retry-After, the only one the API server sends."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


class KubeClient:
    """The verbs that the operator needs. Belongs to the event loop of its first call.

    Every method may raise a KubeError subclass; anything else is a bug.
    """

    def __init__(self, api: ApiClient) -> None:
        self.answered: Callable[[str, str, int], None] = lambda verb, plural, status: None
        """Called with the HTTP verb, the plural of the kind and the status code of each answer; 0 for none."""
        self._api = api
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE_MAX)
        # The library knows the credentials and renews them; its requests cost half as much again as the session's own.
        rest, configuration = api.rest_client, api.configuration
        self._route = {
            "timeout": aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS),
            "proxy": rest.proxy,
            "proxy_headers": rest.proxy_headers,
            **({"server_hostname": configuration.tls_server_name} if configuration.tls_server_name else {}),
        }

    @classmethod
    async def connect(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Configure from the pod's service account, else from KUBECONFIG or ~/.kube/config. Makes no request yet.

        Raises KubeForbiddenError when neither exists.
        """
        configuration = Configuration()
        try:
            if environ.get("KUBERNETES_SERVICE_HOST"):
                kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                path = environ.get("KUBECONFIG") or "~/.kube/config"  # the library expands the tilde
                loading = kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=path, client_configuration=configuration
                )
                await loading
        except kube_config.ConfigException as error:
            raise KubeForbiddenError(
                f"no credentials for a Kubernetes API server: {error}; run in a pod or set KUBECONFIG"
            ) from error
        return cls(ApiClient(configuration))

    async def close(self) -> None:
        if "_session" in vars(self):
            await self._session.close()
        await self._api.close()  # type: ignore[no-untyped-call]

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        # With `trust_env` aiohttp reads ~/.netrc in a thread, twice for each request; no API server needs that.
        # Calls are bounded by their slots; each watch keeps a connection.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._api.rest_client.ssl_context)
        return aiohttp.ClientSession(connector=connector, trust_env=False)

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """One object, read live; None when it does not exist."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except KubeNotFoundError:
            return None

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        """All objects of a kind in one namespace, or everywhere with None; fetched in pages, each cut to the view."""
        items: list[JsonObject] = []
        version = ""
        async for page in self.pages(kind, namespace, label_selector=label_selector, view=view):
            items += page.items
            version = page.resource_version
        return Listing(items, version)

    async def pages(
        self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[Listing]:
        """The same, page by page: no more than one page is in memory. All pages are of one resourceVersion."""
        query = [("labelSelector", label_selector)] if label_selector else []
        limit, accept = PAGE_OBJECTS, view.accepts(many=True)
        while True:
            paged, bytes_max = [("limit", str(limit)), *query], PAGE_BYTES_MAX if limit > 1 else None
            try:
                page, size = await self._answer("GET", kind.path(namespace), paged, accept=accept, bytes_max=bytes_max)
            except _PageTooLargeError:  # its token stays valid, for a smaller page too
                limit = max(1, limit * PAGE_BYTES // PAGE_BYTES_MAX)
                continue
            # Members of a list carry no type of their own, or that of the metadata alone.
            typed = ({**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page.get("items") or ())
            listing = Listing(list(map(view.trim, typed)), page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue")
            del page, typed  # or two pages are in memory while the next one is read
            yield listing
            if not token:
                return
            query = [*(pair for pair in query if pair[0] != "continue"), ("continue", token)]
            limit = max(1, min(2 * limit, limit * PAGE_BYTES // size, PAGE_OBJECTS_MAX))

    async def watch(
        self, kind: Kind, namespace: str | None, version: str, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[WatchEvent]:
        """Changes of a list after a version, each object cut to the view, until the API server ends the watch.

        Raises KubeExpiredError when the version is too old.
        """
        path = kind.path(namespace)
        where, timeout = f"WATCH {path}", aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(WATCH_SECONDS))]
        query += [("resourceVersion", version), *([("labelSelector", label_selector)] if label_selector else ())]
        try:
            url, headers = await self._addressed("GET", path, query, accept=view.accepts(many=False))
            async with self._session.get(url, headers=headers, **{**self._route, "timeout": timeout}) as response:
                if response.status != 200:
                    text = await response.text(errors="replace")
                    raise _error(response.status, text, where, _retry_after(response.headers))
                async for line in read_lines(response):
                    yield _event_of(line, kind, view, where)
        except UNREACHABLE as error:
            raise _unreachable(where, error) from error

    async def apply(self, body: JsonObject) -> JsonObject:
        """Server-side apply the operator's full intent for an object, taking over fields others hold (force).

        Only for objects the operator makes; of what users wrote, nothing but our finalizer is ever applied. Returns the
        object as stored.
        """
        return await self._apply(body, subresource=None)

    async def apply_status(self, body: JsonObject) -> JsonObject:
        """Server-side apply the `/status` of one of our custom resources; the operator owns all of it."""
        return await self._apply(body, subresource="status")

    async def create(self, body: JsonObject, *, strict: bool = False) -> JsonObject:
        """Create an object; KubeConflictError when the name is taken.

        With `strict` a field that the schema does not have is refused, as `apply` refuses it, and not dropped.
        """
        path = kind_of(body).path(body["metadata"]["namespace"])
        query = [("fieldManager", FIELD_MANAGER), *([("fieldValidation", "Strict")] if strict else ())]
        return await self._call("POST", path, query, body)

    async def replace(self, body: JsonObject) -> JsonObject:
        """Replace an object that still has the `resourceVersion` in `body`; KubeConflictError when it has moved on."""
        path = kind_of(body).path(body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._call("PUT", path, [("fieldManager", FIELD_MANAGER)], body)

    async def merge(self, body: JsonObject) -> JsonObject:
        """Set what `body` has in an object that still has its `resourceVersion`, whoever owns those fields.

        Raises KubeConflictError when the object has moved on, and KubeNotFoundError.
        """
        path = kind_of(body).path(body["metadata"]["namespace"], body["metadata"]["name"])
        query = [("fieldManager", FIELD_MANAGER)]
        return await self._call("PATCH", path, query, body, content_type="application/merge-patch+json")

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, version: str | None = None) -> bool:
        """Delete the object with this uid, in this version if one is given; False when there is no such object."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid} | ({"resourceVersion": version} if version is not None else {}),
            "propagationPolicy": "Background",
        }
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options)
        except (KubeNotFoundError, KubeConflictError):  # 409: another object has the name, or it has moved on
            return False
        return True

    async def _apply(self, body: JsonObject, *, subresource: str | None) -> JsonObject:
        path = kind_of(body).path(body["metadata"]["namespace"], body["metadata"]["name"], subresource)
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return await self._call("PATCH", path, query, body, content_type="application/apply-patch+yaml")

    async def _addressed(
        self, method: str, path: str, query: Sequence[tuple[str, str]], *, accept: str, content_type: str = ""
    ) -> tuple[URL, dict[str, str]]:
        """The URL and the headers of a request, with credentials that are valid now."""
        headers = {
            "Accept": accept,
            "User-Agent": FIELD_MANAGER,
            **({"Content-Type": content_type} if content_type else {}),
        }
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        return URL(
            f"{self._api.configuration.host}{path}{'?' + urlencode(query) if query else ''}", encoded=True
        ), headers

    async def _call(self, method: str, path: str, *args: Any, **kwargs: Any) -> JsonObject:
        answer, _ = await self._answer(method, path, *args, **kwargs)
        return answer

    async def _answer(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: JsonObject | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        bytes_max: int | None = None,
    ) -> tuple[JsonObject, int]:
        """The answer and its size in bytes. Raises _PageTooLargeError if it has more than `bytes_max`."""
        where = f"{method} {path}"
        data = json_text.dumps(body) if body is not None else None
        async with self._slots:
            try:
                url, headers = await self._addressed(method, path, query, accept=accept, content_type=content_type)
                async with self._session.request(method, url, data=data, headers=headers, **self._route) as response:
                    payload = await (response.read() if bytes_max is None else read_body(response, bytes_max))
            except UNREACHABLE as error:
                self.answered(method, _plural_of(path), 0)
                raise _unreachable(where, error) from error
        self.answered(method, _plural_of(path), response.status)
        if payload is None:
            raise _PageTooLargeError(where)
        if not 200 <= response.status <= 299:
            raise _error(response.status, payload.decode("utf-8", "replace"), where, _retry_after(response.headers))
        try:
            parsed = json_text.loads(payload)
        except (ValueError, RecursionError) as error:
            raise KubeInvalidError(f"{where}: the answer cannot be read: {error}") from error
        assert isinstance(parsed, dict), f"{where}: the API server always answers with an object"
        return parsed, len(payload)


UNREACHABLE: Final = (aiohttp.ClientError, OSError, TimeoutError, kube_config.ConfigException)


def _unreachable(where: str, error: BaseException) -> KubeUnavailableError:
    return KubeUnavailableError(f"{where}: {type(error).__name__}: {error}"[:MESSAGE_CHARACTERS_MAX])


def _event_of(line: bytes, kind: Kind, view: View, where: str) -> WatchEvent:
    """A line of a watch. Raises the error that the API server ends a watch with."""
    try:
        event = json_text.loads(line)
    except (ValueError, RecursionError) as error:
        raise KubeInvalidError(f"{where}: an event cannot be read: {error}") from error
    seen: JsonObject = event["object"]
    if event["type"] == "ERROR":
        raise _error(seen.get("code", 500), json.dumps(seen), where, None)
    version: str = seen["metadata"]["resourceVersion"]
    if event["type"] == "BOOKMARK":
        return WatchEvent(version, None)
    # The metadata alone has a type of its own.
    body = view.trim({**seen, "apiVersion": kind.api_version, "kind": kind.kind})
    return WatchEvent(version, body, gone=event["type"] == "DELETED")


def _plural_of(path: str) -> str:
    """The plural of the kind that a path of `Kind.path` is about."""
    parts = path.split("/")
    return parts[parts.index("namespaces") + 2] if "namespaces" in parts else parts[-1]
