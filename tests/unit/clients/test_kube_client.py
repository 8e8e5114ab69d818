"""The client with a server: what it sends, with which credentials and by which way, and what it counts."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException

from fleet_operator.clients import kube as kube_module
from fleet_operator.clients.kinds import CONFIG_MAP, POD
from fleet_operator.clients.kube import (
    FIELD_MANAGER,
    KubeClient,
    KubeConflictError,
    KubeInvalidError,
    KubeUnavailableError,
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "orders"}}


class Site:
    """A server that notes requests, and a client of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], dict[str, str], bytes]] = []
        self.counted: list[tuple[str, str, int]] = []
        self.configuration = Configuration()
        self.configuration.api_key = {"BearerToken": "bearer first"}
        self.answer: Answer | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(
            (request.method, request.path, dict(request.query), dict(request.headers), await request.read())
        )
        if self.answer is not None:
            return await self.answer(request)
        return web.json_response({**BODY, "metadata": {**BODY["metadata"], "uid": "u", "resourceVersion": "7"}})  # type: ignore[dict-item]

    @property
    def authorizations(self) -> list[str | None]:
        return [headers.get("Authorization") for _, _, _, headers, _ in self.asked]


@asynccontextmanager
async def running(site: Site) -> AsyncIterator[KubeClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.serve)
    async with TestServer(app) as server:
        if site.configuration.host == Configuration().host:
            site.configuration.host = str(server.make_url("")).rstrip("/")
        client = KubeClient(ApiClient(site.configuration))
        client.answered = lambda *counted: site.counted.append(counted)
        try:
            yield client
        finally:
            await client.close()


@pytest.fixture
def site() -> Site:
    return Site()


async def test_each_verb_has_its_method_type_and_query(site: Site) -> None:
    over = {**BODY, "metadata": {**BODY["metadata"], "resourceVersion": "7"}}  # type: ignore[dict-item]
    async with running(site) as client:
        await client.get(CONFIG_MAP, "shop", "orders")
        await client.create(BODY)
        await client.create(BODY, strict=True)
        await client.apply(BODY)
        await client.apply_status(BODY)
        await client.replace(over)
        await client.merge(over)
        await client.delete(CONFIG_MAP, "shop", "orders", uid="u", version="7")
    one = "/api/v1/namespaces/shop/configmaps/orders"
    ours = {"fieldManager": FIELD_MANAGER}
    sent = [(verb, path, query, headers["Content-Type"]) for verb, path, query, headers, _ in site.asked]
    assert sent == [
        ("GET", one, {}, "application/json"),
        ("POST", one.rpartition("/")[0], ours, "application/json"),
        ("POST", one.rpartition("/")[0], {**ours, "fieldValidation": "Strict"}, "application/json"),
        ("PATCH", one, {**ours, "force": "true"}, "application/apply-patch+yaml"),
        ("PATCH", f"{one}/status", {**ours, "force": "true"}, "application/apply-patch+yaml"),
        ("PUT", one, ours, "application/json"),
        ("PATCH", one, ours, "application/merge-patch+json"),
        ("DELETE", one, {}, "application/json"),
    ]
    bodies: list[Any] = [json.loads(data) if data else None for *_, data in site.asked]
    assert bodies[:7] == [None, BODY, BODY, BODY, BODY, over, over]
    assert bodies[7]["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert {headers["User-Agent"] for *_, headers, _ in site.asked} == {FIELD_MANAGER}


async def test_selectors_of_lists_arrive_as_they_are(site: Site) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": [], "metadata": {"resourceVersion": "7"}})

    site.answer = page
    selector = "consumerfleet.io/handler in (true,revision),a!=b"
    async with running(site) as client:
        await client.list(CONFIG_MAP, None, label_selector=selector)
    assert site.asked[0][2]["labelSelector"] == selector


@pytest.mark.parametrize(("object_bytes", "limits"), [(200, [5, 10, 20, 40, 80, 160]), (1 << 20, [5, 1, 1])])
async def test_pages_of_a_list_grow_up_to_a_size(site: Site, object_bytes: int, limits: list[int]) -> None:
    left = sum(limits)

    async def page(request: web.Request) -> web.StreamResponse:
        nonlocal left
        size = int(request.query["limit"])
        left -= size
        items = [{"metadata": {"name": "x" * object_bytes}}] * size
        assert request.query.get("continue", "") == ("" if left + size == sum(limits) else "more")
        return web.json_response({"items": items, "metadata": {"resourceVersion": "7", "continue": left and "more"}})

    site.answer = page
    async with running(site) as client:
        sizes = [len(page.items) async for page in client.pages(CONFIG_MAP, None)]
    assert sizes == limits


async def test_page_of_large_objects_after_many_small_ones_is_asked_for_again_with_fewer(site: Site) -> None:
    """Otherwise whoever makes hundreds of large objects fills the operator's memory at its next start."""
    objects = [200] * 315 + [1 << 20] * 12
    answered: list[int] = []

    async def page(request: web.Request) -> web.StreamResponse:
        begin, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        end = min(len(objects), begin + limit)
        items = [{"metadata": {"name": "x" * size}} for size in objects[begin:end]]
        answered.append(end - begin)
        token = str(end) if end < len(objects) else ""
        return web.json_response({"items": items, "metadata": {"resourceVersion": "7", "continue": token}})

    site.answer = page
    async with running(site) as client:
        pages = [
            [len(item["metadata"]["name"]) for item in listed.items] async for listed in client.pages(CONFIG_MAP, None)
        ]
    assert [size for page in pages for size in page] == objects
    assert max(map(sum, pages)) <= 8 << 20
    assert answered == [5, 10, 20, 40, 80, 160, 12, 12, *(len(page) for page in pages[6:])]
    assert site.counted == [("GET", "configmaps", 200)] * len(answered)


async def test_renewed_token_is_used_for_the_next_request(site: Site) -> None:
    """A service account's token ends after an hour; the library reads it again from its file."""
    tokens = iter(("second", "third"))

    def renew(configuration: Configuration) -> None:
        configuration.api_key["BearerToken"] = f"bearer {next(tokens)}"

    async with running(site) as client:
        await client.get(CONFIG_MAP, "shop", "orders")
        site.configuration.refresh_api_key_hook = renew  # type: ignore[assignment]
        await client.get(CONFIG_MAP, "shop", "orders")
        await client.get(CONFIG_MAP, "shop", "orders")
    assert site.authorizations == ["bearer first", "bearer second", "bearer third"]


async def test_token_that_cannot_be_read_is_an_api_server_out_of_reach(site: Site) -> None:
    def fail(configuration: Configuration) -> None:
        raise ConfigException("Token file exists but empty.")

    async with running(site) as client:
        site.configuration.refresh_api_key_hook = fail  # type: ignore[assignment]
        with pytest.raises(KubeUnavailableError, match="Token file exists but empty"):
            await client.get(CONFIG_MAP, "shop", "orders")
    assert site.asked == []
    assert site.counted == [("GET", "configmaps", 0)]


async def test_requests_go_through_the_configured_proxy_with_its_headers(site: Site) -> None:
    """A tunnel is asked for, with what the proxy wants to see of us."""
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        site.configuration.host = "https://api.example:6443"
        site.configuration.proxy = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        site.configuration.proxy_headers = {"Proxy-Authorization": "Basic cHJveHk6c2VjcmV0"}
        async with running(site) as client:
            with pytest.raises(KubeUnavailableError, match="403"):
                await client.get(CONFIG_MAP, "shop", "orders")
    (head,) = heads
    assert head.startswith(b"CONNECT api.example:6443 ")
    assert b"Proxy-Authorization: Basic cHJveHk6c2VjcmV0" in head


@pytest.mark.parametrize("name", ["kubernetes.default", None])
async def test_server_name_of_the_configuration_reaches_the_session(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """For an API server that is reached by another name than its certificate has."""
    passed: dict[str, Any] = {}

    def request(self: aiohttp.ClientSession, *_: Any, **options: Any) -> Any:
        passed.update(options)
        raise aiohttp.ClientConnectionError("not sent")

    site.configuration.tls_server_name = name
    monkeypatch.setattr(aiohttp.ClientSession, "request", request)
    async with running(site) as client:
        with pytest.raises(KubeUnavailableError):
            await client.get(CONFIG_MAP, "shop", "orders")
    assert passed.get("server_hostname") == name
    assert passed["timeout"].total == kube_module.REQUEST_TIMEOUT_SECONDS


async def test_answers_are_counted_by_verb_kind_and_code(site: Site) -> None:
    codes = iter((200, 404, 409, 503))

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "so it is"}, status=next(codes))

    site.answer = answer
    async with running(site) as client:
        await client.get(CONFIG_MAP, "shop", "orders")
        assert await client.get(POD, "shop", "orders") is None
        with pytest.raises(KubeConflictError):
            await client.apply(BODY)
        with pytest.raises(KubeUnavailableError):
            await client.apply_status(BODY)
    assert site.counted == [
        ("GET", "configmaps", 200),
        ("GET", "pods", 404),
        ("PATCH", "configmaps", 409),
        ("PATCH", "configmaps", 503),
    ]


async def test_server_that_does_not_answer_is_left_after_a_while(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "REQUEST_TIMEOUT_SECONDS", 0.2)
    held = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        await held.wait()
        return web.json_response({})

    site.answer = never
    async with running(site) as client:
        with pytest.raises(KubeUnavailableError, match="TimeoutError"):
            await client.get(CONFIG_MAP, "shop", "orders")
        held.set()
    assert site.counted == [("GET", "configmaps", 0)]


async def test_server_that_is_away_is_unavailable_and_counted(site: Site) -> None:
    site.configuration.host = "http://127.0.0.1:1"
    async with running(site) as client:
        with pytest.raises(KubeUnavailableError, match=r"127\.0\.0\.1"):
            await client.get(CONFIG_MAP, "shop", "orders")
    assert site.counted == [("GET", "configmaps", 0)]


async def test_answer_that_is_no_json_is_an_error_with_its_request(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\xff<html>")

    site.answer = answer
    async with running(site) as client:
        with pytest.raises(KubeInvalidError, match="GET /api/v1/namespaces/shop/configmaps/orders: the answer cannot"):
            await client.get(CONFIG_MAP, "shop", "orders")


async def test_error_page_in_another_encoding_has_its_status(site: Site) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, body="délai".encode("latin-1"))

    site.answer = answer
    async with running(site) as client:
        with pytest.raises(KubeUnavailableError, match="502"):
            await client.get(CONFIG_MAP, "shop", "orders")


async def test_closed_client_leaves_no_session_open(site: Site) -> None:
    loop, reported = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with running(site) as client:
            await client.get(CONFIG_MAP, "shop", "orders")
        session = client._session
        del client
        gc.collect()
        await asyncio.sleep(0)
    assert session.closed
    assert [str(each.message) for each in warned if issubclass(each.category, ResourceWarning)] == []
    assert reported == []
