"""kopf as the operator uses it: on a thread of its own, with an API server that the tests play."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._core.intents.causes import Activity

from fleet_operator import watch
from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.reconcilers.registry import CONTROLLERS
from fleet_operator.runtime.loop_thread import LoopThread
from fleet_operator.watch import EndlessBackoffs, Watcher, make_registry
from tests.support.waiting import eventually_async

OWN = [each.watched for each in CONTROLLERS]
GROUP = "/apis/consumerfleet.io/v1alpha1"
PATIENCE_S = 30.0


def resource(kind: str, plural: str, *, namespaced: bool = True) -> JsonObject:
    verbs = ["list", "watch", "patch"]
    return {"name": plural, "kind": kind, "singularName": "", "namespaced": namespaced, "verbs": verbs}


def group(name: str, version: int, *, finalizer: str = "") -> JsonObject:
    metadata = {"name": name, "namespace": "shop", "uid": name, "resourceVersion": str(version)}
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": metadata | ({"finalizers": [finalizer]} if finalizer else {}),
    }


class Server:
    """The parts of an API server that kopf asks for. `refusals` has the status of each path that is refused."""

    def __init__(self) -> None:
        self.refusals: dict[str, int] = {}
        self.listed: list[JsonObject] = []
        self.events: list[tuple[str, JsonObject]] = []
        self.changed = asyncio.Event()
        self.asked: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append((request.method, path))
        if path in self.refusals or "" in self.refusals:
            status = self.refusals.get(path) or self.refusals[""]
            return web.json_response({"kind": "Status", "code": status}, status=status)
        if path in DISCOVERY:
            return web.json_response(DISCOVERY[path])
        if path == GROUP:
            kinds = (each.kind for each in OWN if f"{GROUP}/{each.kind.plural}" not in self.refusals)
            return web.json_response({"resources": [resource(kind.kind, kind.plural) for kind in kinds]})
        mine = path.endswith("/consumergroups")
        if request.query.get("watch") != "true":
            return web.json_response({"items": self.listed if mine else [], "metadata": {"resourceVersion": "5"}})
        stream = web.StreamResponse()
        await stream.prepare(request)
        sent = 0
        while path not in self.refusals and "" not in self.refusals:
            for change, body in self.events[sent:] if mine else ():
                await stream.write(json.dumps({"type": change, "object": body}).encode() + b"\n")
            sent = len(self.events)
            await asyncio.sleep(0.02)
        return stream


DISCOVERY = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [resource("Namespace", "namespaces", namespaced=False)]},
    "/apis": {
        "groups": [
            {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}
            for name, version in (("consumerfleet.io", "v1alpha1"), ("apiextensions.k8s.io", "v1"))
        ]
    },
    "/apis/apiextensions.k8s.io/v1": {
        "resources": [resource("CustomResourceDefinition", "customresourcedefinitions", namespaced=False)]
    },
}


class Lists:
    """Stands in for the sweeper."""

    def __init__(self) -> None:
        self.returned = asyncio.Event()
        self.asked: list[tuple[str, str | None]] = []

    def again(self, kind: Kind, namespace: str | None) -> None:
        self.asked.append((kind.kind, namespace))


class Scene:
    """A server, a watcher of it, and the objects that it has shown: kind, name, and whether they are gone."""

    def __init__(self, *namespaces: str) -> None:
        self.server, self.lists = Server(), Lists()
        self.seen: list[tuple[str, str, bool]] = []
        self.sinks: set[str] = set()
        self.thread = LoopThread("kopf")
        self._namespaces = namespaces
        self.running: asyncio.Task[None]

    def _sink(self, kind: Kind, body: JsonObject, gone: bool) -> None:
        self.seen.append((kind.kind, body["metadata"]["name"], gone))
        self.sinks.add(threading.current_thread().name)

    @property
    def starts(self) -> int:
        """Number of starts of kopf, which asks for the kinds at each."""
        return self.server.asked.count(("GET", "/apis"))

    async def _tasks(self) -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    async def sees(self, name: str) -> None:
        await until(lambda: any(name == seen for _, seen, _ in self.seen), what=f"{name} to be seen")

    @asynccontextmanager
    async def watching(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.server.answer)
        async with TestServer(app) as server:
            info = kopf.ConnectionInfo(server=str(server.make_url("")), token="t")
            logs_in(monkeypatch, lambda: info)
            watcher = Watcher(OWN, self._sink, self._namespaces, self.lists, self.thread)
            self.running = asyncio.create_task(watcher.run(), name="run")
            yield
            self.running.cancel()
            await asyncio.wait([self.running])
            left = await self.thread.run(self._tasks())
            assert not [name for name in left if "watcher" in name or "operator" in name], left
            assert self.sinks <= {threading.current_thread().name}


def logs_in(monkeypatch: pytest.MonkeyPatch, login: Callable[[], kopf.ConnectionInfo | None]) -> None:
    """kopf's login by a service account finds what `login` returns, the other one nothing."""
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: login())
    monkeypatch.setattr(kopf, "login_with_kubeconfig", lambda **_: None)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "RESTART_SECONDS", 0.05)
    monkeypatch.setattr(watch, "RETRY_SECONDS_MAX", 0.05)


async def until(probe: Callable[[], bool], *, what: str) -> None:
    async def probed() -> bool:
        return probe()

    await eventually_async(probed, timeout_s=PATIENCE_S, what=what)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 2 * PATIENCE_S))


def test_listed_and_changed_objects_reach_the_sink_by_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        scene = Scene()
        scene.server.listed = [group("listed", 4)]
        async with scene.watching(monkeypatch):
            await scene.sees("listed")
            scene.server.events += [("ADDED", group("new", 6)), ("DELETED", group("listed", 7))]
            await scene.sees("new")
            await until(lambda: ("ConsumerGroup", "listed", True) in scene.seen, what="the deletion")

    run(main())


def test_new_objects_are_seen_while_the_turns_of_the_operators_loop_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf takes several turns of its loop for each new object, so on the operator's own it would take hundreds."""
    objects, turns = 300, 0

    async def busy() -> None:
        nonlocal turns
        while True:
            time.sleep(0.02)  # noqa: ASYNC251 - the loop is to be held
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        scene = Scene()
        scene.server.listed = [group("listed", 4)]
        async with scene.watching(monkeypatch):
            await scene.sees("listed")
            holding = asyncio.create_task(busy(), name="busy")
            scene.server.events += [("ADDED", group(f"g{number}", 10 + number)) for number in range(objects)]
            await until(lambda: len(scene.seen) == 1 + objects, what="all new objects")
            holding.cancel()
        assert [name for _, name, _ in scene.seen] == ["listed", *(f"g{number}" for number in range(objects))]
        assert turns < objects / 2, turns

    run(main())


def test_kopf_writes_nothing_not_even_for_finalizers_of_other_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        scene = Scene()
        foreign = kopf.OperatorSettings().persistence.finalizer
        scene.server.listed = [group("listed", 4, finalizer=foreign)]
        async with scene.watching(monkeypatch):
            await scene.sees("listed")
            scene.server.events += [("MODIFIED", group("listed", 6, finalizer=foreign)), ("ADDED", group("last", 7))]
            await scene.sees("last")
        assert {method for method, _ in scene.server.asked} == {"GET"}

    run(main())


def test_namespace_that_forbids_is_asked_again_and_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        scene = Scene("bank", "shop")
        forbidden = f"{GROUP}/namespaces/bank/consumergroups"
        scene.server.refusals[forbidden] = 403
        async with scene.watching(monkeypatch):
            asked = scene.server.asked
            await until(lambda: asked.count(("GET", forbidden)) > 12, what="more attempts than by default")
            assert scene.starts == 1
            scene.server.events.append(("ADDED", group("shop", 6)))
            await scene.sees("shop")
            before = len(scene.seen)
            del scene.server.refusals[forbidden]
            await until(lambda: len(scene.seen) > before, what="the other namespace to be watched")
            assert scene.starts == 1

    run(main())


def test_kind_whose_crd_is_gone_harms_no_other_and_is_watched_once_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of one stream ends kopf; nothing of it is left when it starts again, without the kind."""

    async def main() -> None:
        scene = Scene()
        gone = f"{GROUP}/redrives"
        async with scene.watching(monkeypatch):
            mine = asyncio.create_task(asyncio.sleep(3600.0), name="a task of the operator")
            await until(lambda: scene.server.asked.count(("GET", gone)) >= 2, what="a watch")
            scene.server.refusals[gone] = 404
            await until(lambda: scene.starts == 2, what="a new start")
            assert scene.lists.asked == [(each.kind.kind, None) for each in OWN]
            scene.server.events.append(("ADDED", group("later", 6)))
            await scene.sees("later")
            assert [name for _, name, _ in scene.seen] == ["later"], "one stream shows it"
            asked = scene.server.asked.count(("GET", gone))
            del scene.server.refusals[gone]
            scene.lists.returned.set()
            await until(lambda: scene.server.asked.count(("GET", gone)) > asked, what="the kind's watch")
            assert not mine.done()
            mine.cancel()

    run(main())


def test_operator_without_credentials_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends with it, and a new one begins; alive, it would watch nothing."""

    async def main() -> None:
        await Watcher(OWN, lambda *_: None, (), Lists(), LoopThread("kopf")).run()

    logs_in(monkeypatch, lambda: None)
    with pytest.raises(kopf.LoginError):
        run(main())


@pytest.mark.parametrize("later", [False, True])
def test_operator_with_refused_credentials_ends(later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        scene = Scene()
        if not later:
            scene.server.refusals[""] = 401
        async with scene.watching(monkeypatch):
            if later:
                await until(lambda: len(scene.server.asked) > 2 * len(OWN), what="watches")
                scene.server.refusals[""] = 401
            await asyncio.wait([scene.running], timeout=PATIENCE_S)
            with pytest.raises(kopf.LoginError):
                scene.running.result()

    run(main())


def test_each_way_to_log_in_has_an_id_of_its_own() -> None:
    """kopf keeps one result for each id; of two handlers of one id the last result counts, also None."""
    handlers = make_registry(OWN, lambda *_: None)._activities.get_handlers(activity=Activity.AUTHENTICATION)
    ids = [str(handler.id) for handler in handlers]
    assert len(ids) == len(set(ids)) == 2


def test_pauses_between_attempts_grow_up_to_a_bound_and_never_end() -> None:
    pauses = [pause for pause, _ in zip(EndlessBackoffs(), range(10_000), strict=False)]
    assert len(pauses) == 10_000
    assert max(pauses) <= watch.RETRY_SECONDS_MAX
