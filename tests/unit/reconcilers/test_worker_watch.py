"""Workers of both fleets are asked by turns, and their answers stand for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet_operator.clients.worker_status import WorkerStatusClient
from fleet_operator.planning.observation import BreakerObservation, WorkerObservation
from fleet_operator.reconcilers.worker_watch import (
    FRESH_SECONDS,
    KEPT_SECONDS,
    ROUNDS_MAX,
    SILENT_ROUNDS,
    SILENT_SECONDS,
    WorkerWatch,
)
from tests.support.clock import StillClock

GROUP = ("shop", "orders")
OPEN = BreakerObservation(state="Open")


class Answers(WorkerStatusClient):
    """Workers that answer as a test says; by pod, None for one that cannot be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, WorkerObservation | None] = {}
        self.asked: list[str] = []

    async def member(self, pod: str, ip: str, port: int) -> WorkerObservation | None:
        self.asked.append(pod)
        return self.said.get(pod, WorkerObservation(pod=pod))


class Scene:
    """A watch with a clock that only a test moves."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.client = Answers()
        self.news: list[Any] = []
        self.watch = WorkerWatch(self.client, self.clock, self.news.append)

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
        {"metadata": {"name": name}, "spec": {}, "status": status | {"containerStatuses": containers}} for name in names
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


async def test_fleet_that_never_answers_is_left_alone_until_it_has_another_worker(scene: Scene) -> None:
    scene.client.said |= {"orders-0": None, "orders-1": None}
    for _ in range(SILENT_ROUNDS):
        await scene.visit(pods("orders-0"), after=FRESH_SECONDS)
        assert scene.client.asked == ["orders-0"]
    await scene.visit(pods("orders-0"), after=FRESH_SECONDS)
    assert scene.client.asked == []
    await scene.visit(pods("orders-0", "orders-1"), after=1)
    assert sorted(scene.client.asked) == ["orders-0", "orders-1"]
    for _ in range(SILENT_ROUNDS - 1):
        await scene.visit(pods("orders-0", "orders-1"), after=FRESH_SECONDS)
    await scene.visit(pods("orders-0", "orders-1"), after=SILENT_SECONDS - 1)
    assert scene.client.asked == []
    await scene.visit(pods("orders-0", "orders-1"), after=1)
    assert len(scene.client.asked) == 2


async def test_only_a_changed_answer_requeues_the_group(scene: Scene) -> None:
    group = pods("orders-0")
    await scene.visit(group)
    assert scene.news == [GROUP]
    await scene.visit(group, after=FRESH_SECONDS)
    assert scene.news == [GROUP]
    scene.client.said["orders-0"] = WorkerObservation(pod="orders-0", breaker=OPEN)
    await scene.visit(group, after=FRESH_SECONDS)
    assert scene.news == [GROUP, GROUP]
