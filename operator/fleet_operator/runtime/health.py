"""The operator's HTTP endpoints: probes and metrics.

Liveness answers whether the event loop still turns, never whether Kafka or the API server is well: restarting this
process mends neither. A blocking call stops watching, reconciling and probes all at once: a task measures how late each
of its ticks is. A loop that does not turn cannot say so itself, so a dump of all stacks is armed at every tick for a
time well after the next one; it goes to stderr while the loop still hangs.

Readiness means "able to do my part": a standby that waits for the Lease is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from fleet_operator.runtime.metrics import CONTENT_TYPE, Metrics

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
        self._task = asyncio.create_task(self._tick(), name="loop-watchdog")

    async def stop(self) -> None:
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


log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HealthServer:
    """Serves /healthz and /readyz on one port and /metrics on another; port 0 takes a free one (see `ports`).

    `ready` returns None, or what is not ready yet.
    """

    def __init__(
        self,
        *,
        metrics: Metrics,
        watchdog: LoopWatchdog,
        ready: Callable[[], str | None],
        health_port: int,
        metrics_port: int,
    ) -> None:
        self._metrics = metrics
        self._watchdog = watchdog
        self._ready = ready
        self._wanted = (health_port, metrics_port)
        self._rendering = asyncio.Lock()
        self._runners: list[web.AppRunner] = []
        self.ports: tuple[int, ...] = ()

    async def start(self) -> None:
        health = {"/healthz": self._healthz, "/readyz": self._readyz}
        ports = []
        for port, routes in zip(self._wanted, (health, {"/metrics": self._scrape}), strict=True):
            ports.append(await self._serve(port, routes))
        self.ports = tuple(ports)

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def _serve(self, port: int, routes: Mapping[str, Handler]) -> int:
        app = web.Application()
        for path, handler in routes.items():
            app.router.add_get(path, handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, port=port).start()
        # With port 0, IPv4 and IPv6 get a port each; the reported one is that of IPv4 where there is one.
        address = min(runner.addresses, key=len)
        return int(address[1])

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._watchdog.complaint())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._ready())

    async def _scrape(self, _: web.Request) -> web.Response:
        # Thousands of groups take a second of CPU, in which the Lease must be renewed: a thread, one at a time.
        async with self._rendering:
            body = await asyncio.to_thread(self._metrics.text)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _answer(complaint: str | None) -> web.Response:
    return web.Response(text=(complaint or "ok") + "\n", status=503 if complaint else 200)
