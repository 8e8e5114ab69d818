"""The lists that fill the caches, and find what the watches missed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from fleet_operator.clients.kinds import POD, JsonObject, Kind
from fleet_operator.clients.kube import KubeForbiddenError
from fleet_operator.runtime.cache import Change, WatchedKind
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.sweeper import Sweeper
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

WATCHED = (WatchedKind(kind=POD),)


def pod(name: str, namespace: str = "ns") -> JsonObject:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}}


def make(kube: MemoryKube, *namespaces: str) -> tuple[Store, Sweeper]:
    store = Store(kube, VirtualClock(asyncio.get_running_loop()), WATCHED)
    return store, Sweeper(store, WATCHED, namespaces, Metrics(), interval=300.0)


def test_filling_waits_for_rights_and_names_the_kind(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        kube = MemoryKube()
        await kube.create(pod("a"))
        store, sweeper = make(kube)

        def forbid(verb: str, kind: str, name: str) -> None:
            raise KubeForbiddenError("pods is forbidden", status=403)

        kube.before = forbid
        filling = asyncio.create_task(sweeper.fill())
        await asyncio.sleep(12.0)
        assert not filling.done()
        kube.before = lambda verb, kind, name: None
        await filling
        return len(store.cache(POD))

    with caplog.at_level(logging.WARNING):
        assert run_virtual(main()) == 1
    assert {vars(record)["kind"] for record in caplog.records} == {"Pod"}


def test_only_the_named_namespaces_are_listed() -> None:
    async def main() -> list[str]:
        kube = MemoryKube()
        for namespace in ("one", "two", "three"):
            await kube.create(pod("a", namespace))
        store, sweeper = make(kube, "one", "three")
        await sweeper.fill()
        return [body["metadata"]["namespace"] for body in store.cache(POD)]

    assert run_virtual(main()) == ["one", "three"]


def test_deletion_that_the_watch_missed_is_reported_within_one_sweep() -> None:
    async def main() -> list[tuple[str, Change]]:
        kube = MemoryKube()
        made = await kube.create(pod("a"))
        await kube.create(pod("b"))
        _, sweeper = make(kube)
        await sweeper.fill()
        told: list[tuple[str, Change]] = []

        def changed(kind: Kind, body: JsonObject, change: Change) -> None:
            told.append((body["metadata"]["name"], change))

        sweeping = asyncio.create_task(sweeper.run(changed))
        await kube.delete(POD, "ns", "a", uid=made["metadata"]["uid"])
        await asyncio.sleep(400.0)
        sweeping.cancel()
        return told

    assert run_virtual(main()) == [("a", Change.GONE)]
