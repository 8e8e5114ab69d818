"""Work for one object in the background: its reconciles never wait for it.

A reconcile starts a piece of work and takes what the last one has left. The end of a piece queues the object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.clock import Clock

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 10.0
"""Pause between two pieces of work of a name. In memory only: a new process may begin at once."""


class Tasks:
    """The running work of all objects; `close` cancels it and the requeues that are still to come."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self.timers: set[asyncio.TimerHandle] = set()

    async def close(self) -> None:
        for timer in self.timers:
            timer.cancel()
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@dataclass(slots=True)
class Background:
    """The work of one object, at most one piece of each name at a time.

    There is a pause between two pieces of a name, also after success, as the observation behind the next one lags.
    `again` queues the object; `failures` are the errors that end a piece of work, and that the next one may not meet.
    Used on the event loop only.
    """

    name: str
    clock: Clock
    tasks: Tasks
    again: Callable[[], None]
    failures: tuple[type[Exception], ...]
    _running: set[str] = field(default_factory=set)
    _pauses: dict[str, float] = field(default_factory=dict)
    """Ends of pauses, monotonic seconds."""
    _returns: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """Requeues at the end of a pause."""

    def start(
        self,
        work: str,
        make: Callable[[], Awaitable[None]],
        *,
        seconds: float,
        pause: float = PAUSE_SECONDS,
        after_failure: float = PAUSE_SECONDS,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Start a piece of work, unless one of this name is running or the pause after the last one is not over.

        It ends within `seconds`. The `pause` that follows on success and the one `after_failure` are in seconds, too.
        A failure is passed to `failed`, or else logged.
        """
        if work in self._running:
            return
        left = self._pauses.get(work, 0.0) - self.clock.monotonic()
        if left > 0.0:
            self._come_back(work, left)
            return
        self._running.add(work)
        task = asyncio.create_task(
            self._run(work, make, seconds, (pause, after_failure), failed), name=f"{work}-of-{self.name}"
        )
        self.tasks.running.add(task)
        task.add_done_callback(self.tasks.running.discard)

    async def _run(
        self,
        work: str,
        make: Callable[[], Awaitable[None]],
        seconds: float,
        pauses: tuple[float, float],
        failed: Callable[[Exception], None] | None,
    ) -> None:
        after = pauses[1]
        try:
            async with asyncio.timeout(seconds):
                await make()
                after = pauses[0]
        except self.failures as error:
            if failed is not None:
                failed(error)
            else:  # the outcome is unknown until the next observation
                fields = {"key": self.name, "action": work, "error": str(error) or type(error).__name__}
                log.warning("action on Kafka failed", extra=fields)
        finally:
            self._running.discard(work)
            self._pauses[work] = self.clock.monotonic() + after
        self.again()

    def _come_back(self, work: str, seconds: float) -> None:
        """Queue the object at the end of the pause: there may be no other event."""

        def over() -> None:
            self.tasks.timers.discard(self._returns.pop(work))
            self.again()

        if work not in self._returns:
            timer = self._returns[work] = asyncio.get_running_loop().call_later(seconds, over)
            self.tasks.timers.add(timer)
