"""The operator's client of the Kubernetes API, over `kubernetes.aio`, and its errors.

It returns plain dicts. The library's models are not used: they validate responses, so they may raise an error after a
successful write.

This module does not retry or cache. A failed call raises one of the errors below, and the work queue retries the key
later. A write with an unknown outcome is repeated, because every write of the operator is idempotent.
"""

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
from fleet_operator.clients.kinds import WHOLE, JsonObject, Kind, View, kind_of
from fleet_operator.planning.foreign_json import read_object

FIELD_MANAGER: Final = "consumer-fleet"

REQUEST_TIMEOUT_SECONDS: Final = 30.0
CALLS_AT_ONCE_MAX: Final = 32
"""Maximum number of concurrent calls, to limit sockets and the API server's load. A reconcile makes one call at a
time."""

WATCH_SECONDS: Final = 300
"""Time in seconds after which the API server ends a watch. The next watch continues from its last resourceVersion."""
SILENCE_SECONDS: Final = 70.0
"""Time without data after which a watch connection counts as dead. The API server sends a bookmark about every
minute."""
CONNECT_SECONDS: Final = 10.0

PAGE_OBJECTS: Final = 5
"""Number of objects in the first page of a list. It is small, because an object can be slightly larger than 1 MiB."""
PAGE_OBJECTS_MAX: Final = 500
PAGE_BYTES: Final = 1024 * 1024
"""Target size of a page in bytes. It is small, because parsing a page blocks the event loop for milliseconds."""
PAGE_BYTES_MAX: Final = 8 * PAGE_BYTES
"""Size in bytes above which a page is requested again with fewer objects. This happens, for example, if hundreds of
large objects follow small ones."""

MESSAGE_CHARACTERS_MAX: Final = 1024
"""Maximum length of text from the API server in errors, logs and conditions; longer text is cut."""


class KubeError(Exception):
    """Base class of errors of API calls; never raised itself. `retry_after` is Retry-After in seconds, or None."""

    reason = "KubernetesApiFailed"

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class KubeConflictError(KubeError):
    """The object has changed or already exists, or another field manager owns the field (409)."""

    reason = "Conflict"


class KubeExpiredError(KubeError):
    """The requested resourceVersion is too old (410); a new list is needed."""

    reason = "Expired"


class KubeForbiddenError(KubeError):
    """The operator's account lacks a permission (401, 403); an administrator must grant it."""

    reason = "Forbidden"


class KubeInvalidError(KubeError):
    """The API server refuses the object itself (400, 413, 415, 422); the same body would be refused again."""

    reason = "RefusedByApiServer"


class KubeNotFoundError(KubeError):
    """The kind, the namespace or the parent of a subresource does not exist (404)."""

    reason = "NotFound"


class KubeUnavailableError(KubeError):
    """The API server did not answer, or asked to retry later (429, 5xx). A write may or may not have taken effect."""

    reason = "ApiServerUnavailable"


ERRORS: Final[Mapping[int, type[KubeError]]] = {
    401: KubeForbiddenError,
    403: KubeForbiddenError,
    404: KubeNotFoundError,
    409: KubeConflictError,
    410: KubeExpiredError,
}


class _PageTooLargeError(Exception):
    """A page of a list exceeds the size limit, and was not read completely."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects that a list call returned, and the resourceVersion of the list."""

    items: list[JsonObject]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change of an object; `body` is None for a bookmark. `gone`: the object was deleted, or the watch no longer
    selects it."""

    resource_version: str
    body: JsonObject | None
    gone: bool = False


UNTYPED: Final = "failed to create typed patch object"
"""Beginning of the API server's message about an applied object with a field that the schema lacks. The API server
reports this error with status 500, although a retry cannot succeed."""


def _error(status: int, text: str, where: str, retry_after: float | None) -> KubeError:
    # The message of a `Status` response, or the beginning of any other text.
    said = str((read_object(text) or {}).get("message") or text)[:MESSAGE_CHARACTERS_MAX]
    later = (status == 429 or status >= 500) and not said.startswith(UNTYPED)
    error = KubeUnavailableError if later else ERRORS.get(status, KubeInvalidError)
    return error(f"{where}: {status}: {said}", status=status, retry_after=retry_after if later else None)


def _retry_after(headers: Any) -> float | None:
    """The value of Retry-After in seconds. The API server never sends a date."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


class KubeClient:
    """Makes API calls. All calls must be on the event loop of the first call. All methods raise only subclasses of
    KubeError."""

    def __init__(self, api: ApiClient) -> None:
        self.answered: Callable[[str, str, int], None] = lambda verb, plural, status: None
        """Called after each request with the HTTP verb, the plural of the kind, and the status code (0: no answer)."""
        self._api = api
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE_MAX)
        # The library is used only to renew credentials, because its requests take 1.5 times the CPU time of the
        # session's requests.
        rest, configuration = api.rest_client, api.configuration
        self._route = {
            "timeout": aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS),
            "proxy": rest.proxy,
            "proxy_headers": rest.proxy_headers,
            **({"server_hostname": configuration.tls_server_name} if configuration.tls_server_name else {}),
        }

    @classmethod
    async def connect(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Use the service account, KUBECONFIG or ~/.kube/config. Raises KubeForbiddenError without credentials."""
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
        # `trust_env` would read ~/.netrc in a thread, twice for each request. The connector has no limit, because each
        # watch keeps a connection, and a semaphore already limits the calls.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._api.rest_client.ssl_context)
        return aiohttp.ClientSession(connector=connector, trust_env=False)

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """Read one object live; None if it does not exist."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except KubeNotFoundError:
            return None

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        """Read all objects of a kind in one namespace (None: in all namespaces), in pages, trimmed to the view."""
        items: list[JsonObject] = []
        version = ""
        async for page in self.pages(kind, namespace, label_selector=label_selector, view=view):
            items += page.items
            version = page.resource_version
        return Listing(items, version)

    async def pages(
        self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[Listing]:
        """Like `list`, but yields pages, at most one in memory. All pages have the same resourceVersion."""
        query = [("labelSelector", label_selector)] if label_selector else []
        limit, accept = PAGE_OBJECTS, view.accepts(many=True)
        while True:
            paged, bytes_max = [("limit", str(limit)), *query], PAGE_BYTES_MAX if limit > 1 else None
            try:
                page, size = await self._answer("GET", kind.path(namespace), paged, accept=accept, bytes_max=bytes_max)
            except _PageTooLargeError:  # the continue token is also valid for a smaller page
                limit = max(1, limit * PAGE_BYTES // PAGE_BYTES_MAX)
                continue
            # Items have no type, or the type PartialObjectMetadata.
            typed = ({**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page.get("items") or ())
            listing = Listing(list(map(view.trim, typed)), page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue")
            del page, typed  # frees the page before the next one is read
            yield listing
            if not token:
                return
            query = [*(pair for pair in query if pair[0] != "continue"), ("continue", token)]
            limit = max(1, min(2 * limit, limit * PAGE_BYTES // size, PAGE_OBJECTS_MAX))

    async def watch(
        self, kind: Kind, namespace: str | None, version: str, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[WatchEvent]:
        """Yield trimmed changes after `version` until the watch ends. A too old `version` raises KubeExpiredError."""
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
        """Apply an object (server-side apply with force, taking over fields of other managers); returns it as stored.
        Only for the operator's own objects. In users' objects, only the operator's finalizer is applied."""
        return await self._apply(body, subresource=None)

    async def apply_status(self, body: JsonObject) -> JsonObject:
        """Apply the `/status` of a custom resource (server-side, with force). The operator owns the whole status."""
        return await self._apply(body, subresource="status")

    async def create(self, body: JsonObject, *, strict: bool = False) -> JsonObject:
        """Create an object. Raises KubeConflictError if the name is taken. With `strict`, unknown fields are refused,
        as by `apply`."""
        path = kind_of(body).path(body["metadata"]["namespace"])
        query = [("fieldManager", FIELD_MANAGER), *([("fieldValidation", "Strict")] if strict else ())]
        return await self._call("POST", path, query, body)

    async def review(self, kind: Kind, spec: JsonObject) -> JsonObject:
        """Request a review of this kind, such as a TokenReview; returns its status."""
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}
        status: JsonObject = (await self._call("POST", kind.path(None), (), body)).get("status") or {}
        return status

    async def replace(self, body: JsonObject) -> JsonObject:
        """Replace an object. Raises KubeConflictError if the stored object's `resourceVersion` differs from the one in
        `body`."""
        path = kind_of(body).path(body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._call("PUT", path, [("fieldManager", FIELD_MANAGER)], body)

    async def merge(self, body: JsonObject) -> JsonObject:
        """Merge-patch an object, even if other field managers own the fields. Raises KubeNotFoundError if the object
        does not exist, and KubeConflictError if its `resourceVersion` differs from the one in `body`."""
        path = kind_of(body).path(body["metadata"]["namespace"], body["metadata"]["name"])
        query = [("fieldManager", FIELD_MANAGER)]
        return await self._call("PATCH", path, query, body, content_type="application/merge-patch+json")

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, version: str | None = None) -> bool:
        """Delete the object if it has this uid and, if `version` is set, this resourceVersion. Returns False if no such
        object exists."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid} | ({"resourceVersion": version} if version is not None else {}),
            "propagationPolicy": "Background",
        }
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options)
        except (KubeNotFoundError, KubeConflictError):  # 409: the uid or the resourceVersion differs
            return False
        return True

    async def _apply(self, body: JsonObject, *, subresource: str | None) -> JsonObject:
        path = kind_of(body).path(body["metadata"]["namespace"], body["metadata"]["name"], subresource)
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return await self._call("PATCH", path, query, body, content_type="application/apply-patch+yaml")

    async def _addressed(
        self, method: str, path: str, query: Sequence[tuple[str, str]], *, accept: str, content_type: str = ""
    ) -> tuple[URL, dict[str, str]]:
        """Build the URL and the headers of a request, with current credentials."""
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
        """Return the answer and its size in bytes. Raises _PageTooLargeError if it is larger than `bytes_max`."""
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
        assert isinstance(parsed, dict), f"{where}: the answer is not a JSON object"
        return parsed, len(payload)


UNREACHABLE: Final = (aiohttp.ClientError, OSError, TimeoutError, kube_config.ConfigException)


def _unreachable(where: str, error: BaseException) -> KubeUnavailableError:
    return KubeUnavailableError(f"{where}: {type(error).__name__}: {error}"[:MESSAGE_CHARACTERS_MAX])


def _event_of(line: bytes, kind: Kind, view: View, where: str) -> WatchEvent:
    """Parse one line of a watch response. Raises the error that an ERROR event contains."""
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
    # The type of PartialObjectMetadata is replaced by the requested kind's type.
    body = view.trim({**seen, "apiVersion": kind.api_version, "kind": kind.kind})
    return WatchEvent(version, body, gone=event["type"] == "DELETED")


def _plural_of(path: str) -> str:
    """Extract the kind's plural from a path that `Kind.path` has built."""
    parts = path.split("/")
    return parts[parts.index("namespaces") + 2] if "namespaces" in parts else parts[-1]


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    """Read the body. Stops reading and returns None if the body is longer than `bytes_max`. Raises aiohttp's errors."""
    pieces, left = list[bytes](), bytes_max + 1
    while piece := await answer.content.read(left):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces) if left > 0 else None


async def read_lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield non-empty lines of any length as they arrive. Raises aiohttp's errors."""
    parts: list[bytes] = []
    async for data in answer.content.iter_any():
        head, newline, rest = data.rpartition(b"\n")
        if not newline:
            parts.append(data)  # pieces are joined once per line, because a long line arrives in many pieces
            continue
        for line in b"".join((*parts, head)).split(b"\n"):
            if line:
                yield line
        parts = [rest]
