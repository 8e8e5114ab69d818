"""Fields that a creation has set and a later apply leaves out: they go, wherever the operator may be killed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable

import pytest

from fleet_operator.clients.kinds import SERVICE, STATEFUL_SET, JsonObject, Kind, kind_of
from fleet_operator.clients.kube import KubeConflictError, KubeUnavailableError
from fleet_operator.planning.drift import has_written
from fleet_operator.planning.labels import APPLIED_ANNOTATION
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import Store
from tests.unit.runtime.owning_kube import OwningKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual


def child(kind: Kind, **pod_spec: object) -> JsonObject:
    head = {"namespace": "shop", "name": "orders", "ownerReferences": [{"uid": "u1"}]}
    metadata = {**head, "labels": {"consumerfleet.io/group": "orders"}}
    spec = {"template": {"spec": {"serviceName": "orders", **pod_spec}}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


class Place:
    """An API server in memory with owners of fields, and a process that has listed what is there."""

    def __init__(self) -> None:
        self.kube = OwningKube()
        self.calls: list[str] = []
        self.kube.before = lambda verb, kind, name: self.calls.append(verb)
        self.restart()

    def restart(self) -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        self.store = Store(self.kube, clock, WATCHED, applied_annotation=APPLIED_ANNOTATION)
        for body in self.kube.objects.values():
            self.store.learn(kind_of(body), copy.deepcopy(body))
        self.calls.clear()

    async def apply(self, body: JsonObject) -> None:
        """An apply over what the cache has, or what is read where there is no cache."""
        kind, key = kind_of(body), key_of(body)
        seen = self.store.get(kind, key) if self.store.watches(kind) else await self.kube.get(kind, *key)
        await self.store.apply(body, over=seen)

    def die_at(self, number: int) -> None:
        """Let the calls from this one on fail."""
        count = 0

        def die(verb: str, kind: str, name: str) -> None:
            nonlocal count
            count += 1
            if count > number:
                raise KubeUnavailableError("killed")

        self.kube.before = die

    def stored(self, kind: Kind) -> JsonObject:
        return self.kube.objects[kind.kind, "shop", "orders"]


def run(life: Callable[[Place], Awaitable[None]]) -> None:
    async def main() -> None:
        await life(Place())

    run_virtual(main())


@pytest.mark.parametrize("kind", [STATEFUL_SET, SERVICE])
def test_field_that_a_creation_has_set_goes_with_the_first_apply_without_it(kind: Kind) -> None:
    async def life(place: Place) -> None:
        await place.store.create(child(kind, hostNetwork=True))
        assert has_written(place.stored(kind)["metadata"])
        await place.apply(child(kind))
        assert "hostNetwork" not in place.stored(kind)["spec"]["template"]["spec"]
        assert not has_written(place.stored(kind)["metadata"])

    run(life)


@pytest.mark.parametrize("number", range(4))
def test_nothing_stale_remains_of_a_creation_after_a_kill_at_any_call(number: int) -> None:
    async def life(place: Place) -> None:
        await place.store.create(child(STATEFUL_SET, hostNetwork=True))
        place.restart()
        place.die_at(number)
        try:
            await place.apply(child(STATEFUL_SET))
        except KubeUnavailableError:
            assert number < 3
        place.kube.before = lambda *_: None
        place.restart()
        await place.apply(child(STATEFUL_SET))
        assert "hostNetwork" not in place.stored(STATEFUL_SET)["spec"]["template"]["spec"]

    run(life)


def test_second_apply_over_a_created_object_is_one_call() -> None:
    async def life(place: Place) -> None:
        await place.store.create(child(STATEFUL_SET, hostNetwork=True))
        place.calls.clear()
        await place.apply(child(STATEFUL_SET, dnsPolicy="None"))
        assert place.calls == ["get", "merge", "apply"]
        place.calls.clear()
        await place.apply(child(STATEFUL_SET))
        assert place.calls == ["apply"]
        assert place.stored(STATEFUL_SET)["spec"]["template"]["spec"] == {"serviceName": "orders"}

    run(life)


def test_created_object_is_assumed_by_the_next_process_without_a_call() -> None:
    async def life(place: Place) -> None:
        await place.store.create(child(STATEFUL_SET))
        place.restart()
        await place.apply(child(STATEFUL_SET))
        assert place.calls == []

    run(life)


def test_object_that_changes_while_its_fields_are_recorded_as_applied_is_decided_about_again() -> None:
    async def life(place: Place) -> None:
        await place.store.create(child(STATEFUL_SET, hostNetwork=True))

        def edit(verb: str, kind: str, name: str) -> None:
            if verb == "merge":
                place.kube.version += 1
                place.stored(STATEFUL_SET)["metadata"]["resourceVersion"] = str(place.kube.version)

        place.kube.before = edit
        with pytest.raises(KubeConflictError):
            await place.apply(child(STATEFUL_SET))
        place.kube.before = lambda *_: None
        await place.apply(child(STATEFUL_SET))
        assert "hostNetwork" not in place.stored(STATEFUL_SET)["spec"]["template"]["spec"]

    run(life)
