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
        store.drop_owner("u1")
        assert not store.in_place(child("ConfigMap", owner="u1"))

    run_virtual(main())


def test_apply_over_an_object_never_creates_it_again_and_never_changes_a_namesake() -> None:
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


def test_memory_of_children_follows_a_namesake_to_its_new_owner() -> None:
    """The deletion of the first owner is noticed after children of the second were applied."""

    async def main() -> None:
        _, store = make()
        await store.apply(child("ConfigMap", owner="u1"))
        await store.apply(child("ConfigMap", owner="u2"))
        store.drop_owner("u1")
        assert store.in_place(child("ConfigMap", owner="u2"))
        store.drop_owner("u2")
        assert not store.in_place(child("ConfigMap", owner="u2"))
        assert (store._applied, store._children) == ({}, {})

    run_virtual(main())


def test_nothing_is_remembered_of_children_that_were_deleted() -> None:
    async def main() -> None:
        _, store = make()
        await store.apply(child("ConfigMap"))
        seen = store.get(CONFIG_MAP, ("ns", "child"))
        assert seen
        await store.delete(CONFIG_MAP, seen)
        assert (store._applied, store._children) == ({}, {})

    run_virtual(main())


def test_forgetting_an_owner_visits_its_own_children_alone() -> None:
    """Of thousands of owners that are deleted together, each would otherwise read the children of all others."""

    class Counted(dict[Any, Any]):
        looked = 0

        def pop(self, *key: Any) -> Any:
            Counted.looked += 1
            return super().pop(*key)

        def __iter__(self) -> Any:
            raise AssertionError("all children are read")

        items = keys = values = __iter__

    async def main() -> int:
        _, store = make()
        for number in range(200):
            body = child("ConfigMap", owner=f"u{number}")
            await store.apply({**body, "metadata": {**body["metadata"], "name": f"child-{number}"}})
        store._applied = Counted(store._applied)
        store.drop_owner("u7")
        assert len(store._applied) == 199
        return Counted.looked

    assert run_virtual(main()) == 1


def test_owner_that_a_status_write_showed_living_is_not_read() -> None:
    async def main() -> None:
        kube, store = make()
        owner = await kube.create(child("ConfigMap"))
        store.learn(CONFIG_MAP, owner)
        store.saw_living(owner)
        reads: list[str] = []
        kube.before = lambda verb, kind, name: reads.append(verb)
        assert await store.is_living(owner)
        assert reads == []
        store.saw_living({**owner, "metadata": {**owner["metadata"], "deletionTimestamp": "2027-01-01T00:00:00Z"}})
        kube.objects.clear()
        assert not await store.is_living(owner)

    run_virtual(main())


def test_owners_seen_long_ago_are_not_remembered() -> None:
    async def main() -> int:
        _, store = make()
        for number in range(100):
            store.saw_living({"metadata": {"uid": f"u{number}"}})
            await asyncio.sleep(LIVING_SECONDS / 10)
        return len(store._living)

    assert run_virtual(main()) == 10


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
