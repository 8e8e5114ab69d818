"""kopf's requests, over sessions that ask for no more of an object than its view holds.

kopf knows whole objects only. It lets its user bring the HTTP session, and a session can set the Accept header of a
request by its address: of the kinds that are watched by their metadata, nothing else is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
import kopf

from fleet_operator.clients.kinds import Kind
from fleet_operator.runtime.cache import WatchedKind


class _Answer(aiohttp.ClientResponse):
    """An answer whose list is a list: one of metadata says null where there are no objects, and kopf iterates it."""

    async def json(self, **options: Any) -> Any:
        body = await super().json(**options)
        if isinstance(body, dict) and "items" in body and body["items"] is None:
            body["items"] = []
        return body


Login = Callable[..., kopf.ConnectionInfo | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Credentials(kopf.AiohttpSession):
    """A session that equals another one of the same credentials: by that kopf knows those that were refused before."""

    connection: kopf.ConnectionInfo

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Credentials) and self.connection == other.connection

    def __hash__(self) -> int:
        return hash(self.connection)


def with_views(login: Login, watched: Iterable[WatchedKind]) -> Callable[..., Any]:
    """A login handler like `login`, whose session asks for views."""

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
            response_class=_Answer,
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


def _asking_for_views(watched: Iterable[WatchedKind]) -> aiohttp.ClientMiddlewareType:
    """Client middleware: the Accept header of lists and watches."""
    parts = [(each.kind, each.view) for each in watched if each.view.metadata_only]

    async def ask(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        for kind, view in parts:
            if _is_collection(request.url.path, kind):
                request.headers["Accept"] = view.accepts(many=request.url.query.get("watch") != "true")
        return await send(request)

    return ask


def _is_collection(path: str, kind: Kind) -> bool:
    """True for the path of all objects of a kind, in one namespace or everywhere; a proxy may prefix it."""
    root, _, plural = kind.path(None).rpartition("/")
    return path.endswith(f"/{plural}") and root in path
