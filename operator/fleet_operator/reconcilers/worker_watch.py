"""What the workers of each fleet say of themselves, asked in the background.

A reconcile never waits for a worker: it reads what was last said and, when that is old, has it asked again; an answer
that says something new brings the group back into the queue. Where no worker can be reached the questions become rare.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.clients.worker_status import WorkerStatusClient
from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.planning.pod_template import CONTAINER
from fleet_operator.planning.sidecar import WORKER_PORT
from fleet_operator.runtime.cache import Key

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 60.0
"""How long to leave a fleet alone of which no worker answered: the operator is probably outside the pod network."""
WORKERS_MAX: Final = 20
"""How many workers of one fleet are asked; generation and leader are the same whoever tells."""


@dataclass(slots=True)
class _Fleet:
    """One fleet's last answers, and when they were asked for (monotonic seconds)."""

    answers: tuple[WorkerObservation, ...] = ()
    due_at: float = 0.0
    pods: frozenset[tuple[str, str, int]] = frozenset()
    asking: asyncio.Task[None] | None = None


class WorkerWatch:
    """All fleets' workers. `close` at the end; the rest at any time, on the event loop."""

    def __init__(self, client: WorkerStatusClient, clock: Clock, news: Callable[[Key], None]) -> None:
        self._client = client
        self._clock = clock
        self._news = news
        self._fleets: dict[Key, _Fleet] = {}

    def answers(self, group: Key, pods: Sequence[JsonObject]) -> tuple[WorkerObservation, ...]:
        """What the workers in these pods last said; has them asked again if that is old or the pods are others."""
        fleet = self._fleets.setdefault(group, _Fleet())
        addresses = frozenset(_addresses(pods))
        now = self._clock.monotonic()
        if addresses and fleet.asking is None and (now >= fleet.due_at or addresses != fleet.pods):
            fleet.pods = addresses
            fleet.asking = asyncio.create_task(self._ask(group, fleet), name=f"workers-of-{'/'.join(group)}")
        living = {pod for pod, _, _ in addresses}
        return tuple(answer for answer in fleet.answers if answer.pod in living)

    def forget(self, group: Key) -> None:
        """Drop a fleet that is gone."""
        fleet = self._fleets.pop(group, None)
        if fleet is not None and fleet.asking is not None:
            fleet.asking.cancel()

    async def close(self) -> None:
        """Stop asking."""
        asking = [fleet.asking for fleet in self._fleets.values() if fleet.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, group: Key, fleet: _Fleet) -> None:
        try:
            asked = sorted(fleet.pods)[:WORKERS_MAX]
            heard = await asyncio.gather(*(self._client.member(pod, ip, port) for pod, ip, port in asked))
        finally:
            fleet.asking = None
        answers = tuple(answer for answer in heard if answer is not None)
        fleet.due_at = self._clock.monotonic() + (FRESH_SECONDS if answers else SILENT_SECONDS)
        changed, fleet.answers = answers != fleet.answers, answers
        if changed:
            self._news(group)


def _addresses(pods: Sequence[JsonObject]) -> list[tuple[str, str, int]]:
    """Name, address and port of each running pod."""
    return [
        (pod["metadata"]["name"], pod["status"]["podIP"], _port(pod))
        for pod in pods
        if pod.get("status", {}).get("podIP") and pod["status"].get("phase") == "Running"
    ]


def _port(pod: JsonObject) -> int:
    """Where the worker in this pod answers: pods of different revisions may differ."""
    for container in pod.get("spec", {}).get("containers", ()):
        if container.get("name") == CONTAINER:
            for port in container.get("ports", ()):
                if port.get("name") == "http":
                    return int(port["containerPort"])
    return WORKER_PORT
