"""The workers' own reports, read in the background: main and retry workers of each group, in turns where many.

A reconcile never waits for a worker: it takes the last answer. A task asks the workers again and again, those of fleets
that are followed closely more often; an answer with a change, and one that came no more, bring the group back into the
queue. Many workers are asked less often, and so is one that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from fleet_consumer.clock import Clock
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.clients.worker_status import WorkerStatusClient
from fleet_operator.planning.fleet.sidecar import WORKER_PORT
from fleet_operator.planning.labels import CONTAINER
from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.runtime.cache import Key

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 10.0
CALM_SECONDS: Final = 60.0
"""Interval for fleets that are not followed closely: nothing waits for them, and no report shows a problem."""
ASKED_PER_SECOND_MAX: Final = 50
"""Workers of closely followed fleets asked in a second, on average. With more of them in all each is asked less often,
but no less than every SLOWEST_SECONDS."""
SLOWEST_SECONDS: Final = 30.0
TICK_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 60.0
"""The longest pause after a worker did not answer: the operator may be outside the pod network. The first pause is that
of a closely followed fleet, and each further one is twice as long."""
CALLS_AT_ONCE_MAX: Final = 32
NAMESPACE_CALLS_MAX: Final = 16
"""Calls at once, in all and to one namespace: each call to a silent worker takes two seconds."""
KEPT_SECONDS: Final = 60.0
CALM_KEPT_SECONDS: Final = 150.0
"""Time for which an answer counts when the worker has not answered again, of fleets that are followed closely and of
others; longer where a worker's turn comes less often."""
TURNS_KEPT: Final = 2
"""An answer counts at least until the worker was to be asked so many times more."""
ASKED_MAX: Final = 50
ROUNDS_MAX: Final = 3
"""A round asks at least so many workers of one group, and all of them have their turn within so many rounds."""


class _Address(NamedTuple):
    """Address of a worker. A restarted worker has another one, so that its earlier answers are dropped."""

    pod: str
    ip: str
    port: int
    uid: str
    restarts: int


class _Answer(NamedTuple):
    """A report of a worker, when it was asked for it, and until when that counts at least (monotonic seconds)."""

    said: WorkerObservation
    at: float
    until: float

    def counts(self, now: float, kept_s: float) -> bool:
        return now <= max(self.until, self.at + kept_s)


@dataclass(slots=True)
class _Fleet:
    """One group's last answers, when each worker was asked and when the next round is due (monotonic seconds).

    `pauses` has the seconds for which a worker that did not answer is not asked again.
    """

    answers: dict[_Address, _Answer] = field(default_factory=dict)
    asked_at: dict[_Address, float] = field(default_factory=dict)
    pauses: dict[_Address, float] = field(default_factory=dict)
    due_at: float = 0.0
    closely: bool = True
    living: frozenset[_Address] = frozenset()
    asking: asyncio.Task[None] | None = None

    def kept_s(self, interval: float) -> float:
        """Time for which an answer counts at this interval between rounds: a worker may have to wait for its turn."""
        rounds = -(-len(self.living) // _at_once(len(self.living)))
        return max(KEPT_SECONDS if self.closely else CALM_KEPT_SECONDS, TURNS_KEPT * rounds * interval)

    def forget_all_but(self, living: Collection[_Address]) -> None:
        self.answers = {each: answer for each, answer in self.answers.items() if each in living}
        self.asked_at = {each: at for each, at in self.asked_at.items() if each in living}
        self.pauses = {each: pause for each, pause in self.pauses.items() if each in living}

    def turn(self, now: float) -> list[_Address]:
        """The workers of the next round: those that have waited longest."""
        asked = {each: self.asked_at.get(each, float("-inf")) for each in self.living}
        due = [each for each, at in asked.items() if at + self.pauses.get(each, 0.0) <= now]
        return sorted(due, key=lambda each: (asked[each], each))[: _at_once(len(self.living))]


class WorkerWatch:
    """All fleets' workers. `keep_asking` goes on in the background, until `close`; all on the event loop."""

    def __init__(self, client: WorkerStatusClient, clock: Clock, news: Callable[[Key], None]) -> None:
        self._client = client
        self._clock = clock
        self._news = news
        self._fleets: dict[Key, _Fleet] = {}
        self._close = 0  # living workers of closely followed fleets
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE_MAX)
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()  # of namespaces that have calls

    def answers(self, group: Key, pods: Sequence[JsonObject]) -> tuple[WorkerObservation, ...]:
        """The last answers of the workers in these pods, main and retry; new workers are asked soon."""
        fleet = self._fleets.setdefault(group, _Fleet())
        living = frozenset(_addresses(pods))
        if living != fleet.living:
            self._close += (len(living) - len(fleet.living)) if fleet.closely else 0
            fleet.living = living
            fleet.forget_all_but(living)
        now = self._clock.monotonic()
        if any(each not in fleet.asked_at for each in living):
            fleet.due_at = now
        self._ask_if_due(group, fleet, now)
        return self.latest(group)

    def latest(self, group: Key) -> tuple[WorkerObservation, ...]:
        """The last answers of a group's workers, without asking for more."""
        fleet = self._fleets.get(group)
        if fleet is None:
            return ()
        now, kept_s = self._clock.monotonic(), fleet.kept_s(self._interval(fleet))
        return tuple(answer.said for _, answer in sorted(fleet.answers.items()) if answer.counts(now, kept_s))

    def follow(self, group: Key, *, closely: bool) -> None:
        """Set whether a group's workers are asked often; `answers` comes first."""
        fleet = self._fleets.get(group)
        if fleet is not None and closely != fleet.closely:
            fleet.closely = closely
            self._close += len(fleet.living) if closely else -len(fleet.living)
            fleet.due_at = min(fleet.due_at, self._clock.monotonic() + FRESH_SECONDS)

    async def keep_asking(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock.monotonic()
            for group, fleet in list(self._fleets.items()):
                if not fleet.living and not fleet.answers:
                    continue
                kept_s = fleet.kept_s(self._interval(fleet)) if fleet.answers else 0.0
                lapsed = [each for each, answer in fleet.answers.items() if not answer.counts(now, kept_s)]
                for each in lapsed:
                    del fleet.answers[each]
                if lapsed:
                    self._news(group)
                self._ask_if_due(group, fleet, now)

    def _ask_if_due(self, group: Key, fleet: _Fleet, now: float) -> None:
        if not fleet.living or fleet.asking is not None or now < fleet.due_at:
            return
        fleet.due_at = now + self._interval(fleet)
        if turn := fleet.turn(now):
            fleet.asked_at |= dict.fromkeys(turn, now)
            fleet.asking = asyncio.create_task(self._ask(group, fleet, turn), name=f"workers-of-{'/'.join(group)}")

    def _interval(self, fleet: _Fleet) -> float:
        """Seconds from one round of a fleet to the next."""
        interval = max(FRESH_SECONDS, min(SLOWEST_SECONDS, self._close / ASKED_PER_SECOND_MAX))
        return interval if fleet.closely else max(interval, CALM_SECONDS)

    def forget(self, group: Key) -> None:
        fleet = self._fleets.pop(group, None)
        if fleet is None:
            return
        self._close -= len(fleet.living) if fleet.closely else 0
        if fleet.asking is not None:
            fleet.asking.cancel()

    async def close(self) -> None:
        asking = [fleet.asking for fleet in self._fleets.values() if fleet.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, group: Key, fleet: _Fleet, turn: Sequence[_Address]) -> None:
        try:
            news = await asyncio.gather(*(self._ask_worker(group[0], fleet, each) for each in turn))
        finally:
            fleet.asking = None
        if any(news):
            self._news(group)

    async def _ask_worker(self, namespace: str, fleet: _Fleet, each: _Address) -> bool:
        """Ask a worker once it has its turn; True if it says something else than before."""
        # Namespaces take turns: the queue for all calls has no more of one of them than its share.
        share = self._shares.setdefault(namespace, asyncio.Semaphore(NAMESPACE_CALLS_MAX))
        async with share, self._calls:
            at = self._clock.monotonic()
            answer = await self._client.member(each.pod, each.ip, each.port, each.uid)
        if each not in fleet.living:
            return False
        interval, before = self._interval(fleet), fleet.answers.get(each)
        fleet.asked_at[each] = at
        if answer is None:
            fleet.pauses[each] = pause = min(SILENT_SECONDS, 2 * fleet.pauses.get(each, FRESH_SECONDS / 2))
            if before is None:  # it may have begun just now and not listen yet, and its fleet's next round is far away
                fleet.due_at = min(fleet.due_at, at + pause)
            return False
        fleet.pauses.pop(each, None)
        said = replace(answer, heard_at=self._clock.wall())
        fleet.answers[each] = _Answer(said, at, at + fleet.kept_s(interval))
        return before is None or before.said != said


def _at_once(living: int) -> int:
    """The most workers of a fleet in one round."""
    return max(ASKED_MAX, -(-living // ROUNDS_MAX))


def _addresses(pods: Sequence[JsonObject]) -> list[_Address]:
    return [
        _Address(pod["metadata"]["name"], pod["status"]["podIP"], _port(pod), pod["metadata"]["uid"], _restarts(pod))
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
