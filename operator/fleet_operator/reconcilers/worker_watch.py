"""The workers' own reports, read in the background: main and retry workers of each group, in turns where many.

A reconcile never waits for a worker: it takes the last answer and, when that is old, has the worker asked again; an
answer with a change brings the group back into the queue. Where no worker can be reached the questions become rare.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.clients.worker_status import WorkerStatusClient
from fleet_operator.planning.fleet.sidecar import WORKER_PORT
from fleet_operator.planning.labels import CONTAINER
from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.runtime.cache import Key

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 60.0
"""Pause of the questions to a fleet after SILENT_ROUNDS in which no worker answered: the operator is probably outside
the pod network."""
SILENT_ROUNDS: Final = 3
KEPT_SECONDS: Final = 60.0
"""Time for which an answer counts when the worker has not answered again."""
ASKED_MAX: Final = 50
ROUNDS_MAX: Final = 3
"""A round asks at least so many workers of one group, and all of them have their turn within so many rounds."""


class _Address(NamedTuple):
    """Address of a worker. A restarted worker has another one, so that its earlier answers are dropped."""

    pod: str
    ip: str
    port: int
    restarts: int


@dataclass(slots=True)
class _Fleet:
    """One group's last answers, when each worker was asked and when the next round is due (monotonic seconds)."""

    answers: dict[_Address, tuple[WorkerObservation, float]] = field(default_factory=dict)
    asked_at: dict[_Address, float] = field(default_factory=dict)
    due_at: float = 0.0
    silent_rounds: int = 0
    asking: asyncio.Task[None] | None = None

    def forget_all_but(self, living: Collection[_Address]) -> None:
        self.answers = {each: answer for each, answer in self.answers.items() if each in living}
        self.asked_at = {each: at for each, at in self.asked_at.items() if each in living}

    def turn(self, living: Collection[_Address]) -> list[_Address]:
        """The workers of the next round: those that have waited longest."""
        most = max(ASKED_MAX, -(-len(living) // ROUNDS_MAX))
        return sorted(living, key=lambda each: (self.asked_at.get(each, float("-inf")), each))[:most]


class WorkerWatch:
    """All fleets' workers. `close` at the end; the rest at any time, on the event loop."""

    def __init__(self, client: WorkerStatusClient, clock: Clock, news: Callable[[Key], None]) -> None:
        self._client = client
        self._clock = clock
        self._news = news
        self._fleets: dict[Key, _Fleet] = {}

    def answers(self, group: Key, pods: Sequence[JsonObject]) -> tuple[WorkerObservation, ...]:
        """The last answers of the workers in these pods, main and retry; has them asked again if those are old or there
        are other workers."""
        fleet = self._fleets.setdefault(group, _Fleet())
        living = frozenset(_addresses(pods))
        fleet.forget_all_but(living)
        now = self._clock.monotonic()
        if any(each not in fleet.asked_at for each in living):
            fleet.due_at, fleet.silent_rounds = now, 0
        if living and fleet.asking is None and now >= fleet.due_at:
            turn = fleet.turn(living)
            fleet.asked_at |= dict.fromkeys(turn, now)
            fleet.asking = asyncio.create_task(self._ask(group, fleet, turn), name=f"workers-of-{'/'.join(group)}")
        fresh = sorted(each for each, (_, at) in fleet.answers.items() if now - at <= KEPT_SECONDS)
        return tuple(fleet.answers[each][0] for each in fresh)

    def forget(self, group: Key) -> None:
        fleet = self._fleets.pop(group, None)
        if fleet is not None and fleet.asking is not None:
            fleet.asking.cancel()

    async def close(self) -> None:
        asking = [fleet.asking for fleet in self._fleets.values() if fleet.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, group: Key, fleet: _Fleet, turn: Sequence[_Address]) -> None:
        began = self._clock.monotonic()
        try:
            heard = await asyncio.gather(*(self._client.member(each.pod, each.ip, each.port) for each in turn))
        finally:
            fleet.asking = None
        heard_at = self._clock.wall()
        answers = {
            each: replace(answer, heard_at=heard_at)
            for each, answer in zip(turn, heard, strict=True)
            if answer is not None
        }
        fleet.silent_rounds = 0 if answers else fleet.silent_rounds + 1
        fleet.due_at = began + (SILENT_SECONDS if fleet.silent_rounds >= SILENT_ROUNDS else FRESH_SECONDS)
        known = {each: answer for each, (answer, _) in fleet.answers.items()}
        fleet.answers |= {each: (answer, began) for each, answer in answers.items()}
        if any(known.get(each) != answer for each, answer in answers.items()):
            self._news(group)


def _addresses(pods: Sequence[JsonObject]) -> list[_Address]:
    return [
        _Address(pod["metadata"]["name"], pod["status"]["podIP"], _port(pod), _restarts(pod))
        for pod in pods
        if pod.get("status", {}).get("podIP") and pod["status"].get("phase") == "Running"
    ]


def _restarts(pod: JsonObject) -> int:
    statuses = pod["status"].get("containerStatuses") or ()
    return next((int(each.get("restartCount", 0)) for each in statuses if each.get("name") == CONTAINER), 0)


def _port(pod: JsonObject) -> int:
    """The port of the worker in this pod: pods of different revisions may differ."""
    for container in pod.get("spec", {}).get("containers", ()):
        if container.get("name") == CONTAINER:
            for port in container.get("ports", ()):
                if port.get("name") == "http":
                    return int(port["containerPort"])
    return WORKER_PORT
