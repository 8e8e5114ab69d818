"""A console on a free port of loopback, with fleets in memory and a stand-in for the API server's reviews."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from fleet_consumer.clock import SystemClock
from fleet_operator.clients.kinds import BACKFILL, CONSUMER_GROUP, TOKEN_REVIEW, JsonObject, Kind
from fleet_operator.clients.kube import KubeUnavailableError
from fleet_operator.console.access import Access
from fleet_operator.console.board import Source
from fleet_operator.console.server import ConsoleServer
from fleet_operator.planning.labels import APPLIED_ANNOTATION
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.store import Store
from tests.unit.runtime.memory_kube import MemoryKube


class Reviews:
    """Stands in for the API server: tokens `token-NAME` are valid, and `rights` are pairs of user and namespace, in
    which the user may read everything; an empty namespace means all."""

    def __init__(self, *rights: tuple[str, str]) -> None:
        self.rights = set(rights)
        self.revoked: set[str] = set()
        self.asked: list[JsonObject] = []
        self.broken = False

    async def __call__(self, kind: Kind, spec: JsonObject) -> JsonObject:
        self.asked.append(spec)
        await asyncio.sleep(0)
        if self.broken:
            raise KubeUnavailableError("no answer")
        if kind is TOKEN_REVIEW:
            token = spec["token"]
            valid = token.startswith("token-") and token not in self.revoked
            return {"authenticated": valid, "user": {"username": token.removeprefix("token-"), "groups": ["people"]}}
        action = spec["resourceAttributes"]
        return {"allowed": bool({(spec["user"], action.get("namespace", "")), (spec["user"], "")} & self.rights)}


class Observed:
    """Stands in for the pool of observers."""

    def __init__(self) -> None:
        self.found: dict[Key, ClusterObservation] = {}

    def latest(self, cluster: Key) -> ClusterObservation | None:
        return self.found.get(cluster)


@dataclass
class Site:
    """A running console, and the client of its viewers. `see` changes an object as a watch would."""

    url: str
    client: aiohttp.ClientSession
    server: ConsoleServer
    store: Store
    reviews: Reviews
    observed: Observed
    version: int = field(default=100)

    def see(self, kind: Kind, body: JsonObject) -> None:
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        self.store.cache(kind).observe({**body, "metadata": metadata})

    async def text(self, path: str, user: str = "root", status: int = 200, **request: Any) -> str:
        """The page of a path, as this user sees it."""
        headers = {"Authorization": f"Bearer token-{user}"} if user else {}
        async with self.client.get(self.url + path, headers=headers, allow_redirects=False, **request) as answer:
            body = await answer.text()
            assert answer.status == status, f"{path}: {answer.status}: {body}"
            return body


@asynccontextmanager
async def site(
    *rights: tuple[str, str], fleets: Iterable[JsonObject] = (), backfills: Iterable[JsonObject] = (), port: int = 0
) -> AsyncIterator[Site]:
    """Serve a console that leads. User `root` may read everything."""
    clock, reviews, observed = SystemClock(), Reviews(("root", ""), *rights), Observed()
    store = Store(MemoryKube(), clock, WATCHED, applied_annotation=APPLIED_ANNOTATION)
    source = Source(store, observed)  # type: ignore[arg-type]
    server = ConsoleServer(source, Access(reviews, clock, token_s=1.0, access_s=1.0), clock, port)
    await server.start()
    server.leads = True
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        there = Site(f"http://127.0.0.1:{server.port}", client, server, store, reviews, observed)
        for body in fleets:
            there.see(CONSUMER_GROUP, body)
        for body in backfills:
            there.see(BACKFILL, body)
        try:
            yield there
        finally:
            await server.stop()
