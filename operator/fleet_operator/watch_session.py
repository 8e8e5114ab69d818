"""kopf's requests, over sessions that take the objects out of the answers before kopf sees them.

kopf keeps the streams: it finds the resources, logs in, lists, watches, reconnects, and lists again after a 410. For
each object it would then start a task, copy the object several times and look for handlers and causes, which takes
several times as long as to parse it; nothing of that is needed here. It lets its user bring the HTTP session: the
answers of this one deliver the objects themselves, and kopf reads empty lists, and bookmarks that say where to go on.

Of the kinds that are watched by their metadata, nothing else is asked for: a session can set the Accept header.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import aiohttp
import kopf

from fleet_operator.clients import json_text
from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.runtime.cache import WatchedKind

Delivery = Callable[[WatchedKind, Sequence[tuple[JsonObject, bool]]], None]
"""Called on kopf's thread with objects of a kind, each with whether it is gone, in the order of the stream."""

Refusal = Callable[[WatchedKind, str | None], None]
"""Called on kopf's thread with a kind whose list or watch was refused, and its namespace; None for all."""

Listed = Callable[[WatchedKind, str | None], str | None]
"""Called on kopf's thread for the version of a list that has been taken of a kind, and its objects delivered."""

REFUSED_SECONDS: Final = 5.0
REFUSALS: Final = (403, 404)
CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


class _Events:
    """The lines of a watch, as kopf reads them: what it must know of them, while the objects are delivered."""

    def __init__(
        self, content: aiohttp.StreamReader, deliver: Callable[[Sequence[tuple[JsonObject, bool]]], None]
    ) -> None:
        self._content = content
        self._deliver = deliver

    def __getattr__(self, name: str) -> Any:
        """Whatever else the answer itself asks of its content."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Chunks of whole lines: bookmarks, errors, and whatever is no event."""
        parts: list[bytes] = []
        async for data in self._content.iter_chunked(size):
            head, newline, rest = data.rpartition(b"\n")
            if not newline:
                parts.append(data)  # a long line comes in many chunks, which are joined once
                continue
            lines = b"".join((*parts, head)).split(b"\n")
            parts = [rest]
            kept = self._take(lines)
            if kept:
                yield b"\n".join((*kept, b""))

    def _take(self, lines: Iterable[bytes]) -> list[bytes]:
        changes, kept, version = list[tuple[JsonObject, bool]](), list[bytes](), None
        for line in filter(None, lines):
            event = json_text.loads(line)
            if event["type"] in CHANGES:
                changes.append((event["object"], event["type"] == "DELETED"))
                version = event["object"]["metadata"]["resourceVersion"]
            else:
                kept.append(line)
        if changes:
            self._deliver(changes)
            # Before what is kept: an error comes last in its stream.
            kept.insert(0, _bookmark(version))
        return kept


def _bookmark(version: str | None) -> bytes:
    event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}
    return json.dumps(event).encode()


class WatchRefused(aiohttp.ClientConnectionError):
    """A list or a watch that the API server refuses. To kopf it is a broken connection, which it makes again: one
    refusal, of a namespace that has withdrawn its rights or of a CRD that is gone, would end all watches."""


def _answer_class(
    watched: Sequence[WatchedKind], deliver: Delivery, refuse: Refusal, listed: Listed
) -> type[aiohttp.ClientResponse]:
    """Answers to kopf, without the objects."""

    class Answer(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            found = _kind_of(self.url.path, watched)
            if found is not None and self.status in REFUSALS:
                refuse(found, _namespace_of(self.url.path))
                await asyncio.sleep(REFUSED_SECONDS)
                raise WatchRefused(f"{found.kind.plural}: {self.status}")
            if found is not None and self.status == 200 and self.url.query.get("watch") == "true":
                taken = _Events(self.content, lambda changes: deliver(found, changes))
                self.content = cast("aiohttp.StreamReader", taken)
            return self

        async def json(self, **options: Any) -> Any:
            found = _kind_of(self.url.path, watched)
            if found is None or self.status != 200:
                # An error page of a proxy is in any encoding; kopf knows the errors of aiohttp's own reading.
                return await super().json(**options)
            version = listed(found, _namespace_of(self.url.path)) if "continue" not in self.url.query else None
            if version is not None:
                return {"items": [], "metadata": {"resourceVersion": version}}
            body = json_text.loads(await self.read())
            if isinstance(body, dict) and "items" in body:
                # A list of metadata says null where there are no objects.
                deliver(found, [(item, False) for item in body["items"] or ()])
                body["items"] = []
            return body

    return Answer


Login = Callable[..., kopf.ConnectionInfo | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Credentials(kopf.AiohttpSession):
    """A session that equals another one of the same credentials: by that kopf knows those that were refused before."""

    connection: kopf.ConnectionInfo

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Credentials) and self.connection == other.connection

    def __hash__(self) -> int:
        return hash(self.connection)


def delivering(
    login: Login,
    watched: Sequence[WatchedKind],
    deliver: Delivery,
    refuse: Refusal = lambda watched, namespace: None,
    listed: Listed = lambda watched, namespace: None,
) -> Callable[..., Any]:
    """A login handler like `login`, whose session asks for views and delivers the objects."""

    last: _Credentials | None = None

    async def log_in(**kwargs: Any) -> kopf.AiohttpSession | None:
        nonlocal last
        info = login(**kwargs)
        if info is None:
            return None
        if last is not None and last.connection == info:
            # kopf asks again once they are refused, and knows them by then: a new session would stay open unused.
            return last
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            middlewares=(_asking_for_views(watched),),
            response_class=_answer_class(watched, deliver, refuse, listed),
        )
        last = _Credentials(
            server=info.server,
            priority=info.priority,
            default_namespace=info.default_namespace,
            expiration=info.expiration,
            aiohttp_session=session,
            connection=info,
        )
        return last

    return log_in


def _asking_for_views(watched: Sequence[WatchedKind]) -> aiohttp.ClientMiddlewareType:
    """Client middleware: the Accept header of lists and watches."""

    async def ask(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        found = _kind_of(request.url.path, watched)
        if found is not None and found.view.metadata_only:
            request.headers["Accept"] = found.view.accepts(many=request.url.query.get("watch") != "true")
        return await send(request)

    return ask


def _kind_of(path: str, watched: Sequence[WatchedKind]) -> WatchedKind | None:
    """The kind whose collection a path is."""
    return next((each for each in watched if _is_collection(path, each.kind)), None)


def _namespace_of(path: str) -> str | None:
    found = re.search(r"/namespaces/([^/]+)/[^/]+$", path)
    return found[1] if found else None


def _is_collection(path: str, kind: Kind) -> bool:
    """True for the path of all objects of a kind, in one namespace or everywhere; a proxy may prefix it."""
    root, _, plural = kind.path(None).rpartition("/")
    return path.endswith(f"/{plural}") and root in path
