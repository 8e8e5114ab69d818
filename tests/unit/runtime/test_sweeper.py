"""The lists that fill the caches, and find what the watches missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from fleet_operator.clients.kinds import POD, REDRIVE, WHOLE, JsonObject, Kind, View
from fleet_operator.clients.kube import (
    KubeError,
    KubeForbiddenError,
    KubeNotFoundError,
    KubeUnavailableError,
    Listing,
)
from fleet_operator.runtime.cache import Change, WatchedKind
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.sweeper import Sweeper
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

WATCHED = (WatchedKind(kind=POD),)


def pod(name: str, namespace: str = "ns") -> JsonObject:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}}


Told = list[tuple[str, Change]]


@asynccontextmanager
async def sweeping(
    kube: MemoryKube, *namespaces: str, watched: Sequence[WatchedKind] = WATCHED
) -> AsyncIterator[tuple[Store, Sweeper, Told]]:
    """A sweeper at work, and what it reports."""
    store, told = Store(kube, VirtualClock(asyncio.get_running_loop()), watched), Told()
    sweeper = Sweeper(store, watched, namespaces, Metrics(), interval=300.0)
    running = asyncio.create_task(
        sweeper.run(lambda kind, body, change: told.append((body["metadata"]["name"], change)))
    )
    try:
        yield store, sweeper, told
    finally:
        running.cancel()


def forbid(*namespaces: str | None) -> Callable[[str, str, str | None], None]:
    def refuse(verb: str, kind: str, namespace: str | None) -> None:
        if namespace in namespaces:
            raise KubeForbiddenError(f"{kind} is forbidden", status=403)

    return refuse


class Ruled(MemoryKube):
    """Lists as its `rule` allows."""

    rule: Callable[[str, str, str | None], None] = staticmethod(forbid())

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        self.rule("list", kind.kind, namespace)
        return await super().list(kind, namespace, label_selector=label_selector, view=view)


def test_nothing_is_served_before_it_could_be_listed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        kube = Ruled()
        await kube.create(pod("a"))
        kube.rule = forbid(None)
        async with sweeping(kube) as (store, sweeper, _):
            await asyncio.sleep(12.0)
            assert not sweeper.serving.is_set()
            kube.rule = forbid()
            await sweeper.serving.wait()
            return len(store.cache(POD))

    with caplog.at_level(logging.WARNING):
        assert run_virtual(main()) == 1
    assert {vars(record)["kind"] for record in caplog.records} == {"Pod"}


def test_only_the_named_namespaces_are_listed() -> None:
    async def main() -> list[str]:
        kube = MemoryKube()
        for namespace in ("one", "two", "three"):
            await kube.create(pod("a", namespace))
        async with sweeping(kube, "one", "three") as (store, _, _):
            await asyncio.sleep(1.0)
            return [key[0] for key in sorted(store.cache(POD).keys())]

    assert run_virtual(main()) == ["one", "three"]


def test_deletion_that_the_watch_missed_is_reported_within_one_sweep() -> None:
    async def main() -> Told:
        kube = MemoryKube()
        made = await kube.create(pod("a"))
        await kube.create(pod("b"))
        async with sweeping(kube) as (_, sweeper, told):
            await sweeper.serving.wait()
            told.clear()
            await kube.delete(POD, "ns", "a", uid=made["metadata"]["uid"])
            await asyncio.sleep(400.0)
            return told

    assert run_virtual(main()) == [("a", Change.GONE)]


@pytest.mark.parametrize("refusal", [KubeForbiddenError("forbidden"), KubeNotFoundError("not found")])
def test_namespace_that_refuses_from_the_start_harms_no_other_and_is_served_when_it_can_be(refusal: KubeError) -> None:
    async def main() -> None:
        kube = Ruled()
        for namespace in ("bank", "shop"):
            await kube.create(pod("a", namespace))

        def refuse(verb: str, kind: str, namespace: str | None) -> None:
            if namespace == "bank":
                raise refusal

        kube.rule = refuse
        async with sweeping(kube, "bank", "shop") as (store, sweeper, told):
            await asyncio.wait_for(sweeper.serving.wait(), 1.0)
            assert (sweeper.serves(POD, "shop"), sweeper.serves(POD, "bank")) == (True, False)
            assert list(store.cache(POD).keys()) == [("shop", "a")]
            await asyncio.sleep(3600.0)
            assert (sweeper.serves(POD, "shop"), sweeper.serves(POD, "bank")) == (True, False)
            told.clear()
            kube.rule = forbid()
            await asyncio.sleep(61.0)
            assert sweeper.serves(POD, "bank")
            assert told == [("a", Change.SPEC)]

    run_virtual(main())


def test_objects_of_a_namespace_that_refuses_later_are_not_taken_for_deleted() -> None:
    async def main() -> None:
        kube = Ruled()
        for namespace in ("bank", "shop"):
            await kube.create(pod("a", namespace))
        gone = await kube.create(pod("b", "bank"))
        async with sweeping(kube, "bank", "shop") as (store, sweeper, told):
            await asyncio.sleep(1.0)
            kube.rule = forbid("bank")
            sweeper.again(POD, "bank", KubeForbiddenError("forbidden"))
            assert (sweeper.serves(POD, "shop"), sweeper.serves(POD, "bank")) == (True, False)
            await kube.delete(POD, "bank", "b", uid=gone["metadata"]["uid"])
            told.clear()
            await asyncio.sleep(1000.0)
            assert ("bank", "b") in store.cache(POD)
            assert told == []
            kube.rule = forbid()
            await asyncio.sleep(61.0)
            assert sweeper.serves(POD, "bank")
            assert told == [("b", Change.GONE)]

    run_virtual(main())


def test_server_out_of_reach_ends_no_service() -> None:
    async def main() -> None:
        kube = Ruled()

        def fail(verb: str, kind: str, namespace: str | None) -> None:
            raise KubeUnavailableError("no route")

        async with sweeping(kube) as (_, sweeper, _):
            await sweeper.serving.wait()
            kube.rule = fail
            await asyncio.sleep(1000.0)
            assert sweeper.serves(POD, "ns")

    run_virtual(main())


def test_namespace_whose_lists_hang_does_not_keep_the_others_waiting() -> None:
    class Hanging(Ruled):
        async def pages(
            self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE
        ) -> AsyncIterator[Listing]:
            if namespace == "bank":
                await asyncio.sleep(3600.0)
            yield await self.list(kind, namespace, view=view)

    async def main() -> None:
        async with sweeping(Hanging(), "bank", "shop", "store") as (_, sweeper, _):
            await asyncio.sleep(1.0)
            assert [sweeper.serves(POD, each) for each in ("bank", "shop", "store")] == [False, True, True]

    run_virtual(main())


@pytest.mark.parametrize("known", [False, True])
def test_refused_kind_that_others_can_do_without_is_not_served_alone(known: bool) -> None:
    async def main() -> None:
        kube = Ruled()

        def refuse(verb: str, kind: str, namespace: str | None) -> None:
            if kind == "Redrive":
                raise KubeForbiddenError("forbidden")

        kube.rule = forbid() if known else refuse
        watched = (*WATCHED, WatchedKind(kind=REDRIVE, apart=True))
        async with sweeping(kube, watched=watched) as (_, sweeper, _):
            await sweeper.serving.wait()
            kube.rule = refuse
            await asyncio.sleep(400.0)
            assert (sweeper.serves(POD, "ns"), sweeper.serves(REDRIVE, "ns")) == (True, False)
            kube.rule = forbid()
            await asyncio.sleep(61.0)
            assert sweeper.serves(REDRIVE, "ns")

    run_virtual(main())


def test_watch_goes_on_from_each_list_once() -> None:
    async def main() -> tuple[str, str, float]:
        kube, now = MemoryKube(), asyncio.get_running_loop().time
        await kube.create(pod("a"))
        async with sweeping(kube) as (_, sweeper, _):
            first = await sweeper.version(POD, None)
            await kube.create(pod("b"))
            began = now()
            sweeper.again(POD, None)
            return first, await sweeper.version(POD, None), now() - began

    assert run_virtual(main()) == ("101", "102", 0.0)


def test_refused_watch_has_no_version_before_its_kind_is_listed() -> None:
    async def main() -> float:
        kube, now = Ruled(), asyncio.get_running_loop().time
        async with sweeping(kube) as (_, sweeper, _):
            await sweeper.version(POD, None)
            kube.rule = forbid(None)
            sweeper.again(POD, None, KubeForbiddenError("forbidden"))
            waiting, began = asyncio.create_task(sweeper.version(POD, None)), now()
            await asyncio.sleep(1000.0)
            assert not waiting.done()
            kube.rule = forbid()
            await waiting
            return now() - began

    assert run_virtual(main()) < 1061.0


@pytest.mark.parametrize(("refusal", "told"), [(KubeForbiddenError("no"), False), (KubeNotFoundError("no"), True)])
def test_kind_that_is_known_again_is_told_and_not_one_that_was_forbidden(refusal: KubeError, told: bool) -> None:
    async def main() -> bool:
        kube = Ruled()

        def refuse(verb: str, kind: str, namespace: str | None) -> None:
            raise refusal

        async with sweeping(kube) as (_, sweeper, _):
            await sweeper.serving.wait()
            assert not sweeper.returned.is_set()
            kube.rule = refuse
            await asyncio.sleep(400.0)
            kube.rule = forbid()
            await asyncio.sleep(61.0)
            assert sweeper.serves(POD, "ns")
            return sweeper.returned.is_set()

    assert run_virtual(main()) is told
