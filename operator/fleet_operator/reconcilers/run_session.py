"""One session per run: in-memory data about the run, in addition to the stored state.

A session is dropped when its object is deleted. A new process starts without sessions and reads from Kafka again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1.model import RunResource
from fleet_operator.planning import times
from fleet_operator.reconcilers.context import FAILURES
from fleet_operator.runtime.background import Background, Tasks
from fleet_operator.runtime.cache import Key

M = TypeVar("M")
T = TypeVar("T")

ASK_SECONDS: Final = 4.0
"""Shortest pause in seconds between two reads from Kafka for one run."""


@dataclass(slots=True)
class RunSession(Generic[M]):
    """In-memory data about one run. Used on the event loop only.

    - `memory`: results of reads and steps. Its type depends on the kind of run; `make_memory` creates an empty one.
    - `ended_at`: time of the run's end or, if this process did not see the end, of its first reconcile of the ended run
      (monotonic seconds).
    - `settled`: the clean-up after the ended run is done.
    """

    key: Key
    uid: str
    clock: Clock
    make_memory: Callable[[], M]
    make_background: Callable[[], Background]
    memory: M = field(init=False)
    ended_at: float | None = None
    saw_end: bool = False
    settled: bool = False
    _background: Background = field(init=False)

    def __post_init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Drop all results, including those of reads that are still running."""
        self.memory, self._background = self.make_memory(), self.make_background()

    def ask(
        self,
        read: Callable[[], Awaitable[T]],
        take: Callable[[T], None],
        fail: Callable[[Exception], None],
        *,
        seconds: float,
    ) -> None:
        """Start a background read with this timeout, unless a read is running or ended less than ASK_SECONDS ago."""

        async def ask() -> None:
            take(await read())

        self._background.start(
            "question", ask, seconds=seconds, pause=ASK_SECONDS, after_failure=ASK_SECONDS, failed=fail
        )

    def record_end(self) -> None:
        if self.ended_at is None:
            self.ended_at, self.saw_end = self.clock.monotonic(), True

    def since_end(self) -> float:
        """Seconds since the end of the run or, if this process did not see the end, since its first reconcile of the
        ended run."""
        now = self.clock.monotonic()
        self.ended_at = now if self.ended_at is None else self.ended_at
        return now - self.ended_at

    def seconds_left(self, run: RunResource, ttl_seconds: int) -> float:
        """Seconds until an ended run may be deleted; 0 or less means now.

        A process that saw the run's end measures the time since then with the monotonic clock, so a jump of the wall
        clock cannot cause an early deletion. A later process uses the stored time of the end. If the wall clock has
        jumped back, this time may be in the future; the deletion is then late by at most the TTL.
        """
        left = ttl_seconds - self.since_end()
        finished, created = map(times.from_text, (run.status.get("finishedAt"), run.metadata.creation_timestamp))
        if self.saw_end or finished is None:
            return left
        if created is not None and created < self.clock.wall():
            finished = max(finished, created)  # a recreated object of an ended run is kept for the whole TTL
        return min(left, finished + ttl_seconds - self.clock.wall())


class RunSessions(Generic[M]):
    def __init__(self, clock: Clock, make_memory: Callable[[], M], again: Callable[[Key], None]) -> None:
        self._clock, self._make_memory, self._again = clock, make_memory, again
        self.tasks = Tasks()
        self._sessions: dict[Key, RunSession[M]] = {}

    def open(self, key: Key, uid: str) -> RunSession[M]:
        """The session of an object; a new session if the object has replaced a namesake."""
        session = self._sessions.get(key)
        if session is None or session.uid != uid:
            make = partial(Background, "/".join(key), self._clock, self.tasks, partial(self._again, key), FAILURES)
            session = self._sessions[key] = RunSession(key, uid, self._clock, self._make_memory, make)
        return session

    def drop(self, key: Key) -> None:
        self._sessions.pop(key, None)
