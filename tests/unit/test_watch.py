"""kopf as the operator uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._core.intents.causes import Activity

from fleet_operator.clients.kinds import Kind
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.watch import Watcher

PATIENCE_S = 60.0


class NoLists:
    """Nothing has been listed, and no refusal is expected."""

    def refused(self, kind: Kind, namespace: str | None) -> None:
        raise AssertionError(f"{kind} in {namespace}")

    def listed(self, kind: Kind, namespace: str | None) -> str | None:
        return None


def logs_in(monkeypatch: pytest.MonkeyPatch, login: Callable[[], kopf.ConnectionInfo | None]) -> None:
    """kopf's login by a service account finds what `login` returns, the other one nothing."""
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: login())
    monkeypatch.setattr(kopf, "login_with_kubeconfig", lambda **_: None)


async def end_of_watches() -> None:
    """Wait until the watches end; raises what they end with."""
    watcher = Watcher(lambda *_: None, (), NoLists())
    watcher.start(WATCHED)
    await asyncio.wait_for(watcher.ended, PATIENCE_S)


def test_each_way_to_log_in_has_an_id_of_its_own() -> None:
    """kopf keeps one result for each id; of two handlers of one id the last result counts, also None."""

    async def ids() -> list[str]:
        handlers = Watcher(lambda *_: None, (), NoLists())._registry(WATCHED)._activities._handlers
        return [str(handler.id) for handler in handlers if handler.activity is Activity.AUTHENTICATION]

    found = asyncio.run(ids())
    assert len(found) == len(set(found)) == 2


def test_operator_without_credentials_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends with it, and a new one begins; alive, it would watch nothing."""
    logs_in(monkeypatch, lambda: None)
    with pytest.raises(kopf.LoginError):
        asyncio.run(end_of_watches())


def test_operator_with_refused_credentials_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "code": 401}, status=401)

    async def refused() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", refuse)
        async with TestServer(app) as server:
            logs_in(monkeypatch, lambda: kopf.ConnectionInfo(server=str(server.make_url("")), token="out of date"))
            await end_of_watches()

    with pytest.raises(kopf.LoginError):
        asyncio.run(refused())


def test_watches_that_are_stopped_end_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": "APIGroupList", "groups": []})

    async def stopped() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as server:
            logs_in(monkeypatch, lambda: kopf.ConnectionInfo(server=str(server.make_url(""))))
            watcher = Watcher(lambda *_: None, (), NoLists())
            watcher.start(WATCHED)
            await watcher.stop()
            await asyncio.wait_for(watcher.ended, PATIENCE_S)

    asyncio.run(stopped())
