"""Watches that go on from the sweeper's lists, whatever ends them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from fleet_operator.clients.kinds import JOB, POD, WHOLE, JsonObject, Kind, View
from fleet_operator.clients.kube import (
    KubeError,
    KubeExpiredError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
    WatchEvent,
)
from fleet_operator.runtime.cache import WatchedKind
from fleet_operator.runtime.informer import Informer, Sink
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.sweeper import Sweeper
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

Script = list[WatchEvent | KubeError | None]
"""The events of a watch; it ends with an error or with None, and stays open without one."""


def pod(name: str, version: int, namespace: str = "ns") -> JsonObject:
    metadata = {"namespace": namespace, "name": name, "uid": name, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def change(name: str, version: int, *, gone: bool = False) -> WatchEvent:
    return WatchEvent(str(version), pod(name, version), gone)


@dataclass
class Scripted(MemoryKube):
    """Watches show what a script says, one after the other.

    `asked` has the time, kind, namespace and version of each.
    """

    scripts: list[Script] = field(default_factory=list)
    asked: list[tuple[float, str, str | None, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def versions(self) -> list[str]:
        return [version for _, _, _, version in self.asked]

    @property
    def pauses(self) -> list[float]:
        times = [at for at, *_ in self.asked]
        return [later - at for at, later in itertools.pairwise(times)]

    async def watch(
        self, kind: Kind, namespace: str | None, version: str, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[WatchEvent]:
        loop = asyncio.get_running_loop()
        self.asked.append((loop.time(), kind.kind, namespace, version))
        for step in self.scripts.pop(0) if self.scripts else ():
            if step is None:
                return
            if isinstance(step, KubeError):
                raise step
            yield step
        await loop.create_future()


Seen = list[tuple[str, bool]]


@asynccontextmanager
async def informing(
    kube: Scripted, *namespaces: str, kinds: Sequence[Kind] = (POD,), sink: Sink | None = None
) -> AsyncIterator[tuple[Sweeper, Seen]]:
    """An informer with a sweeper, and the names that it has shown with whether they are gone."""
    seen, watched = Seen(), [WatchedKind(kind=kind) for kind in kinds]
    store = Store(kube, VirtualClock(asyncio.get_running_loop()), watched)
    sweeper = Sweeper(store, watched, namespaces, Metrics(), interval=300.0)
    sink = sink or (lambda kind, body, gone: seen.append((body["metadata"]["name"], gone)))
    informer = Informer(kube, watched, sink, namespaces, sweeper)
    running = [
        asyncio.create_task(sweeper.run(lambda kind, body, change: None)),
        asyncio.create_task(informer.run()),
    ]
    try:
        yield sweeper, seen
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def watched_for(kube: Scripted, seconds: float, *namespaces: str) -> Seen:
    async def main() -> Seen:
        async with informing(kube, *namespaces) as (_, seen):
            await asyncio.sleep(seconds)
            return seen

    return run_virtual(main())


def test_watch_begins_at_the_list_and_goes_on_where_it_ended() -> None:
    kube = Scripted([[change("a", 103), change("a", 104, gone=True), WatchEvent("110", None), None]])
    assert watched_for(kube, 1.0) == [("a", False), ("a", True)]
    assert kube.versions == ["100", "110"], "the list's, then the bookmark's"


def test_expired_watch_begins_at_a_new_list_at_once() -> None:
    kube = Scripted([[change("a", 103), KubeExpiredError("too old")], [change("b", 106)]])
    kube.version = 105
    assert watched_for(kube, 5.0) == [("a", False), ("b", False)]
    assert kube.versions == ["105", "105"]


def test_broken_watch_is_made_again_from_its_version_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    broken: Script = [KubeUnavailableError("connection reset")]
    kube = Scripted([[change("a", 103), *broken], *([broken] * 6)])
    with caplog.at_level(logging.WARNING):
        watched_for(kube, 300.0)
    assert kube.versions == ["100", *["103"] * 7]
    assert kube.pauses[0] < 1.0
    assert all(15.0 <= pause <= 30.0 for pause in kube.pauses[2:])
    assert {vars(record)["kind"] for record in caplog.records} == {"Pod"}
    assert len(caplog.records) < 7, "not one line for each attempt"


def test_watch_that_brings_something_is_not_held_back_by_earlier_failures() -> None:
    broken: Script = [KubeUnavailableError("connection reset")]
    kube = Scripted([broken, broken, broken, [change("a", 103), None], []])
    watched_for(kube, 100.0)
    assert kube.pauses[-1] <= 0.1


def test_watch_that_cannot_be_read_begins_at_a_new_list_and_holds_back() -> None:
    kube = Scripted([[KubeInvalidError("an event cannot be read")]] * 20)
    watched_for(kube, 60.0)
    assert 3 < len(kube.asked) < 10


@pytest.mark.parametrize("refusal", [KubeForbiddenError("forbidden"), KubeNotFoundError("not found")])
def test_refused_watch_is_reported_and_harms_no_other(refusal: KubeError) -> None:
    """Its kind is listed again until that is allowed, and only then watched again."""

    async def main() -> None:
        kube, allowed = Scripted([[], [refusal]]), asyncio.Event()

        def rule(verb: str, kind: str, name: str) -> None:
            if kind == "Job" and sweeper.serving.is_set() and not allowed.is_set():
                raise refusal

        async with informing(kube, kinds=(POD, JOB)) as (sweeper, _):
            kube.before = rule
            await asyncio.sleep(100.0)
            assert not sweeper.serves(JOB, "ns")
            assert [kind for _, kind, _, _ in kube.asked] == ["Pod", "Job"]
            allowed.set()
            await asyncio.sleep(61.0)
            assert sweeper.serves(JOB, "ns")
            assert [kind for _, kind, _, _ in kube.asked] == ["Pod", "Job", "Job"]

    run_virtual(main())


def test_each_namespace_is_watched_by_itself() -> None:
    kube = Scripted()
    watched_for(kube, 1.0, "bank", "shop")
    assert sorted(str(namespace) for _, _, namespace, _ in kube.asked) == ["bank", "shop"]


def test_end_of_an_informer_leaves_no_task() -> None:
    async def main() -> int:
        async with informing(Scripted(), "bank", "shop"):
            await asyncio.sleep(1.0)
        return len(asyncio.all_tasks())

    assert run_virtual(main()) == 1
