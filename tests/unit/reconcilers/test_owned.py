"""Children are made and changed for an owner that lives, and only where the name is free or theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, SERVICE, STATEFUL_SET, JsonObject, Kind
from fleet_operator.clients.kube import KubeConflictError
from fleet_operator.reconcilers.context import ForeignObjectError, apply_owned, find_child
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.cache import key_of, version_of
from fleet_operator.runtime.store import LIVING_SECONDS, UNWATCHED_SECONDS, Store
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual


class Place:
    """A ConsumerGroup in an API server in memory, with a store that has seen it."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.store = Store(self.kube, VirtualClock(asyncio.get_running_loop()), WATCHED)
        self.owner: JsonObject = {}

    async def begin(self) -> None:
        metadata = {"namespace": "shop", "name": "orders"}
        spec = {"clusterRef": {"name": "main"}}
        head = {"apiVersion": CONSUMER_GROUP.api_version, "kind": CONSUMER_GROUP.kind}
        self.owner = await self.kube.create({**head, "metadata": metadata, "spec": spec})
        self.store.learn(CONSUMER_GROUP, self.owner)

    def child(self, kind: Kind, *, uid: str | None = None, **content: Any) -> JsonObject:
        references = [{"uid": uid or self.owner["metadata"]["uid"]}]
        labels = {"consumerfleet.io/group": "orders"}
        metadata = {"namespace": "shop", "name": "orders", "ownerReferences": references, "labels": labels}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content}

    async def apply(self, kind: Kind, **content: Any) -> None:
        await apply_owned(self.store, self.owner, self.child(kind, **content))

    def stored(self, kind: Kind) -> JsonObject:
        return self.kube.objects[kind.kind, "shop", "orders"]


def run(life: Callable[[Place], Awaitable[None]]) -> None:
    async def main() -> None:
        place = Place()
        await place.begin()
        await life(place)

    run_virtual(main())


@pytest.mark.parametrize("kind", [SERVICE, CONFIG_MAP])
def test_foreign_object_taking_a_childs_name_after_our_first_apply_is_left_alone(kind: Kind) -> None:
    """Our child was deleted, and somebody else made an object of its name."""

    async def life(place: Place) -> None:
        await place.apply(kind, data={"a": "1"})
        ours = place.stored(kind)
        del place.kube.objects[kind.kind, "shop", "orders"]
        if place.store.watches(kind):
            place.store.cache(kind).remove(key_of(ours), ours["metadata"]["uid"], version_of(ours) + 1)
        await place.kube.create(place.child(kind, uid="of-somebody-else", data={"a": "theirs"}))
        await asyncio.sleep(UNWATCHED_SECONDS)
        for content in ({"a": "1"}, {"a": "2"}):
            with pytest.raises(ForeignObjectError):
                await place.apply(kind, data=content)
        assert place.stored(kind)["data"] == {"a": "theirs"}

    run(life)


def test_foreign_object_is_left_alone_while_the_watch_still_shows_ours() -> None:
    async def life(place: Place) -> None:
        await place.apply(CONFIG_MAP, data={"a": "1"})
        del place.kube.objects[CONFIG_MAP.kind, "shop", "orders"]
        await place.kube.create(place.child(CONFIG_MAP, uid="of-somebody-else", data={"a": "theirs"}))
        with pytest.raises(KubeConflictError):
            await place.apply(CONFIG_MAP, data={"a": "2"})
        with pytest.raises(ForeignObjectError):
            await place.apply(CONFIG_MAP, data={"a": "2"})
        assert place.stored(CONFIG_MAP)["data"] == {"a": "theirs"}

    run(life)


def test_unchanged_unwatched_child_is_read_and_not_written_again() -> None:
    async def life(place: Place) -> None:
        for _ in range(3):
            await place.apply(SERVICE)
            await asyncio.sleep(UNWATCHED_SECONDS)
        assert [verb for verb, kind, _ in place.kube.writes if kind == SERVICE.kind] == ["apply"]
        edited = place.child(SERVICE)
        edited["metadata"]["labels"] = {"consumerfleet.io/group": "theirs"}
        await place.kube.apply(edited)
        await place.apply(SERVICE)
        assert place.stored(SERVICE)["metadata"]["labels"] == {"consumerfleet.io/group": "orders"}

    run(life)


def test_nothing_is_created_for_an_owner_deleted_unseen() -> None:
    """Its children's deletions are seen, and each of them brings the ghost back into the queue."""

    async def life(place: Place) -> None:
        await place.apply(CONFIG_MAP)
        await asyncio.sleep(LIVING_SECONDS)
        place.kube.objects.clear()
        for kind in (STATEFUL_SET, SERVICE):
            with pytest.raises(KubeConflictError):
                await place.apply(kind)
        assert place.kube.objects == {}
        assert place.store.get(CONSUMER_GROUP, ("shop", "orders")) is None

    run(life)


def test_fleet_that_lost_its_label_is_found_and_not_treated_as_absent() -> None:
    """The watch says that it was deleted; it runs eight workers."""

    async def life(place: Place) -> None:
        await place.apply(STATEFUL_SET, spec={"replicas": 8})
        place.kube.version += 1
        lost = place.stored(STATEFUL_SET)
        del lost["metadata"]["labels"]
        lost["metadata"]["resourceVersion"] = str(place.kube.version)
        place.store.cache(STATEFUL_SET).remove(key_of(lost), lost["metadata"]["uid"], place.kube.version)
        with pytest.raises(KubeConflictError):
            await place.apply(STATEFUL_SET, spec={"replicas": 1})
        assert place.stored(STATEFUL_SET)["spec"] == {"replicas": 8}
        found = await find_child(place.store, place.owner, STATEFUL_SET, "orders")
        assert found is not None
        await place.apply(STATEFUL_SET, spec={"replicas": 8})
        assert place.stored(STATEFUL_SET)["metadata"]["labels"] == {"consumerfleet.io/group": "orders"}
        assert place.store.cache(STATEFUL_SET).having(("shop", "orders"))

    run(life)
