"""Watches with a server: what is asked for, and what comes of the lines that arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from fleet_operator.clients import kube as kube_module
from fleet_operator.clients.kinds import CONFIG_MAP, POD, WHOLE, JsonObject, Kind, View
from fleet_operator.clients.kube import (
    KubeClient,
    KubeError,
    KubeExpiredError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
    WatchEvent,
)

ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Site:
    """A server whose watches show `pieces`, or are refused with `status`; and what it was asked for."""

    def __init__(self, *pieces: bytes, status: int = 200, hangs: bool = False) -> None:
        self.pieces, self.status, self.ended = pieces, status, asyncio.Event()
        if not hangs:
            self.ended.set()
        self.asked: list[tuple[str, dict[str, str], str | None]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.query), request.headers.get("Accept")))
        if self.status != 200:
            return web.Response(status=self.status, body=b"".join(self.pieces), content_type="text/html")
        stream = web.StreamResponse()
        await stream.prepare(request)
        for piece in self.pieces:
            await stream.write(piece)
            await asyncio.sleep(0.0)
        await self.ended.wait()
        return stream


@asynccontextmanager
async def client_of(site: Site) -> AsyncIterator[KubeClient]:
    app = web.Application()
    app.router.add_get("/{path:.*}", site.answer)
    async with TestServer(app) as server:
        configuration = Configuration()
        configuration.host = str(server.make_url("")).rstrip("/")
        client = KubeClient(ApiClient(configuration))
        try:
            yield client
        finally:
            site.ended.set()
            await client.close()


async def watched(
    site: Site, kind: Kind = POD, namespace: str | None = None, *, view: View = WHOLE, selector: str = ""
) -> list[WatchEvent]:
    async with client_of(site) as client:
        events = client.watch(kind, namespace, "7", label_selector=selector, view=view)
        return [event async for event in events]


def pod(name: str, version: int, **annotations: str) -> JsonObject:
    metadata: JsonObject = {"name": name, "namespace": "shop", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata | ({"annotations": annotations} if annotations else {})}


def line(change: str, body: JsonObject) -> bytes:
    return json.dumps({"type": change, "object": body}).encode() + b"\n"


def shown(events: list[WatchEvent]) -> list[tuple[str | None, str, bool]]:
    names = (event.body["metadata"]["name"] if event.body is not None else None for event in events)
    return [(name, event.resource_version, event.gone) for name, event in zip(names, events, strict=True)]


async def test_watch_goes_on_from_a_version_by_selector_and_with_bookmarks() -> None:
    site = Site()
    await watched(site, namespace="shop", selector="a in (b,c)")
    ((path, query, accept),) = site.asked
    assert path == "/api/v1/namespaces/shop/pods"
    assert query.pop("timeoutSeconds")
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "labelSelector": "a in (b,c)",
    }
    assert accept == "application/json"


async def test_kind_of_which_the_metadata_is_read_is_watched_by_it() -> None:
    body = pod("a", 8) | {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
    site = Site(line("ADDED", body))
    (event,) = await watched(site, CONFIG_MAP, view=View(metadata_only=True))
    assert site.asked[0][2] == ONE
    assert event.body is not None
    assert (event.body["apiVersion"], event.body["kind"]) == ("v1", "ConfigMap")


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_changes_and_bookmarks_come_in_their_order_whatever_the_network_cuts(size: int) -> None:
    text = line("ADDED", pod("a", 8)) + line("MODIFIED", pod("a", 9)) + line("DELETED", pod("b", 10))
    text += line("BOOKMARK", {"metadata": {"resourceVersion": "12"}})
    site = Site(*(text[at : at + size] for at in range(0, len(text), size)))
    assert shown(await watched(site)) == [
        ("a", "8", False),
        ("a", "9", False),
        ("b", "10", True),
        (None, "12", False),
    ]


async def test_line_of_a_mebibyte_is_read() -> None:
    (event,) = await watched(Site(line("ADDED", pod("a", 8, large="x" * 1024 * 1024))))
    assert event.resource_version == "8"


async def test_objects_are_cut_to_their_view() -> None:
    def cut(body: JsonObject) -> JsonObject:
        return {key: body[key] for key in ("apiVersion", "kind", "metadata")}

    (event,) = await watched(Site(line("ADDED", pod("a", 8) | {"spec": {}})), view=View(cut))
    assert event.body == pod("a", 8) | {"apiVersion": "v1", "kind": "Pod"}


async def test_object_that_the_quick_library_refuses_is_read_with_the_others() -> None:
    """Anybody may store half a surrogate pair."""
    odd = line("ADDED", pod("odd", 8, a="HALF")).replace(b"HALF", b"\\ud800")
    assert [name for name, _, _ in shown(await watched(Site(odd, line("ADDED", pod("even", 9)))))] == ["odd", "even"]


@pytest.mark.parametrize(
    ("code", "error"), [(410, KubeExpiredError), (500, KubeUnavailableError), (403, KubeForbiddenError)]
)
async def test_error_in_a_stream_is_raised_behind_what_came_before(code: int, error: type[KubeError]) -> None:
    site = Site(line("ADDED", pod("a", 8)), line("ERROR", {"code": code, "message": "too old"}))
    async with client_of(site) as client:
        events = client.watch(POD, None, "7")
        assert (await anext(events)).resource_version == "8"
        with pytest.raises(error, match="too old"):
            await anext(events)


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, KubeForbiddenError), (404, KubeNotFoundError), (410, KubeExpiredError), (503, KubeUnavailableError)],
)
async def test_refused_watch_is_raised_with_what_the_server_says_in_any_encoding(
    status: int, error: type[KubeError]
) -> None:
    page = "<html>délai dépassé</html>".encode("latin-1")
    with pytest.raises(error, match="WATCH /api/v1/pods: ") as raised:
        await watched(Site(page, status=status))
    assert raised.value.status == status


async def test_event_that_is_no_json_is_an_error_with_its_path() -> None:
    with pytest.raises(KubeInvalidError, match="WATCH /api/v1/pods: an event cannot be read"):
        await watched(Site(b"<html>\n"))


async def test_silent_watch_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "SILENCE_SECONDS", 0.1)
    with pytest.raises(KubeUnavailableError):
        await watched(Site(hangs=True))


async def test_watches_take_no_call_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """More watches are open than calls may be made at once."""
    monkeypatch.setattr(kube_module, "CALLS_AT_ONCE_MAX", 1)
    site = Site(line("ADDED", pod("a", 8)), hangs=True)
    async with client_of(site) as client:
        open_watches = [client.watch(POD, None, "7") for _ in range(3)]
        for each in open_watches:
            assert (await anext(each)).resource_version == "8"
        site.ended.set()
        for each in open_watches:
            assert [event async for event in each] == []
