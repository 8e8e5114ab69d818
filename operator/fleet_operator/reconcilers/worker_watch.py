"""Reads the reports of all main and retry workers in the background; the workers of a large group are asked in rounds.

A reconcile never waits for a worker, but uses its last answer. A background task asks workers periodically, and more
often while records wait in Kafka or a report shows a problem. A changed or expired answer queues the group. Workers are
asked less often if there are many of them, or if they do not answer.
"""

import asyncio
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

FRESH_SECONDS: Final = 10.0
CALM_SECONDS: Final = 60.0
"""Interval in seconds between rounds of a fleet while no records wait in Kafka and no report shows a problem."""
ASKED_PER_SECOND_MAX: Final = 50
"""Limit for all fleets that are asked often, together: the average number of workers that are asked per second. If
these fleets have too many workers for this limit, the interval between rounds grows, up to SLOWEST_SECONDS."""
SLOWEST_SECONDS: Final = 30.0
TICK_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 60.0
"""Longest pause before a worker that did not answer is asked again. A worker may never answer, for example if the
operator runs outside the pod network. The first pause is FRESH_SECONDS, and each further pause is twice as long."""
CALLS_AT_ONCE_MAX: Final = 32
NAMESPACE_CALLS_MAX: Final = 16
"""Largest number of concurrent calls to the workers of one namespace; CALLS_AT_ONCE_MAX limits the calls to workers of
all namespaces. A call to a worker that does not answer takes two seconds."""
KEPT_SECONDS: Final = 60.0
CALM_KEPT_SECONDS: Final = 150.0
"""Minimum time in seconds for which a worker's last answer is valid. In fleets that are asked often, this time is
KEPT_SECONDS. In large fleets, where a worker is asked less often, answers are valid for longer (ROUNDS_KEPT)."""
ROUNDS_KEPT: Final = 2
"""Minimum validity of an answer, as a multiple of the time in which every worker of the fleet can be asked once."""
ASKED_MAX: Final = 50
ROUNDS_MAX: Final = 3
"""Largest number of rounds needed to ask every worker of a group once. A round asks up to ASKED_MAX workers, or more if
the group would otherwise need more rounds."""


class _Address(NamedTuple):
    """Identity and address of a worker. A restart changes `restarts`, so that earlier answers are dropped."""

    pod: str
    ip: str
    port: int
    uid: str
    restarts: int


class _Answer(NamedTuple):
    """A worker's report, the time of the request, and the earliest time at which the report expires (monotonic
    seconds)."""

    said: WorkerObservation
    at: float
    until: float

    def counts(self, now: float, kept_s: float) -> bool:
        return now <= max(self.until, self.at + kept_s)


@dataclass(slots=True)
class _Fleet:
    """The state of one group: its workers' last answers, the times of the last requests, and the time of the next round
    (monotonic seconds).

    - `pauses`: for each worker that did not answer, the minimum number of seconds between the last and the next
      request.
    - `closely`: True if the workers are asked often, because records wait in Kafka or a report shows a problem.
    """

    answers: dict[_Address, _Answer] = field(default_factory=dict)
    asked_at: dict[_Address, float] = field(default_factory=dict)
    pauses: dict[_Address, float] = field(default_factory=dict)
    due_at: float = 0.0
    closely: bool = True
    living: frozenset[_Address] = frozenset()
    asking: asyncio.Task[None] | None = None

    def kept_s(self, interval: float) -> float:
        """Seconds for which an answer is valid. `interval`: seconds between rounds. An answer is valid for several
        rounds, because a worker of a large group is not asked in each round."""
        rounds = -(-len(self.living) // _at_once(len(self.living)))
        return max(KEPT_SECONDS if self.closely else CALM_KEPT_SECONDS, ROUNDS_KEPT * rounds * interval)

    def retain(self, living: Collection[_Address]) -> None:
        self.answers = {each: answer for each, answer in self.answers.items() if each in living}
        self.asked_at = {each: at for each, at in self.asked_at.items() if each in living}
        self.pauses = {each: pause for each, pause in self.pauses.items() if each in living}

    def next_round(self, now: float) -> list[_Address]:
        """The workers to ask in the next round: those that have not been asked for the longest time."""
        asked = {each: self.asked_at.get(each, float("-inf")) for each in self.living}
        due = [each for each, at in asked.items() if at + self.pauses.get(each, 0.0) <= now]
        return sorted(due, key=lambda each: (asked[each], each))[: _at_once(len(self.living))]


class WorkerWatch:
    """Asks the workers of all fleets for reports; `keep_asking` runs until `close`. Used on the event loop only."""

    def __init__(self, client: WorkerStatusClient, clock: Clock, changed: Callable[[Key], None]) -> None:
        self._client = client
        self._clock = clock
        self._changed = changed
        self._fleets: dict[Key, _Fleet] = {}
        self._close = 0  # number of running workers in fleets that are asked often
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE_MAX)
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()  # limits of concurrent calls, keyed by namespace

    def answers(self, group: Key, pods: Sequence[JsonObject]) -> tuple[WorkerObservation, ...]:
        """The last answers of the workers in these pods; new workers are asked soon."""
        fleet = self._fleets.setdefault(group, _Fleet())
        living = frozenset(_addresses(pods))
        if living != fleet.living:
            self._close += (len(living) - len(fleet.living)) if fleet.closely else 0
            fleet.living = living
            fleet.retain(living)
        now = self._clock.monotonic()
        if any(each not in fleet.asked_at for each in living):
            fleet.due_at = now
        self._ask_if_due(group, fleet, now)
        return self.latest(group)

    def latest(self, group: Key) -> tuple[WorkerObservation, ...]:
        """The last answers of a group's workers; does not ask workers for new answers."""
        fleet = self._fleets.get(group)
        if fleet is None:
            return ()
        now, kept_s = self._clock.monotonic(), fleet.kept_s(self._interval(fleet))
        return tuple(answer.said for _, answer in sorted(fleet.answers.items()) if answer.counts(now, kept_s))

    def follow(self, group: Key, *, closely: bool) -> None:
        """Set if the workers of a group are asked often. `answers` must have been called for the group."""
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
                    self._changed(group)
                self._ask_if_due(group, fleet, now)

    def _ask_if_due(self, group: Key, fleet: _Fleet, now: float) -> None:
        if not fleet.living or fleet.asking is not None or now < fleet.due_at:
            return
        fleet.due_at = now + self._interval(fleet)
        if workers := fleet.next_round(now):
            fleet.asked_at |= dict.fromkeys(workers, now)
            fleet.asking = asyncio.create_task(self._ask(group, fleet, workers), name=f"workers-of-{'/'.join(group)}")

    def _interval(self, fleet: _Fleet) -> float:
        """Seconds from one round of a fleet to the next."""
        interval = max(FRESH_SECONDS, min(SLOWEST_SECONDS, self._close / ASKED_PER_SECOND_MAX))
        return interval if fleet.closely else max(interval, CALM_SECONDS)

    def drop_group(self, group: Key) -> None:
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

    async def _ask(self, group: Key, fleet: _Fleet, workers: Sequence[_Address]) -> None:
        try:
            changes = await asyncio.gather(*(self._ask_worker(group[0], fleet, each) for each in workers))
        finally:
            fleet.asking = None
        if any(changes):
            self._changed(group)

    async def _ask_worker(self, namespace: str, fleet: _Fleet, each: _Address) -> bool:
        """Ask a worker, within the limits of concurrent calls; return True if the worker's answer has changed."""
        # The namespace's semaphore is acquired first, so that calls to one namespace cannot occupy the semaphore of all
        # calls.
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
            if before is None:  # the worker may have just started and may not listen yet, so ask again soon
                fleet.due_at = min(fleet.due_at, at + pause)
            return False
        fleet.pauses.pop(each, None)
        said = replace(answer, heard_at=self._clock.wall())
        fleet.answers[each] = _Answer(said, at, at + fleet.kept_s(interval))
        return before is None or before.said != said


def _at_once(living: int) -> int:
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
    """The port of the worker in this pod. Pods of different revisions may use different ports."""
    containers = (each for each in pod.get("spec", {}).get("containers", ()) if each.get("name") == CONTAINER)
    ports = (port for container in containers for port in container.get("ports", ()))
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "http"), WORKER_PORT)
