"""Runs worker tasks that take keys from the work queue and reconcile them.

A reconcile returns the seconds after which the key is due again, or None if only an event makes it due. If it raises an
error, the key is retried with backoff. Each key is reconciled by one worker at a time; different keys are reconciled
concurrently, up to the number of workers.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fleet_operator.clients.kinds import Kind
from fleet_operator.clients.kube import KubeError
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.keyed_queue import KeyedQueue
from fleet_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 10.0
"""Maximum time for which `stop` waits for running reconciles: longer than a normal reconcile, shorter than the pod's
grace period."""


class Dispatcher:
    """A fixed number of worker tasks. Call `start` and `stop` once each, `add` at any time, all on the event loop.

    A KubeError from `reconcile` is expected, and is logged without its stack. Any other error is a bug, and is logged
    with its stack. `kind` is the kind of the keys in logs and metrics.
    """

    def __init__(
        self, kind: str, reconcile: Callable[[Key], Awaitable[float | None]], *, count: int, metrics: Metrics
    ) -> None:
        self._kind = kind
        self._reconcile = reconcile
        self._count = count
        self._metrics = metrics
        self._queue = KeyedQueue()
        self._chance = random.Random()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Start the workers. Keys may already have been added."""
        assert not self._tasks, "workers are started once"
        now = asyncio.get_running_loop().time
        # Computed at each scrape: no worker could update the depth while all workers are busy, when it grows most.
        self._metrics.queue_depth.labels(self._kind).set_function(lambda: self._queue.depth(now()))
        for number in range(self._count):
            self._tasks.append(asyncio.create_task(self._work(), name=f"{self._kind}-worker-{number}"))

    async def stop(self) -> None:
        """Take no more keys, and wait for running reconciles; those still running after DRAIN_SECONDS are cancelled."""
        self._stopping = True
        self._wake.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=DRAIN_SECONDS)
            if late:
                log.warning("reconciles cut short", extra={"kind": self._kind, "keys": sorted(self._queue.working)})
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def add(self, key: Key) -> None:
        self._queue.add(key, self._now())
        self._wake.set()

    def add_new(self, key: Key) -> None:
        self._queue.add_new(key, self._now())
        self._wake.set()

    def add_after(self, key: Key, delay: float) -> None:
        self._queue.add_after(key, delay, self._now())
        self._wake.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _work(self) -> None:
        while not self._stopping:
            taken = self._queue.next_key(self._now())
            if taken is None:
                await self._wait()
                continue
            key, overdue = taken
            self._metrics.queue_wait.labels(self._kind).observe(overdue)
            await self._attempt(key)
            self._queue.finish(key)
            self._wake.set()  # the key may be due again, and another worker may be idle

    async def _wait(self) -> None:
        """Wait until a key may be due. `_wake` is cleared before the queue is checked, so that no wake-up is lost."""
        self._wake.clear()
        due = self._queue.next_due()
        timeout = None if due is None else max(due - self._now(), 0.0)
        if timeout == 0.0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    async def _attempt(self, key: Key) -> None:
        began = self._now()
        try:
            requeue_after = await self._reconcile(key)
        except KubeError as error:
            self._fail(key, error.reason, error.retry_after or 0.0, error, stack=False)
            outcome = "error"
        except Exception as error:
            self._fail(key, type(error).__name__, 0.0, error, stack=True)
            outcome = "bug"
        else:
            self._queue.succeeded(key)
            if requeue_after is not None:
                self._queue.add_after(key, requeue_after, self._now())
            outcome = "done"
        self._metrics.reconciles.labels(self._kind, outcome).inc()
        self._metrics.reconcile_seconds.labels(self._kind).observe(self._now() - began)

    def _fail(self, key: Key, reason: str, at_least: float, error: Exception, *, stack: bool) -> None:
        delay = self._queue.failed(key, self._now(), self._chance.random(), at_least=at_least)
        fields = {
            "kind": self._kind,
            "key": "/".join(key),
            "reason": reason,
            "error": str(error),
            "failures": self._queue.failures(key),
            "retry_in_seconds": round(delay, 2),
        }
        log.error("reconcile failed", extra=fields, exc_info=error if stack else None)


Queues = Mapping[Kind, Dispatcher]
"""The dispatchers of the kinds that have a controller."""
