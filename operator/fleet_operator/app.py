"""The operator's process: wiring, the order of starting and stopping, and the command line.

Start: health endpoints, Lease, caches filled by lists, watches, observers (by reconciles), workers. Stop: the reverse;
reconciles in flight may finish within a bound, then the Lease is given up. Losing the Lease, and credentials that are
refused, end the process at once with a failure: a new one starts from the cluster's state, the only state there is.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fleet_consumer.clock import Clock, SystemClock
from fleet_operator.clients.kinds import BACKFILL, CONSUMER_GROUP, Kind
from fleet_operator.clients.kube import KubeClient
from fleet_operator.clients.worker_status import WorkerStatusClient
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.labels import APPLIED_ANNOTATION
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context
from fleet_operator.reconcilers.registry import CONTROLLERS, OWNED, WATCHED
from fleet_operator.reconcilers.routing import Router
from fleet_operator.reconcilers.states import States
from fleet_operator.reconcilers.worker_watch import WorkerWatch
from fleet_operator.runtime import logs
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Dispatcher, Result
from fleet_operator.runtime.events import EventRecorder
from fleet_operator.runtime.health import HealthServer, LoopWatchdog
from fleet_operator.runtime.informer import Informer
from fleet_operator.runtime.lease import Elector, Scope
from fleet_operator.runtime.loop_thread import LoopThread
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import VERSION, Settings, parse
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store
from fleet_operator.runtime.sweeper import Sweeper
from fleet_operator.watch import Watcher

log = logging.getLogger(__name__)

RECURSION_LIMIT: Final = 40_000
"""The API server takes objects that nest 10,000 deep, and one of them must not keep all others from being read."""
COLLECT_AFTER: Final = 50_000
"""New objects between two runs of the cyclic garbage collector. Hardly anything here is cyclic, and a run walks over
what is known of thousands of groups."""
UNSERVED_SECONDS: Final = 15.0
"""Pause of the keys of a namespace that cannot be read."""
EXIT_FAILED: Final = 1
EXIT_LEASE_LOST: Final = 3
LOG_SECONDS: Final = 1.0
"""The longest wait for a line in the log before the end of a process that has lost its Lease."""


class App:
    """One operator. `run` once; `stop` from the event loop, or a signal, ends it in order.

    `lease_kube` is for the Lease alone, and used on a thread and an event loop of its own: a renewal must not queue
    behind a thousand slow calls, or one long step, of the work.
    """

    def __init__(self, settings: Settings, kube: KubeClient, lease_kube: KubeClient, clock: Clock) -> None:
        self.settings = settings
        self.lost: Callable[[Exception], None] = lambda error: None
        """Called on the Lease's thread when the Lease is lost: the operator's loop may be blocked."""
        self.lease_loop: LoopThread | None = None
        self.metrics = Metrics()
        self._kube = kube
        self._lease_kube = lease_kube
        self._clock = clock
        self._stop = asyncio.Event()
        self._not_ready: str | None = "starting"
        self._watchdog = LoopWatchdog(self.metrics)
        self.health = HealthServer(
            metrics=self.metrics,
            watchdog=self._watchdog,
            ready=lambda: self._not_ready,
            health_port=settings.health_port,
            metrics_port=settings.metrics_port,
        )
        self._store = Store(kube, clock, WATCHED, applied_annotation=APPLIED_ANNOTATION)
        self._events = EventRecorder(kube, clock, self.metrics, instance=settings.identity)
        self._worker_status = WorkerStatusClient()
        self._sweeper: Sweeper  # of the namespaces that are found to be this installation's
        self._dispatchers = {each.kind: self._dispatcher(each.kind) for each in CONTROLLERS}
        self._router = Router(self._store, WATCHED, self._dispatchers, self.metrics)
        self._store.corrected = self._router.changed
        statuses = StatusWriter(
            self._store,
            clock,
            self.metrics,
            writes_per_second=settings.status_writes_per_second,
            urgent_fields=URGENT_FIELDS,
        )
        self._context = Context(
            settings=settings,
            clock=clock,
            store=self._store,
            states=States(self._store, clock),
            statuses=statuses,
            events=self._events,
            metrics=self.metrics,
            observers=ObserverPool(clock, self._router),
            workers=WorkerWatch(self._worker_status, clock, self._dispatchers[CONSUMER_GROUP].add),
            queues=self._dispatchers,
            moved=self._router.moved,
        )
        self._reconcilers = {each.kind: each.make(self._context) for each in CONTROLLERS}

    def _dispatcher(self, kind: Kind) -> Dispatcher:
        reconcile = partial(self._reconcile, kind)
        return Dispatcher(kind.kind, reconcile, count=self.settings.workers, metrics=self.metrics)

    async def _reconcile(self, kind: Kind, key: Key) -> Result:
        if not self._sweeper.serves(kind, key[0]):
            return Result(UNSERVED_SECONDS)
        return await self._reconcilers[kind].reconcile(key)

    def stop(self) -> None:
        """End `run` in order."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop`. Raises LeaseLostError, or whatever ended the watches; the process must then end.

        A standby is ready: it does its part by waiting. So is one that works while any namespace can be served.
        """
        self._watchdog.start()
        await self.health.start()
        health_port, metrics_port = self.health.ports
        log.info("serving", extra={"health_port": health_port, "metrics_port": metrics_port})
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        if not self.settings.leader_elect:
            await self._work(stopping, asyncio.get_running_loop().create_future())
        else:
            settings = self.settings
            lease = {"namespace": settings.lease_namespace, "name": settings.lease_name}
            elector = Elector(self._lease_kube, self._clock, identity=settings.identity, **lease)
            self.lease_loop = loop = LoopThread("lease")
            self._not_ready = None
            acquiring = loop.run(elector.acquire())
            await first_of(stopping, acquiring)
            acquiring.cancel()
            scope = Scope(
                self._lease_kube,
                self._clock,
                identity=f"{settings.lease_namespace}/{settings.identity}",
                namespaces=settings.namespaces,
                former=f"{settings.lease_namespace}/{elector.former}",
            )
            if not self._stop.is_set():
                holding = loop.run(self._hold(elector.hold()))
                await self._work_alone(stopping, holding, scope)
                holding.cancel()
            await loop.run(scope.release())
            await loop.run(elector.release())
        await self.health.stop()
        await self._watchdog.stop()

    async def _work_alone(self, stopping: asyncio.Future[Any], holding: asyncio.Future[Any], scope: Scope) -> None:
        """Work once no other installation serves the same, without the namespaces that another one does."""
        assert self.lease_loop is not None, "it came with the Lease"
        acquiring = self.lease_loop.run(scope.acquire(self._refuse))
        await first_of(stopping, acquiring, holding)
        if not acquiring.done():
            acquiring.cancel()
            return
        self._not_ready = None
        self.settings = replace(self.settings, namespaces=acquiring.result())
        self.metrics.leader.set(1)
        guarding = self.lease_loop.run(self._hold(scope.hold()))
        await self._work(stopping, asyncio.gather(holding, guarding))
        guarding.cancel()

    def _refuse(self, reason: str) -> None:
        """Say why this installation does not work. Called on the Lease's thread."""
        if reason != self._not_ready:
            log.error("another installation", extra={"reason": reason})
        self._not_ready = reason

    async def _hold(self, renewing: Coroutine[Any, Any, None]) -> None:
        """On the Lease's thread: renew it, and report its loss there."""
        try:
            await renewing
        except Exception as error:
            self.lost(error)
            raise

    async def _work(self, stopping: asyncio.Future[Any], holding: asyncio.Future[Any]) -> None:
        """Do the operator's work until `stopping` completes; a failure is raised without cleaning up after it.

        `holding` fails when the Lease is lost, and that ends everything, an orderly stop as well.
        """
        self._not_ready = "no namespace could be listed yet: see the log"
        watched = [each for each in WATCHED if self.settings.backfills or each.kind is not BACKFILL]
        self._sweeper = Sweeper(
            self._store, watched, self.settings.namespaces, self.metrics, interval=self.settings.sweep_seconds
        )
        sweeping = asyncio.create_task(self._sweeper.run(self._router.changed), name="sweep")
        serving = asyncio.create_task(self._sweeper.serving.wait(), name="serving")
        await first_of(stopping, holding, sweeping, serving)
        if not serving.done():
            sweeping.cancel()
            serving.cancel()
            return
        self._events.start()
        await self._worker_status.open()
        sink, namespaces = self._router.observed, self.settings.namespaces
        own = [each.watched for each in CONTROLLERS if each.watched in watched]
        watcher = Watcher(own, sink, namespaces, self._sweeper, LoopThread("kopf"))
        informer = Informer(self._kube, OWNED, sink, namespaces, self._sweeper)
        for dispatcher in self._dispatchers.values():
            dispatcher.start()
        context = self._context
        watches = (watcher.run, informer.run)
        endless = (*watches, *context.beside, context.observers.keep_checking, context.workers.keep_asking)
        beside = [asyncio.create_task(work(), name=work.__qualname__) for work in endless]
        self._not_ready = None
        log.info("working", extra={"version": VERSION, "namespaces": self.settings.namespaces or "all"})
        await first_of(stopping, holding, sweeping, *beside)
        self._not_ready = "stopping"
        for task in (sweeping, *beside):
            task.cancel()
        await first_of(holding, asyncio.create_task(self._drain(beside), name="drain"))

    async def _drain(self, cancelled: Sequence[asyncio.Task[None]]) -> None:
        """Let watches, reconciles and actions in flight come to their ends, within bounds."""
        await asyncio.wait(cancelled)
        await asyncio.gather(*(dispatcher.stop() for dispatcher in self._dispatchers.values()))
        await self._context.ending.aclose()
        await self._context.observers.close()
        await self._context.workers.close()
        await self._worker_status.close()
        await self._events.stop()


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait for the first of several futures to complete; raises the error of one that failed."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()


async def serve(settings: Settings) -> None:
    """Run an operator against the real API server until SIGTERM or SIGINT."""
    kube, lease_kube = await KubeClient.connect(), await KubeClient.connect()
    app = App(settings, kube, lease_kube, SystemClock())
    for client in (kube, lease_kube):
        client.answered = app.metrics.count_request
    app.lost = end_without_lease

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, app.stop)
    await app.run()
    await kube.close()
    if app.lease_loop is not None:
        await app.lease_loop.run(lease_kube.close())


def end_without_lease(error: Exception) -> None:
    """End the process before another one may begin to work. Any thread."""
    # The log may be what blocks the other threads.
    end = threading.Timer(LOG_SECONDS, os._exit, (EXIT_LEASE_LOST,))
    end.daemon = True
    end.start()
    log.critical("lease lost", extra={"error": str(error)})
    os._exit(EXIT_LEASE_LOST)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script `fleet-operator`."""
    settings = parse(sys.argv[1:] if arguments is None else arguments)
    sys.setrecursionlimit(RECURSION_LIMIT)
    # As the runtimes of Java and Go do: each observed cluster takes up to 128 sockets, and 1,024 descriptors is a usual
    # soft limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    logs.configure(settings.log_format, settings.log_level)
    end(serve(settings))


def end(serving: Coroutine[Any, Any, None]) -> None:
    """Run to the end of the process.

    After a failure the process ends without unwinding: a former leader must not finish what it was doing, and threads
    that wait for a broker must not hold up the restart.
    """

    async def serve_or_die() -> None:
        try:
            await serving
        except Exception as error:
            log.critical("the operator failed", extra={"error": str(error)}, exc_info=True)
            os._exit(EXIT_FAILED)

    asyncio.run(serve_or_die())
