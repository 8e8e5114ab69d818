"""One session for each run: what this process knows of it besides its state.

A session is lost with the process, which asks again, and is dropped with the object.
"""

from __future__ import annotations

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
"""Least time between an answer from Kafka about a run and the next question."""


@dataclass(slots=True)
class RunSession(Generic[M]):
    """Knowledge of this process about one run. Used on the event loop only.

    - `memory`: findings of the kind's reads and steps; `make_memory` gives an empty one.
    - `ended_at`: the end of the run, or the first look of a process that did not see it end (monotonic seconds).
    - `settled`: what an ended run left in the cluster was cleared up.
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
        """Drop the findings, and what is still under way for them."""
        self.memory, self._background = self.make_memory(), self.make_background()

    def ask(
        self,
        read: Callable[[], Awaitable[T]],
        take: Callable[[T], None],
        fail: Callable[[Exception], None],
        *,
        seconds: float,
    ) -> None:
        """Have something read in the background within this time, unless that is under way or was done a moment
        ago."""

        async def ask() -> None:
            take(await read())

        self._background.start(
            "question", ask, seconds=seconds, pause=ASK_SECONDS, after_failure=ASK_SECONDS, failed=fail
        )

    def note_end(self) -> None:
        """Remember that the run has ended just now."""
        if self.ended_at is None:
            self.ended_at, self.saw_end = self.clock.monotonic(), True

    def since_end(self) -> float:
        """Seconds since the end, or since the first look of a process that did not see it."""
        now = self.clock.monotonic()
        self.ended_at = now if self.ended_at is None else self.ended_at
        return now - self.ended_at

    def seconds_left(self, run: RunResource, ttl_seconds: int) -> float:
        """Seconds until a run that has ended may be deleted; none are left at 0 and below.

        A process that saw an end measures from it; one that was started since believes what is remembered. So a wall
        clock that jumps ahead deletes nothing that this process saw end. One that jumps back, and leaves ends in the
        future, delays a deletion by the whole time at most.
        """
        left = ttl_seconds - self.since_end()
        finished, created = map(times.from_text, (run.status.get("finishedAt"), run.metadata.creation_timestamp))
        if self.saw_end or finished is None:
            return left
        if created is not None and created < self.clock.wall():
            finished = max(finished, created)  # one that was made again is shown as long as any other
        return min(left, finished + ttl_seconds - self.clock.wall())


class RunSessions(Generic[M]):
    """The sessions of all runs of one kind. Used on the event loop only; `close` ends the questions under way."""

    def __init__(self, clock: Clock, make_memory: Callable[[], M], again: Callable[[Key], None]) -> None:
        self._clock, self._make_memory, self._again = clock, make_memory, again
        self._tasks = Tasks()
        self._sessions: dict[Key, RunSession[M]] = {}

    def open(self, key: Key, uid: str) -> RunSession[M]:
        """The session of an object, a new one for one that takes the place of a namesake."""
        session = self._sessions.get(key)
        if session is None or session.uid != uid:
            make = partial(Background, "/".join(key), self._clock, self._tasks, partial(self._again, key), FAILURES)
            session = self._sessions[key] = RunSession(key, uid, self._clock, self._make_memory, make)
        return session

    def drop(self, key: Key) -> None:
        self._sessions.pop(key, None)

    async def close(self) -> None:
        await self._tasks.close()
