"""The contents that are kept next to the caches, and the store that reads what is not kept."""

from __future__ import annotations

import asyncio
import os

from fleet_operator.clients.kinds import CONFIG_MAP, JsonObject
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.store import OBJECT_BYTES_MAX, Contents, Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual


def config_map(name: str = "a", text: str = "text", version: int = 1, uid: str = "u") -> JsonObject:
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": text}}


def test_content_holds_for_its_version_and_older_ones() -> None:
    contents = Contents()
    contents.put(config_map(version=5))
    assert contents.get(config_map(version=5)) == config_map(version=5)
    assert contents.get(config_map(version=4)) == config_map(version=5)
    assert contents.get(config_map(version=6)) is None
    assert contents.get(config_map(version=5, uid="namesake")) is None


def test_contents_stay_within_their_bytes_and_evict_the_least_recently_used() -> None:
    contents = Contents(bytes_max=100_000)
    contents.put(config_map("used"))
    for number in range(50):
        contents.put(config_map(f"other-{number}", os.urandom(5_000).hex()))
        assert contents.get(config_map("used")) is not None
        assert contents.size <= 100_000
    assert contents.get(config_map("other-0")) is None
    assert contents.get(config_map("other-49")) is not None


def test_large_content_is_not_kept() -> None:
    contents = Contents()
    contents.put(config_map(text="small"))
    contents.put(config_map(text="x" * OBJECT_BYTES_MAX, version=2))
    assert contents.get(config_map()) is None
    assert contents.size == 0


def test_store_reads_a_content_once_for_each_version() -> None:
    async def main() -> None:
        kube = MemoryKube()
        store = Store(kube, VirtualClock(asyncio.get_running_loop()), WATCHED)
        reads: list[str] = []
        kube.before = lambda verb, kind, name: reads.append(verb)

        async def text() -> str:
            found = await store.content(CONFIG_MAP, ("ns", "a"))
            assert found is not None
            return str(found["data"]["key"])

        stored = await kube.create(config_map(text="first"))
        store.learn(CONFIG_MAP, stored)
        cached = store.get(CONFIG_MAP, ("ns", "a"))
        assert cached is not None
        assert "data" not in cached
        assert [await text(), await text()] == ["first", "first"]
        assert reads.count("get") == 1
        stored["data"]["key"] = "second"
        store.learn(CONFIG_MAP, await kube.replace(stored))
        assert [await text(), await text()] == ["second", "second"]
        assert reads.count("get") == 2

    run_virtual(main())


def test_store_reads_unwatched_objects_live() -> None:
    async def main() -> None:
        kube = MemoryKube()
        store = Store(kube, VirtualClock(asyncio.get_running_loop()), WATCHED)
        stored = await kube.create(config_map(text="first"))
        for text in ("first", "second"):
            stored["data"]["key"] = text
            stored = await kube.replace(stored)
            found = await store.content(CONFIG_MAP, ("ns", "a"))
            assert found is not None
            assert found["data"]["key"] == text
        assert store.get(CONFIG_MAP, ("ns", "a")) is None

    run_virtual(main())


def test_objects_written_by_the_store_are_not_read_again() -> None:
    async def main() -> None:
        kube = MemoryKube()
        store = Store(kube, VirtualClock(asyncio.get_running_loop()), WATCHED)
        reads: list[str] = []
        kube.before = lambda verb, kind, name: reads.append(verb)
        body = config_map()
        del body["metadata"]["uid"], body["metadata"]["resourceVersion"]
        await store.apply(body)
        assert await store.content(CONFIG_MAP, ("ns", "a")) is not None
        assert "get" not in reads

    run_virtual(main())
