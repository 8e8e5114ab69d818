"""kopf's session, as the operator makes it: it asks for no more of an object than its view holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer

from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.watch_session import with_views

LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
SERVER = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t")


def with_session(work: Callable[[kopf.AiohttpSession, BaseTestServer], Awaitable[Any]]) -> Any:
    """The result of `work` with a logged-in session, beside a server that answers with the Accept header it got."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"items": None, "accept": request.headers.get("Accept")})

    async def run() -> Any:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with TestServer(app) as server:
            session = await with_views(lambda **_: SERVER, WATCHED)()
            try:
                return await work(session, server)
            finally:
                await session.aiohttp_session.close()

    return asyncio.run(run())


def accept_of(path: str) -> str:
    """The Accept header with which a session asks for a path."""

    async def asked(session: kopf.AiohttpSession, server: BaseTestServer) -> Any:
        async with session.aiohttp_session.get(server.make_url(path)) as response:
            return (await response.json())["accept"]

    return str(with_session(asked))


@pytest.mark.parametrize(
    ("path", "accepts"),
    [
        ("/api/v1/configmaps?limit=25", LIST),
        ("/api/v1/namespaces/shop/configmaps?limit=25", LIST),
        ("/api/v1/namespaces/shop/configmaps?watch=true&resourceVersion=7", ONE),
        ("/behind/a/proxy/api/v1/configmaps?watch=true", ONE),
    ],
)
def test_config_maps_are_listed_and_watched_by_their_metadata(path: str, accepts: str) -> None:
    assert accept_of(path) == accepts


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/pods?watch=true",
        "/apis/apps/v1/statefulsets",
        "/apis/consumerfleet.io/v1alpha1/consumergroups",
        "/api/v1/namespaces/shop/configmaps/one",
        "/apis/example.com/v1/configmaps",
    ],
)
def test_fully_read_kinds_are_requested_in_full(path: str) -> None:
    assert "PartialObjectMetadata" not in accept_of(path)


def test_list_of_metadata_without_objects_is_a_list() -> None:
    """The API server says null there, and kopf iterates it."""

    async def items(session: kopf.AiohttpSession, server: BaseTestServer) -> Any:
        async with session.aiohttp_session.get(server.make_url("/api/v1/configmaps")) as response:
            return (await response.json())["items"]

    assert with_session(items) == []


def test_session_of_the_same_credentials_is_the_same_and_of_others_another() -> None:
    """By that kopf knows credentials that were refused before, and that new ones are worth a try."""

    async def sessions() -> list[kopf.AiohttpSession]:
        found = iter(("old", "old", "new"))
        login = with_views(lambda **_: kopf.ConnectionInfo(server="https://kubernetes", token=next(found)), WATCHED)
        made = [await login() for _ in range(3)]
        for session in set(made):
            await session.aiohttp_session.close()
        return made

    first, again, other = asyncio.run(sessions())
    assert first == again
    assert first != other
