"""kopf's session, as the operator makes it: it takes the objects out, and asks for no more than their view holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer
from kopf._cogs.clients.errors import APIServerError, check_response

from fleet_operator import watch_session
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.cache import WatchedKind
from fleet_operator.watch_session import delivering

LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
SERVER = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="t")


PODS = "/api/v1/pods"


class Delivered(list[tuple[str, str, bool]]):
    """The kind, the name and the end of each object that was delivered."""

    def __call__(self, watched: WatchedKind, changes: Sequence[tuple[JsonObject, bool]]) -> None:
        self += [(watched.kind.kind, body["metadata"]["name"], gone) for body, gone in changes]


def with_session(
    work: Callable[[kopf.AiohttpSession, BaseTestServer], Awaitable[Any]],
    *,
    delivered: Delivered | None = None,
    items: list[JsonObject] | None = None,
    stream: bytes = b"",
) -> Any:
    """The result of `work` with a logged-in session, beside a server that answers with the Accept header it got, with
    `items` to lists, and with `stream` to watches."""
    delivered = Delivered() if delivered is None else delivered

    async def answer(request: web.Request) -> web.Response:
        if stream and request.query.get("watch") == "true":
            return web.Response(body=stream)
        accept = request.headers.get("Accept")
        return web.json_response({"items": items, "metadata": {"resourceVersion": "9"}, "accept": accept})

    async def run() -> Any:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with TestServer(app) as server:
            session = await delivering(lambda **_: SERVER, WATCHED, delivered)()
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


@pytest.mark.parametrize(("path", "namespace"), [("", None), ("namespaces/shop/", "shop")])
@pytest.mark.parametrize("watch", ["", "?watch=true"])
@pytest.mark.parametrize("status", [403, 404])
def test_refusal_is_reported_and_a_broken_connection_to_kopf(
    path: str, namespace: str | None, watch: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf makes a connection again that broke, and ends all watches for one that is refused."""
    monkeypatch.setattr(watch_session, "REFUSED_SECONDS", 0.0)
    refused: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status"}, status=status)

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with TestServer(app) as server:
            login = delivering(
                lambda **_: SERVER, WATCHED, Delivered(), lambda watched, at: refused.append((watched.kind.kind, at))
            )
            session = await login()
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.aiohttp_session.get(server.make_url(f"/api/v1/{path}configmaps{watch}"))
            async with session.aiohttp_session.get(server.make_url("/api/v1/namespaces/shop/configmaps/one")) as other:
                assert other.status == status
            await session.aiohttp_session.close()

    asyncio.run(run())
    assert refused == [("ConfigMap", namespace)]


def test_first_list_of_what_has_been_listed_delivers_nothing_and_goes_on_from_its_version() -> None:
    delivered, versions = Delivered(), ["7"]

    async def answer(request: web.Request) -> web.Response:
        items = [{"metadata": {"name": "one", "resourceVersion": "8"}}]
        return web.json_response({"items": items, "metadata": {"resourceVersion": "9", "continue": "more"}})

    async def run() -> list[Any]:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with TestServer(app) as server:
            login = delivering(
                lambda **_: SERVER, WATCHED, delivered, listed=lambda watched, at: versions.pop() if versions else None
            )
            session, lists = await login(), list[Any]()
            for query in ("?limit=10&continue=more", "?limit=10", "?limit=10"):
                async with session.aiohttp_session.get(server.make_url(f"{PODS}{query}")) as response:
                    lists.append(await response.json())
            await session.aiohttp_session.close()
            return [each["metadata"] for each in lists]

    whole = {"resourceVersion": "9", "continue": "more"}
    assert asyncio.run(run()) == [whole, {"resourceVersion": "7"}, whole]
    assert delivered == [("Pod", "one", False)] * 2


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
        info = lambda **_: kopf.ConnectionInfo(server="https://kubernetes", token=next(found))  # noqa: E731
        login = delivering(info, WATCHED, Delivered())
        made = [await login() for _ in range(3)]
        for session in set(made):
            await session.aiohttp_session.close()
        return made

    first, again, other = asyncio.run(sessions())
    assert first == again
    assert first != other


def pod(name: str, version: int) -> JsonObject:
    return {"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": str(version)}}


def lines(*events: tuple[str, JsonObject]) -> bytes:
    return b"".join(json.dumps({"type": kind, "object": body}).encode() + b"\n" for kind, body in events)


def read(stream: bytes, *, chunk: int = 1024) -> tuple[list[Any], Delivered]:
    """The events that kopf reads of a watch of pods, and the objects that were delivered instead."""
    delivered = Delivered()

    async def work(session: kopf.AiohttpSession, server: BaseTestServer) -> bytes:
        async with session.aiohttp_session.get(server.make_url(f"{PODS}?watch=true")) as response:
            return b"".join([data async for data in response.content.iter_chunked(chunk)])

    text = with_session(work, delivered=delivered, stream=stream)
    return [json.loads(line) for line in text.splitlines()], delivered


def test_list_delivers_its_objects_and_is_empty_for_kopf() -> None:
    delivered = Delivered()

    async def work(session: kopf.AiohttpSession, server: BaseTestServer) -> Any:
        async with session.aiohttp_session.get(server.make_url(PODS)) as response:
            return await response.json()

    answer = with_session(work, delivered=delivered, items=[pod("a", 3), pod("b", 4)])
    assert answer["items"] == []
    assert answer["metadata"] == {"resourceVersion": "9"}, "by it kopf watches on"
    assert delivered == [("Pod", "a", False), ("Pod", "b", False)]


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_watch_delivers_changes_in_their_order_and_leaves_bookmarks(chunk: int) -> None:
    """Whatever the chunks are that the network brings."""
    stream = lines(("ADDED", pod("a", 3)), ("MODIFIED", pod("a", 5)), ("DELETED", pod("b", 6)))
    read_by_kopf, delivered = read(stream, chunk=chunk)
    assert delivered == [("Pod", "a", False), ("Pod", "a", False), ("Pod", "b", True)]
    assert {event["type"] for event in read_by_kopf} == {"BOOKMARK"}
    assert read_by_kopf[-1]["object"]["metadata"]["resourceVersion"] == "6", "a reconnect goes on behind the last one"


def test_bookmarks_and_errors_of_the_server_reach_kopf() -> None:
    """A version that is too old ends the stream, and kopf lists again."""
    gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
    bookmark: JsonObject = {"metadata": {"resourceVersion": "8"}}
    read_by_kopf, delivered = read(lines(("ADDED", pod("a", 3)), ("BOOKMARK", bookmark), ("ERROR", gone)))
    assert [event["type"] for event in read_by_kopf] == ["BOOKMARK", "BOOKMARK", "ERROR"]
    assert read_by_kopf[-1]["object"] == gone
    assert delivered == [("Pod", "a", False)]


def test_answers_of_other_paths_are_left_as_they_are() -> None:
    async def work(session: kopf.AiohttpSession, server: BaseTestServer) -> Any:
        async with session.aiohttp_session.get(server.make_url("/healthz?watch=true")) as response:
            return await response.json()

    assert with_session(work)["items"] is None, "no kind of ours: nothing is taken out"


def test_error_page_of_a_proxy_in_any_encoding_is_an_error_that_kopf_repeats() -> None:
    """An answer that cannot be read would end all watches."""
    page = "<html>Service indisponible: délai dépassé</html>".encode("latin-1")

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=503, body=page, headers={"Content-Type": "text/html; charset=iso-8859-1"})

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with TestServer(app) as server:
            session = await delivering(lambda **_: SERVER, WATCHED, Delivered())()
            async with session.aiohttp_session.get(server.make_url(PODS)) as response:
                with pytest.raises(APIServerError, match="indisponible"):
                    await check_response(response)
            await session.aiohttp_session.close()

    asyncio.run(run())


def test_objects_that_the_quick_library_refuses_are_delivered_with_the_others() -> None:
    """Anybody may store half a surrogate pair."""
    odd = b'{"type":"ADDED","object":{"metadata":{"name":"odd","namespace":"shop","uid":"u","resourceVersion":"5",'
    odd += b'"annotations":{"a":"\\ud800"}}}}\n'
    _, delivered = read(odd + lines(("ADDED", pod("even", 6))))
    assert [name for _, name, _ in delivered] == ["odd", "even"]
