"""The operator's HTTP endpoints: probes and metrics.

The liveness probe checks only that the event loop runs, because a restart fixes neither Kafka nor the API server. A
blocking call would stop watches, reconciles and probes alike. So a task ticks at a fixed interval and measures by how
much its ticks are late. A blocked loop cannot report anything. Therefore each tick also starts a timer, which dumps all
stacks to stderr if the next tick is too late.

A standby that waits for the Lease is ready. Probes do not use kopf's `on.probe`: kopf answers probes only after its
start, and a standby, which has not started kopf, must answer too.
"""

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
"""Delay above which a late tick is logged."""
DEAD_SECONDS: Final = 10.0
"""Delay above which the liveness probe fails and all stacks are dumped."""


class LoopWatchdog:
    """Measures the delay of the event loop on which it was started. Call `start` and `stop` once each."""

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
        """The reason why the liveness probe fails, or None."""
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
    """Serves /healthz and /readyz on one port and /metrics on another. With port 0, a free port is used (see `ports`).
    `ready` returns None, or the reason why the process is not ready."""

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
        self._health_port, self._metrics_port = health_port, metrics_port
        self._rendering = asyncio.Lock()
        self._runners: list[web.AppRunner] = []
        self.ports: tuple[int, ...] = ()

    async def start(self) -> None:
        health = await self._serve(self._health_port, {"/healthz": self._healthz, "/readyz": self._readyz})
        self.ports = (health, await self._serve(self._metrics_port, {"/metrics": self._scrape}))

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
        # With port 0, IPv4 and IPv6 get different ports. The IPv4 port is reported, if there is an IPv4 socket.
        address = min(runner.addresses, key=len)
        return int(address[1])

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._watchdog.complaint())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._ready())

    async def _scrape(self, _: web.Request) -> web.Response:
        # Metrics are rendered on a thread, for one scrape at a time, because thousands of groups take a second of CPU
        # time.
        async with self._rendering:
            body = await asyncio.to_thread(self._metrics.text)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _answer(complaint: str | None) -> web.Response:
    return web.Response(text=(complaint or "ok") + "\n", status=503 if complaint else 200)
