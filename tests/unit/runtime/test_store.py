"""Applies that change nothing are not sent; changes by others are put right."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONFIG_MAP, SERVICE
from fleet_operator.clients.kube import KubeConflictError
from fleet_operator.runtime.cache import Change, WatchedKind
from fleet_operator.runtime.store import LIVING_SECONDS, UNWATCHED_SECONDS, Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual


def child(kind: str, *, owner: str = "u1", **data: str) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "child", "ownerReferences": [{"uid": owner}]}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}


def make() -> tuple[MemoryKube, Store]:
    kube = MemoryKube()
    return kube, Store(kube, VirtualClock(asyncio.get_running_loop()), [WatchedKind(kind=CONFIG_MAP)])


def test_same_intent_is_applied_once() -> None:
    async def main() -> int:
        kube, store = make()
        for _ in range(5):
            await store.apply(child("ConfigMap", a="1"))
        return len(kube.writes)

    assert run_virtual(main()) == 1


def test_changed_intent_is_applied() -> None:
    async def main() -> int:
        kube, store = make()
        await store.apply(child("ConfigMap", a="1"))
        await store.apply(child("ConfigMap", a="2"))
        return len(kube.writes)

    assert run_virtual(main()) == 2


def test_object_changed_or_removed_by_others_is_applied_again() -> None:
    async def main() -> int:
        kube, store = make()
        await store.apply(child("ConfigMap", a="1"))
        store.learn(CONFIG_MAP, await kube.apply(child("ConfigMap", a="theirs")))
        await store.apply(child("ConfigMap", a="1"))
        seen = store.get(CONFIG_MAP, ("ns", "child"))
        assert seen
        assert seen["data"] == {"a": "1"}
        store.cache(CONFIG_MAP).remove(("ns", "child"), seen["metadata"]["uid"], kube.version)
        await store.apply(child("ConfigMap", a="1"))
        return sum(1 for verb, _, _ in kube.writes if verb == "apply")

    assert run_virtual(main()) == 4


def test_kind_that_is_not_watched_is_applied_again_now_and_then() -> None:
    async def main() -> list[int]:
        kube, store = make()
        counts = []
        for _ in range(3):
            await store.apply(child(SERVICE.kind))
            counts.append(len(kube.writes))
            await asyncio.sleep(UNWATCHED_SECONDS * 0.6)
        return counts

    assert run_virtual(main()) == [1, 1, 2]


def test_child_of_a_deleted_namesake_is_not_in_place() -> None:
    async def main() -> None:
        _, store = make()
        await store.apply(child("ConfigMap", owner="u1"))
        assert store.in_place(child("ConfigMap", owner="u1"))
        assert not store.in_place(child("ConfigMap", owner="u2"))
        store.forget("u1")
        assert not store.in_place(child("ConfigMap", owner="u1"))

    run_virtual(main())


def test_apply_over_an_object_never_makes_it_anew_and_never_changes_a_namesake() -> None:
    """The cache still has an object whose deletion the watch has missed."""

    async def main() -> None:
        kube, store = make()
        corrected: list[tuple[str, Change]] = []
        store.corrected = lambda kind, body, change: corrected.append((body["metadata"]["name"], change))
        await store.apply(child("ConfigMap", a="1"))
        seen = store.get(CONFIG_MAP, ("ns", "child"))
        del kube.objects["ConfigMap", "ns", "child"]
        with pytest.raises(KubeConflictError):
            await store.apply(child("ConfigMap", a="2"), over=seen)
        assert kube.objects == {}
        assert store.get(CONFIG_MAP, ("ns", "child")) is None
        assert corrected == [("child", Change.GONE)]
        await kube.apply(child("ConfigMap", a="theirs"))
        with pytest.raises(KubeConflictError):
            await store.apply(child("ConfigMap", a="2"), over=seen)
        assert kube.objects["ConfigMap", "ns", "child"]["data"] == {"a": "theirs"}

    run_virtual(main())


def test_owner_is_read_live_once_for_all_children_that_are_made_together() -> None:
    async def main() -> None:
        kube, store = make()
        owner = await kube.create(child("ConfigMap"))
        store.learn(CONFIG_MAP, owner)
        reads: list[str] = []
        kube.before = lambda verb, kind, name: reads.append(verb)
        assert [await store.is_living(owner) for _ in range(5)] == [True] * 5
        assert reads == ["get"]
        kube.objects.clear()
        await asyncio.sleep(LIVING_SECONDS)
        assert not await store.is_living(owner)
        assert store.get(CONFIG_MAP, ("ns", "child")) is None

    run_virtual(main())
