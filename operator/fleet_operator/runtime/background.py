"""Runs background tasks of one object, so that its reconciles never wait for slow actions on Kafka.

A reconcile starts a task. The object is queued again when the task ends, and the next reconcile reads the result.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.clock import Clock

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 10.0
"""Pause between two tasks of the same name. Pauses are kept in memory only: a new process starts without pauses."""


class Tasks:
    """The running tasks and pending requeues of all objects; `close` cancels both."""

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
    """The background tasks of one object. At most one task of each name runs at a time. Used on the event loop only.

    A pause follows each task, even a successful one, because the next task may rely on an observation from before the
    previous task. `again` queues the object for a reconcile. `failures`: classes of expected errors, after which a
    later task may succeed.
    """

    name: str
    clock: Clock
    tasks: Tasks
    again: Callable[[], None]
    failures: tuple[type[Exception], ...]
    _running: set[str] = field(default_factory=set)
    _pauses: dict[str, float] = field(default_factory=dict)
    """End of each pause in monotonic seconds, keyed by task name."""
    _returns: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """Timers that queue the object at the end of a pause, keyed by task name."""

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
        """Start a task, unless a task of this name is running, or the pause after the previous task has not ended. The
        task is cancelled after `seconds`. The pause after the task lasts `pause` seconds after a success,
        `after_failure` seconds after a failure. A failure is passed to the function `failed` or, without `failed`,
        logged."""
        if work in self._running:
            return
        left = self._pauses.get(work, 0.0) - self.clock.monotonic()
        if left > 0.0:
            self._come_back(work, left)
            return

        async def run() -> None:
            after = after_failure
            try:
                async with asyncio.timeout(seconds):
                    await make()
                    after = pause
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

        self._running.add(work)
        task = asyncio.create_task(run(), name=f"{work}-of-{self.name}")
        self.tasks.running.add(task)
        task.add_done_callback(self.tasks.running.discard)

    def _come_back(self, work: str, seconds: float) -> None:
        """Queue the object at the end of the pause, because no other event may queue it."""

        def over() -> None:
            self.tasks.timers.discard(self._returns.pop(work))
            self.again()

        if work not in self._returns:
            timer = self._returns[work] = asyncio.get_running_loop().call_later(seconds, over)
            self.tasks.timers.add(timer)
