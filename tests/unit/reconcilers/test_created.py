"""Children that are never edited are created without a read before, and absences are remembered for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, STATEFUL_SET, JsonObject
from fleet_operator.clients.kube import KubeConflictError, KubeUnavailableError
from fleet_operator.planning.labels import APPLIED_ANNOTATION
from fleet_operator.reconcilers.context import ForeignObjectError, create_owned, find_child
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime import cache as caches
from fleet_operator.runtime.cache import ObjectCache, WatchedKind, key_of
from fleet_operator.runtime.store import LIVING_SECONDS, Store
from tests.unit.reconcilers.test_owned import Place
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual


class Calls(Place):
    """A place that notes all calls, in a process that annotates what it applies."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.restart()

    def restart(self) -> None:
        """A new process, which has seen nothing yet."""
        clock = VirtualClock(asyncio.get_running_loop())
        self.store = Store(self.kube, clock, WATCHED, applied_annotation=APPLIED_ANNOTATION)

    async def begin(self) -> None:
        await super().begin()
        self.kube.before = lambda verb, kind, name: self.calls.append(f"{verb} {kind}")

    @property
    def record(self) -> JsonObject:
        return self.child(CONFIG_MAP, data={"a": "1"})

    async def create(self) -> None:
        await create_owned(self.store, self.owner, self.record)

    async def find(self) -> JsonObject | None:
        return await find_child(self.store, self.owner, STATEFUL_SET, "orders")

    def lose_label(self) -> None:
        """Somebody takes the label of the fleet away: the watch says that it was deleted."""
        lost = self.stored(STATEFUL_SET)
        del lost["metadata"]["labels"]
        self.kube.version += 1
        lost["metadata"]["resourceVersion"] = str(self.kube.version)
        self.store.cache(STATEFUL_SET).remove(key_of(lost), lost["metadata"]["uid"], self.kube.version)


def run(life: Callable[[Calls], Awaitable[None]]) -> None:
    async def main() -> None:
        place = Calls()
        await place.begin()
        await life(place)

    run_virtual(main())


def test_child_is_created_by_one_call_for_an_owner_that_was_just_seen() -> None:
    async def life(place: Calls) -> None:
        place.store.saw_living(place.owner)
        await place.create()
        await place.create()
        assert place.calls == ["create ConfigMap"]

    run(life)


def test_foreign_object_is_left_alone_by_a_creation() -> None:
    async def life(place: Calls) -> None:
        await place.kube.create(place.child(CONFIG_MAP, uid="of-somebody-else", data={"a": "theirs"}))
        for _ in range(2):
            with pytest.raises(ForeignObjectError):
                await place.create()
        assert place.stored(CONFIG_MAP)["data"] == {"a": "theirs"}
        assert "apply ConfigMap" not in place.calls

    run(life)


def test_creation_of_unknown_outcome_is_found_to_be_done_and_not_made_twice() -> None:
    """The API server made it, and its answer was lost; the watch is late."""

    async def life(place: Calls) -> None:
        def lose_answer(verb: str, kind: str, name: str) -> None:
            if verb == "create":
                raise KubeUnavailableError("no answer")

        annotated = place.store._annotated(place.record, "")
        place.kube.before = lose_answer
        with pytest.raises(KubeUnavailableError):
            await place.create()
        place.kube.before = lambda *_: None
        await place.kube.create(annotated)
        place.calls.clear()
        with pytest.raises(KubeConflictError):  # it is known from now on, and decided about again
            await place.create()
        await place.create()
        assert place.stored(CONFIG_MAP)["data"] == {"a": "1"}
        assert len([key for key in place.kube.objects if key[0] == "ConfigMap"]) == 1

    run(life)


def test_nothing_is_created_for_an_owner_that_is_gone() -> None:
    async def life(place: Calls) -> None:
        await asyncio.sleep(LIVING_SECONDS)
        place.kube.objects.clear()
        with pytest.raises(KubeConflictError):
            await place.create()
        assert place.kube.objects == {}
        assert place.store.get(CONSUMER_GROUP, ("shop", "orders")) is None

    run(life)


def test_own_object_of_other_content_is_changed_by_a_creation() -> None:
    """Another version of the operator made it."""

    async def life(place: Calls) -> None:
        place.store.learn(CONFIG_MAP, await place.kube.create(place.child(CONFIG_MAP, data={"a": "older"})))
        await place.create()
        assert place.stored(CONFIG_MAP)["data"] == {"a": "1"}

    run(life)


def test_absent_child_is_read_once_and_again_after_something_was_seen_of_it() -> None:
    async def life(place: Calls) -> None:
        for _ in range(3):
            assert await place.find() is None
        assert place.calls == ["get StatefulSet"]
        await place.apply(STATEFUL_SET, spec={"replicas": 8})
        place.lose_label()
        place.calls.clear()
        found = await place.find()
        assert found is not None
        assert found["spec"]["replicas"] == 8
        assert place.calls == ["get StatefulSet"]
        assert await place.find() is not None
        assert place.calls == ["get StatefulSet"]

    run(life)


def test_fleet_without_its_label_is_found_by_a_new_process() -> None:
    async def life(place: Calls) -> None:
        await place.apply(STATEFUL_SET, spec={"replicas": 8})
        place.lose_label()
        place.restart()
        place.store.learn(CONSUMER_GROUP, place.owner)
        found = await place.find()
        assert found is not None
        assert found["spec"]["replicas"] == 8

    run(life)


def test_child_that_is_deleted_while_absences_are_known_is_read_again() -> None:
    async def life(place: Calls) -> None:
        assert await place.find() is None
        await place.apply(STATEFUL_SET)
        ours = place.stored(STATEFUL_SET)
        del place.kube.objects["StatefulSet", "shop", "orders"]
        place.store.cache(STATEFUL_SET).remove(key_of(ours), ours["metadata"]["uid"], place.kube.version + 1)
        place.calls.clear()
        assert await place.find() is None
        assert await place.find() is None
        assert place.calls == ["get StatefulSet"]

    run(life)


def test_remembered_absences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "ABSENT_MAX", 10)
    cache = ObjectCache(WatchedKind(kind=STATEFUL_SET))
    for number in range(25):
        cache.record_absent(("shop", f"orders-{number}"))
    assert len(cache._absent) <= 10
    assert cache.is_absent(("shop", "orders-24"))


def test_creation_is_refused_for_a_field_that_the_schema_does_not_have() -> None:
    """The API server drops such a field of a creation, unless it is asked to be strict; of an apply it refuses it."""

    class Strict(MemoryKube):
        strict: bool | None = None

        async def create(self, body: JsonObject, *, strict: bool = False) -> JsonObject:
            self.strict = strict
            return await super().create(body, strict=strict)

    async def main() -> bool | None:
        kube = Strict()
        store = Store(kube, VirtualClock(asyncio.get_running_loop()), WATCHED)
        metadata = {"namespace": "shop", "name": "orders"}
        await store.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        return kube.strict

    assert run_virtual(main()) is True
