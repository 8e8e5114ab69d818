"""Workers of both fleets are asked by turns, and their answers stand for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from fleet_operator.clients.worker_status import WorkerStatusClient
from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.planning.work import WorkObservation
from fleet_operator.reconcilers.worker_watch import (
    ASKED_PER_SECOND_MAX,
    CALM_SECONDS,
    FRESH_SECONDS,
    KEPT_SECONDS,
    ROUNDS_MAX,
    SILENT_SECONDS,
    WorkerWatch,
)
from tests.support.clock import StillClock
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

GROUP = ("shop", "orders")
OPEN = "Open"


class Answers(WorkerStatusClient):
    """Workers that answer as a test says; by pod, None for one that cannot be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, WorkerObservation | None] = {}
        self.asked: list[str] = []

    async def member(self, pod: str, ip: str, port: int, uid: str) -> WorkerObservation | None:
        self.asked.append(pod)
        return self.said.get(pod, WorkerObservation(pod=pod))


class Scene:
    """A watch with a clock that only a test moves."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.client = Answers()
        self.changed: list[Any] = []
        self.watch = WorkerWatch(self.client, self.clock, self.changed.append)

    async def visit(self, pods: list[dict[str, Any]], *, after: float = 0.0) -> dict[str, WorkerObservation]:
        """A reconcile, and what it finds once whoever is asked has answered."""
        self.clock.now += after
        self.client.asked.clear()
        self.watch.answers(GROUP, pods)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        return {answer.pod: answer for answer in self.watch.answers(GROUP, pods)}


def pods(*names: str, restarts: int = 0) -> list[dict[str, Any]]:
    status = {"podIP": "10.0.0.1", "phase": "Running"}
    containers = [{"name": "worker", "restartCount": restarts}]
    return [
        {"metadata": {"name": name, "uid": name}, "spec": {}, "status": status | {"containerStatuses": containers}}
        for name in names
    ]


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_open_breaker_anywhere_is_seen_within_three_rounds(scene: Scene) -> None:
    """However large the fleet, and in retry workers too."""
    many = pods(*(f"orders-{n}" for n in range(400)), *(f"orders-retry-{n}" for n in range(24)))
    scene.client.said["orders-399"] = WorkerObservation(pod="orders-399", breaker=OPEN)
    scene.client.said["orders-retry-23"] = WorkerObservation(pod="orders-retry-23", breaker=OPEN)
    most = 0
    for _ in range(ROUNDS_MAX):
        found = await scene.visit(many, after=FRESH_SECONDS)
        most = max(most, len(scene.client.asked))
    assert len(found) == len(many)
    assert {pod for pod, answer in found.items() if answer.breaker_open} == {"orders-399", "orders-retry-23"}
    assert most < len(many) / 2


async def test_every_worker_of_a_small_group_is_asked_in_each_round(scene: Scene) -> None:
    group = pods("orders-0", "orders-1", "orders-retry-0")
    assert set(await scene.visit(group)) == {"orders-0", "orders-1", "orders-retry-0"}
    await scene.visit(group, after=FRESH_SECONDS - 1)
    assert scene.client.asked == []
    await scene.visit(group, after=1)
    assert len(scene.client.asked) == 3


async def test_answer_is_valid_for_a_limited_time(scene: Scene) -> None:
    group = pods("orders-0", "orders-1")
    await scene.visit(group)
    scene.client.said["orders-1"] = None
    assert "orders-1" in await scene.visit(group, after=KEPT_SECONDS)
    assert "orders-1" not in await scene.visit(group, after=1)


async def test_restarted_worker_is_asked_at_once_and_its_last_answer_discarded(scene: Scene) -> None:
    scene.client.said["orders-0"] = WorkerObservation(pod="orders-0", error_reason="FencedInstance")
    await scene.visit(pods("orders-0"))
    scene.client.said["orders-0"] = None
    assert await scene.visit(pods("orders-0", restarts=1), after=1) == {}
    assert scene.client.asked == ["orders-0"]


async def test_new_worker_is_asked_at_once_and_silent_ones_are_left_alone_meanwhile(scene: Scene) -> None:
    scene.client.said |= {"orders-0": None, "orders-1": None}
    for _ in range(12):
        await scene.visit(pods("orders-0"), after=FRESH_SECONDS)
    await scene.visit(pods("orders-0"), after=SILENT_SECONDS)
    assert scene.client.asked == ["orders-0"]
    await scene.visit(pods("orders-0", "orders-1"), after=1)
    assert scene.client.asked == ["orders-1"]


async def test_silent_worker_is_asked_at_once_when_its_pod_is_replaced(scene: Scene) -> None:
    scene.client.said["orders-0"] = None
    for _ in range(12):
        await scene.visit(pods("orders-0"), after=FRESH_SECONDS)
    await scene.visit(pods("orders-0"), after=SILENT_SECONDS)
    assert scene.client.asked == ["orders-0"]
    await scene.visit(pods("orders-0", restarts=1), after=1)
    assert scene.client.asked == ["orders-0"]


async def test_only_a_changed_answer_requeues_the_group(scene: Scene) -> None:
    group = pods("orders-0")
    await scene.visit(group)
    assert scene.changed == [GROUP]
    await scene.visit(group, after=FRESH_SECONDS)
    assert scene.changed == [GROUP]
    scene.client.said["orders-0"] = WorkerObservation(pod="orders-0", breaker=OPEN)
    await scene.visit(group, after=FRESH_SECONDS)
    assert scene.changed == [GROUP, GROUP]


async def test_work_is_no_change_and_the_last_is_kept_with_its_time(scene: Scene) -> None:
    group, found = pods("orders-0"), {}
    for records in range(3):
        work = WorkObservation(busy_seconds=records / 2, records=records, slots=1)
        scene.client.said["orders-0"] = WorkerObservation(pod="orders-0", work=work)
        found = await scene.visit(group, after=FRESH_SECONDS)
    assert scene.changed == [GROUP]
    assert found["orders-0"].work == WorkObservation(busy_seconds=1.0, records=2, slots=1)
    assert found["orders-0"].heard_at == scene.clock.wall()


class RunningScene(Scene):
    """A watch whose own loop runs on a virtual clock: reconciles come only when it reports a change."""

    def __init__(self) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.asked: list[tuple[float, str]] = []
        self.watch = WorkerWatch(self.client, VirtualClock(loop), self.changed.append)
        self._member = self.client.member
        self.client.member = self._record  # type: ignore[method-assign]

    async def _record(self, pod: str, ip: str, port: int, uid: str) -> WorkerObservation | None:
        self.asked.append((asyncio.get_running_loop().time(), pod))
        return await self._member(pod, ip, port, uid)

    def times(self, pod: str) -> list[float]:
        """The seconds between the questions to a worker."""
        asked = [at for at, its in self.asked if its == pod]
        return [round(later - earlier) for earlier, later in pairwise(asked)]

    async def run(self, seconds: float) -> None:
        self.asked.clear()
        self.changed.clear()
        await asyncio.sleep(seconds)


def alone(life: Callable[[RunningScene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = RunningScene()
        asking = asyncio.create_task(scene.watch.keep_asking())
        await life(scene)
        await scene.watch.close()
        asking.cancel()

    run_virtual(main())


def test_workers_are_asked_again_and_again_without_reconciles() -> None:
    async def life(scene: RunningScene) -> None:
        scene.watch.answers(GROUP, pods("orders-0", "orders-1"))
        await scene.run(120)
        for pod in ("orders-0", "orders-1"):
            assert set(scene.times(pod)) <= {FRESH_SECONDS, FRESH_SECONDS + 1}
        assert len(scene.watch.answers(GROUP, pods("orders-0", "orders-1"))) == 2

    alone(life)


def test_fleet_that_is_not_followed_closely_is_asked_less_often_and_keeps_its_answers() -> None:
    async def life(scene: RunningScene) -> None:
        group = pods("orders-0")
        scene.watch.answers(GROUP, group)
        scene.watch.follow(GROUP, closely=False)
        await scene.run(20)
        await scene.run(600)
        assert set(scene.times("orders-0")) <= {CALM_SECONDS, CALM_SECONDS + 1}
        assert scene.changed == []
        assert len(scene.watch.answers(GROUP, group)) == 1

    alone(life)


@pytest.mark.parametrize("workers", [1, 140])
def test_fleet_is_asked_soon_once_it_is_followed_closely_and_loses_no_answer_by_that(workers: int) -> None:
    """Answers may be minutes old by then, longer than those of a closely followed fleet count."""

    async def life(scene: RunningScene) -> None:
        group = pods(*(f"orders-{number}" for number in range(workers)))
        scene.watch.answers(GROUP, group)
        scene.watch.follow(GROUP, closely=False)
        await scene.run(400)
        scene.watch.follow(GROUP, closely=True)
        await scene.run(0)
        for _ in range(120):
            assert len(scene.watch.answers(GROUP, group)) == workers
            await asyncio.sleep(1)
        assert scene.changed == []
        assert len(scene.times("orders-0")) >= 2

    alone(life)


@pytest.mark.parametrize("closely", [True, False])
def test_answers_of_a_large_fleet_count_until_its_workers_are_asked_again(closely: bool) -> None:
    """Three rounds, and many other workers that are to be asked too: a turn comes every minute and a half."""

    async def life(scene: RunningScene) -> None:
        large = pods(*(f"orders-{number}" for number in range(140)))
        for other in range(20):
            scene.watch.answers(("shop", f"other-{other}"), pods(*(f"other-{other}-{n}" for n in range(90))))
        scene.watch.answers(GROUP, large)
        scene.watch.follow(GROUP, closely=closely)
        await scene.run(200)
        await scene.run(300)
        assert scene.changed == []
        assert len(scene.watch.answers(GROUP, large)) == len(large)
        assert max(scene.times("orders-7")) > KEPT_SECONDS

    alone(life)


def test_a_thousand_workers_are_asked_within_the_budget() -> None:
    async def life(scene: RunningScene) -> None:
        for fleet in range(250):
            scene.watch.answers(("shop", f"fleet-{fleet}"), pods(*(f"fleet-{fleet}-{n}" for n in range(4))))
        await scene.run(60)
        await scene.run(300)
        assert len(scene.asked) / 300 <= ASKED_PER_SECOND_MAX * 1.05
        assert max(scene.times("fleet-7-0")) <= 22, "each is still asked three times a minute"

    alone(life)


def test_budget_is_free_again_when_fleets_go_or_are_followed_less_closely() -> None:
    async def life(scene: RunningScene) -> None:
        fleets = [("shop", f"fleet-{number}") for number in range(250)]
        for fleet in fleets:
            scene.watch.answers(fleet, pods(*(f"{fleet[1]}-{n}" for n in range(4))))
        scene.watch.answers(GROUP, pods("orders-0"))
        for fleet in fleets[:100]:
            scene.watch.drop_group(fleet)
        for fleet in fleets[100:]:
            scene.watch.follow(fleet, closely=False)
        for fleet in fleets[100:200]:
            scene.watch.answers(fleet, [])
        await scene.run(60)
        await scene.run(120)
        assert set(scene.times("orders-0")) <= {FRESH_SECONDS, FRESH_SECONDS + 1}
        assert not any(pod.startswith(("fleet-7-", "fleet-150-")) for _, pod in scene.asked)

    alone(life)


def test_answer_that_came_no_more_brings_the_group_back_once() -> None:
    async def life(scene: RunningScene) -> None:
        group = pods("orders-0", "orders-1")
        scene.watch.answers(GROUP, group)
        await scene.run(30)
        scene.client.said["orders-1"] = None
        await scene.run(KEPT_SECONDS + FRESH_SECONDS + 2)
        assert scene.changed == [GROUP]
        assert [answer.pod for answer in scene.watch.answers(GROUP, group)] == ["orders-0"]
        await scene.run(120)
        assert scene.changed == []

    alone(life)


def test_worker_that_does_not_answer_is_asked_less_and_less_often_and_the_others_as_before() -> None:
    async def life(scene: RunningScene) -> None:
        scene.client.said["orders-0"] = None
        scene.watch.answers(GROUP, pods("orders-0", "orders-1"))
        await scene.run(300)
        assert scene.times("orders-0") == [FRESH_SECONDS, 2 * FRESH_SECONDS, 4 * FRESH_SECONDS] + [SILENT_SECONDS] * 3
        assert set(scene.times("orders-1")) == {FRESH_SECONDS}
        del scene.client.said["orders-0"]
        await scene.run(60 + SILENT_SECONDS)
        assert set(scene.times("orders-0")) == {FRESH_SECONDS}
        assert len(scene.watch.answers(GROUP, pods("orders-0", "orders-1"))) == 2

    alone(life)


def test_new_worker_that_does_not_listen_yet_is_asked_again_soon_in_a_calm_fleet() -> None:
    """It begins after its container, and the first record that waits may be the one at which it gets stuck."""

    async def life(scene: RunningScene) -> None:
        scene.client.said["orders-0"] = None
        scene.watch.answers(GROUP, pods("orders-0"))
        scene.watch.follow(GROUP, closely=False)
        await scene.run(FRESH_SECONDS / 2)
        del scene.client.said["orders-0"]
        await scene.run(FRESH_SECONDS)
        assert scene.changed == [GROUP]
        await scene.run(4 * CALM_SECONDS)
        assert set(scene.times("orders-0")) <= {CALM_SECONDS, CALM_SECONDS + 1}

    alone(life)


def test_forgotten_group_is_not_asked_and_reports_no_change() -> None:
    async def life(scene: RunningScene) -> None:
        scene.watch.answers(GROUP, pods("orders-0"))
        await scene.run(30)
        scene.watch.drop_group(GROUP)
        scene.watch.follow(GROUP, closely=True)
        await scene.run(300)
        assert (scene.asked, scene.changed) == ([], [])

    alone(life)


def test_closed_watch_leaves_no_question_open() -> None:
    async def main() -> None:
        scene = RunningScene()

        async def never(pod: str, ip: str, port: int, uid: str) -> None:
            await asyncio.Event().wait()

        scene.client.member = never  # type: ignore[method-assign]
        scene.watch.answers(GROUP, pods("orders-0"))
        await asyncio.sleep(0)
        await scene.watch.close()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run_virtual(main())
