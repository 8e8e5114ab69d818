"""Calls to workers: how many at once, whose turn it is, and what silent ones cost the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from fleet_operator.clients.worker_status import ANSWER_SECONDS, WorkerStatusClient
from fleet_operator.reconcilers.worker_watch import (
    CALLS_AT_ONCE_MAX,
    KEPT_SECONDS,
    NAMESPACE_CALLS_MAX,
    WorkerWatch,
)
from tests.unit.reconcilers.test_worker_watch import GROUP, RunningScene, pods
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual


class Network:
    """Sessions with workers, in the place of aiohttp's: each takes `seconds`, and a silent one until it is given up."""

    def __init__(self, silent: Callable[[str], bool]) -> None:
        self.silent = silent
        self.asked: list[tuple[float, str]] = []
        self.open = 0
        self.open_most = 0
        self.status = 200
        self.content = self
        self._bodies = [b"{}"]

    @asynccontextmanager
    async def get(self, url: str, *, headers: Mapping[str, str], allow_redirects: bool) -> AsyncIterator[Network]:
        pod = headers["Authorization"].removeprefix("Bearer ")
        self.asked.append((asyncio.get_running_loop().time(), pod))
        self.open += 1
        self.open_most = max(self.open, self.open_most)
        try:
            await asyncio.sleep(ANSWER_SECONDS if self.silent(pod) else 0.01)
            if self.silent(pod):
                raise TimeoutError
            self._bodies = [b"{}", b""]
            yield self
        finally:
            self.open -= 1

    async def read(self, most: int) -> bytes:
        return self._bodies.pop(0)


class Networked(RunningScene):
    """The same with the real client."""

    def __init__(self, silent: Callable[[str], bool]) -> None:
        super().__init__()
        self.network = Network(silent)
        client = WorkerStatusClient()
        client._session = self.network  # type: ignore[assignment]
        self.watch = WorkerWatch(client, VirtualClock(asyncio.get_running_loop()), self.changed.append)
        self.asked = self.network.asked

    def fleets(self, namespace: str, silent: int) -> None:
        """Fleets of fifty workers, of which so many do not answer."""
        for number in range(silent // 49):
            name = f"{namespace}-{number}"
            self.watch.answers((namespace, name), pods(*(f"silent-{name}-{n}" for n in range(49)), f"{name}-49"))


def networked(life: Callable[[Networked], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = Networked(lambda pod: pod.startswith("silent-"))
        asking = asyncio.create_task(scene.watch.keep_asking())
        await life(scene)
        await scene.watch.close()
        asking.cancel()

    run_virtual(main())


@pytest.mark.parametrize("namespaces", [1, 3])
def test_silent_workers_of_some_namespaces_keep_no_answers_from_the_others(namespaces: int) -> None:
    async def life(scene: Networked) -> None:
        group = pods("orders-0", "orders-1", "orders-2")
        for number in range(namespaces):
            scene.fleets(f"evil-{number}", silent=490)
        scene.watch.answers(GROUP, group)
        await scene.run(5)
        assert len(scene.watch.answers(GROUP, group)) == len(group)
        for _ in range(30):
            await scene.run(10)
            assert GROUP not in scene.changed
        assert len(scene.watch.answers(GROUP, group)) == len(group)
        assert scene.network.open_most <= CALLS_AT_ONCE_MAX

    networked(life)


def test_namespace_has_a_part_of_the_calls_at_once() -> None:
    async def life(scene: Networked) -> None:
        scene.fleets("evil", silent=490)
        await scene.run(60)
        assert scene.network.open_most == NAMESPACE_CALLS_MAX < CALLS_AT_ONCE_MAX

    networked(life)


def test_answer_counts_from_when_its_own_worker_was_asked() -> None:
    """It waited for calls to others of its namespace, which are given up one after the other."""

    async def life(scene: Networked) -> None:
        scene.fleets(GROUP[0], silent=245)
        scene.watch.answers(GROUP, pods("orders-0"))
        began = asyncio.get_running_loop().time()
        for _ in range(400):
            if scene.watch.answers(GROUP, pods("orders-0")):
                break
            await asyncio.sleep(0.1)
        (asked_at,) = (at for at, pod in scene.asked if pod == "orders-0")
        assert asked_at > began + 20, "the test is about a worker that waits"
        scene.network.silent = lambda pod: True
        await asyncio.sleep(asked_at + KEPT_SECONDS - asyncio.get_running_loop().time())
        assert scene.watch.answers(GROUP, pods("orders-0"))
        await asyncio.sleep(0.5)
        assert not scene.watch.answers(GROUP, pods("orders-0"))

    networked(life)


def test_answer_is_known_before_its_whole_fleet_has_answered() -> None:
    async def life(scene: Networked) -> None:
        fleet = pods("orders-0", *(f"silent-{n}" for n in range(45)))
        scene.watch.answers(GROUP, fleet)
        await asyncio.sleep(ANSWER_SECONDS / 2)
        assert [answer.pod for answer in scene.watch.answers(GROUP, fleet)] == ["orders-0"]

    networked(life)


def test_answer_of_a_worker_that_is_gone_is_dropped() -> None:
    async def life(scene: Networked) -> None:
        scene.watch.answers(GROUP, pods("orders-0"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        scene.watch.answers(GROUP, pods("orders-1"))
        await asyncio.sleep(2)
        assert [answer.pod for answer in scene.watch.answers(GROUP, pods("orders-1"))] == ["orders-1"]

    networked(life)
