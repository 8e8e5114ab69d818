"""Watchdog of the event loop: one blocking call stops watching, reconciling and probes all at once.

A task measures how late each of its ticks is. A loop that does not turn cannot say so itself, so a dump of all stacks
is armed at every tick for a time well after the next one; it goes to stderr while the loop still hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
from typing import Final

from fleet_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
LATE_SECONDS: Final = 0.5
"""Worth a line in the log."""
DEAD_SECONDS: Final = 10.0
"""Worth failing the liveness probe, and a dump of all stacks."""


class LoopWatchdog:
    """Measures the loop it is started on. `start` and `stop` once each."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lag = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start measuring."""
        self._task = asyncio.create_task(self._tick(), name="loop-watchdog")

    async def stop(self) -> None:
        """Stop measuring and disarm the dump."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def complaint(self) -> str | None:
        """The reason why the process should be restarted, or None."""
        if self._lag > DEAD_SECONDS:
            return f"the event loop was blocked for {self._lag:.1f} s"
        return None

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                faulthandler.dump_traceback_later(TICK_SECONDS + DEAD_SECONDS)
                await asyncio.sleep(TICK_SECONDS)
                self._lag = max(loop.time() - began - TICK_SECONDS, 0.0)
                self._metrics.loop_lag.set(self._lag)
                if self._lag > LATE_SECONDS:
                    log.warning("event loop was late", extra={"late_seconds": round(self._lag, 2)})
        finally:
            faulthandler.cancel_dump_traceback_later()
