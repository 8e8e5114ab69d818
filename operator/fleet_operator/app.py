"""The operator's process: wiring, the order of start and stop, and the command line.

Start order: health endpoints, console, Lease, lists that fill the caches, watches, reconciles (which start the
observers). On shutdown, running reconciles may finish within a time limit; then the Lease is released. A lost Lease or
refused credentials end the process at once with a failure. The next process continues from the state in Kubernetes.
"""

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
from fleet_operator.clients.kinds import BACKFILL, CONSUMER_GROUP, POD, Kind
from fleet_operator.clients.kube import KubeClient, KubeError
from fleet_operator.clients.worker_status import WorkerStatusClient
from fleet_operator.console import CONSOLE_LABEL
from fleet_operator.console.access import Access
from fleet_operator.console.board import Source
from fleet_operator.console.server import ConsoleServer
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.labels import APPLIED_ANNOTATION
from fleet_operator.reconcilers.context import URGENT_FIELDS, Context
from fleet_operator.reconcilers.registry import CONTROLLERS, OWNED, WATCHED
from fleet_operator.reconcilers.routing import Router
from fleet_operator.reconcilers.states import States
from fleet_operator.reconcilers.worker_watch import WorkerWatch
from fleet_operator.runtime import logs
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.dispatcher import Dispatcher
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
"""Python's recursion limit. The API server accepts objects with 10,000 levels of nesting. Under a lower limit, one such
object would make a whole list unreadable."""
COLLECT_AFTER: Final = 50_000
"""Number of new Python objects between two runs of the cyclic garbage collector. Runs are rare, because few objects are
cyclic, and each run scans the data of thousands of groups."""
UNSERVED_SECONDS: Final = 15.0
"""Delay before a key is queued again while the objects of the key's namespace cannot be listed."""
EXIT_FAILED: Final = 1
EXIT_LEASE_LOST: Final = 3
LABEL_SECONDS: Final = 5.0
"""Longest time for which the start and the shutdown wait until the operator's own pod is labelled."""
LABEL_AGAIN_SECONDS: Final = 15.0
"""Delay after a failed attempt to label the operator's own pod."""
LOG_SECONDS: Final = 1.0
"""After losing the Lease, the process exits after this time even if its last log line is not written."""


class App:
    """One operator process. Call `run` once. Call `stop`, on the event loop or in a signal handler, for a clean end.

    `lease_kube` is used only for the Lease, on its own thread and event loop, so that a renewal never waits for slow
    calls or long steps of reconciles. With `console_kube`, the console is served, also on its own thread.
    """

    def __init__(
        self,
        settings: Settings,
        kube: KubeClient,
        lease_kube: KubeClient,
        clock: Clock,
        console_kube: KubeClient | None = None,
    ) -> None:
        self.settings = settings
        self.lost: Callable[[Exception], None] = lambda error: None
        """Called when the Lease is lost, on the Lease's thread, because the operator's event loop may be blocked."""
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
        self._sweeper: Sweeper  # created as soon as this installation's namespaces are known
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
        self.console_loop: LoopThread | None = None
        self._console: ConsoleServer | None = None
        self._labelling: asyncio.Task[None] | None = None
        if console_kube is not None:
            source = Source(self._store, self._context.observers)
            self._console = ConsoleServer(source, Access(console_kube.review, clock), clock, settings.console_port)

    def _dispatcher(self, kind: Kind) -> Dispatcher:
        reconcile = partial(self._reconcile, kind)
        return Dispatcher(kind.kind, reconcile, count=self.settings.workers, metrics=self.metrics)

    async def _reconcile(self, kind: Kind, key: Key) -> float | None:
        if not self._sweeper.serves(kind, key[0]):
            return UNSERVED_SECONDS
        return await self._reconcilers[kind].reconcile(key)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop` is called. Raises LeaseLostError, or the error that ended the watches; the process must then
        end. A standby counts as ready. An active operator counts as ready if it can serve at least one namespace."""
        self._watchdog.start()
        await self.health.start()
        health_port, metrics_port = self.health.ports
        log.info("serving", extra={"health_port": health_port, "metrics_port": metrics_port})
        if self._console is not None:
            self.console_loop = LoopThread("console")
            await self.console_loop.run(self._console.start())
            await self._lead_console(leads=False)  # a previous process of this container may have been the leader
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
        if self._console is not None and self.console_loop is not None:
            await self.console_loop.run(self._console.stop())
        if self._labelling is not None:
            self._labelling.cancel()
        await self.health.stop()
        await self._watchdog.stop()

    async def _lead_console(self, *, leads: bool) -> None:
        """Enable or disable the console, and set or remove this pod's label: the console's Service selects only the
        leader."""
        if self._console is None:
            return
        self._console.leads = leads
        if not self.settings.leader_elect:
            return
        if self._labelling is not None:
            self._labelling.cancel()
        self._labelling = asyncio.create_task(self._label_pod(leads=leads), name="console label")
        await asyncio.wait([self._labelling], timeout=LABEL_SECONDS)

    async def _label_pod(self, *, leads: bool) -> None:
        """Try until the API server has accepted the label or its removal."""
        name, labels = self.settings.identity.rpartition("_")[0], {CONSOLE_LABEL: "true" if leads else None}
        metadata = {"namespace": self.settings.lease_namespace, "name": name, "labels": labels}
        pod = {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": metadata}
        while True:
            try:
                await self._kube.merge(pod)
                return
            except KubeError as error:
                log.warning("the label for the console's Service cannot be changed", extra={"error": str(error)})
            await asyncio.sleep(LABEL_AGAIN_SECONDS)

    async def _work_alone(self, stopping: asyncio.Future[Any], holding: asyncio.Future[Any], scope: Scope) -> None:
        """Wait until a namespace of `scope` may be served, then run, without the namespaces that other installations
        serve."""
        assert self.lease_loop is not None, "the loop is created before the Lease is acquired"
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
        """Log why this installation does not start, or which namespaces it leaves out. Called on the Lease's thread."""
        if reason != self._not_ready:
            log.error("another installation", extra={"reason": reason})
        self._not_ready = reason

    async def _hold(self, renewing: Coroutine[Any, Any, None]) -> None:
        """Renew a Lease and report its loss. Both happen on the Lease's thread."""
        try:
            await renewing
        except Exception as error:
            self.lost(error)
            raise

    async def _work(self, stopping: asyncio.Future[Any], holding: asyncio.Future[Any]) -> None:
        """Run the operator until `stopping` completes. An error is raised without cleanup. `holding` fails when the
        Lease is lost; this error also aborts a clean shutdown."""
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
        sink, namespaces = self._router.observed, self.settings.namespaces
        own = [each.watched for each in CONTROLLERS if each.watched in watched]
        watcher = Watcher(own, sink, namespaces, self._sweeper, LoopThread("kopf"))
        informer = Informer(self._kube, OWNED, sink, namespaces, self._sweeper)
        for dispatcher in self._dispatchers.values():
            dispatcher.start()
        context = self._context
        watches = (watcher.run, informer.run)
        endless = (*watches, *context.background_tasks, context.observers.keep_checking, context.workers.keep_asking)
        others = [asyncio.create_task(work(), name=work.__qualname__) for work in endless]
        self._not_ready = None
        await self._lead_console(leads=True)
        log.info("working", extra={"version": VERSION, "namespaces": self.settings.namespaces or "all"})
        await first_of(stopping, holding, sweeping, *others)
        self._not_ready = "stopping"
        await self._lead_console(leads=False)
        for task in (sweeping, *others):
            task.cancel()
        await first_of(holding, asyncio.create_task(self._drain(others), name="drain"))

    async def _drain(self, cancelled: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.wait(cancelled)
        await asyncio.gather(*(dispatcher.stop() for dispatcher in self._dispatchers.values()))
        await self._context.ending.aclose()
        await self._context.observers.close()
        await self._context.workers.close()
        await self._worker_status.close()
        await self._events.stop()


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until the first of these futures completes. Raises the error of a completed future that failed."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()


async def serve(settings: Settings) -> None:
    """Run an operator against the real API server until SIGTERM or SIGINT."""
    kube, lease_kube = await KubeClient.connect(), await KubeClient.connect()
    console_kube = await KubeClient.connect() if settings.console else None
    app = App(settings, kube, lease_kube, SystemClock(), console_kube)
    for client in filter(None, (kube, lease_kube, console_kube)):
        client.answered = app.metrics.count_request
    app.lost = end_without_lease

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, app.stop)
    await app.run()
    await kube.close()
    if app.lease_loop is not None:
        await app.lease_loop.run(lease_kube.close())
    if app.console_loop is not None and console_kube is not None:
        await app.console_loop.run(console_kube.close())


def end_without_lease(error: Exception) -> None:
    """End this process before another process may take over the Lease. May be called on any thread."""
    # Logging may block; the timer then ends the process.
    end = threading.Timer(LOG_SECONDS, os._exit, (EXIT_LEASE_LOST,))
    end.daemon = True
    end.start()
    log.critical("lease lost", extra={"error": str(error)})
    os._exit(EXIT_LEASE_LOST)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script `fleet-operator`."""
    settings = parse(sys.argv[1:] if arguments is None else arguments)
    sys.setrecursionlimit(RECURSION_LIMIT)
    # Raise the limit on open files, as Java and Go do, because each observed cluster needs up to 128 sockets, and the
    # soft limit is often 1,024.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    logs.configure(settings.log_format, settings.log_level)
    end(serve(settings))


def end(serving: Coroutine[Any, Any, None]) -> None:
    """Run the operator until it stops. After a failure, the process exits without cleanup: a former leader must not
    finish its writes, and threads that wait for a broker must not delay the restart."""

    async def serve_or_die() -> None:
        try:
            await serving
        except Exception as error:
            log.critical("the operator failed", extra={"error": str(error)}, exc_info=True)
            os._exit(EXIT_FAILED)

    asyncio.run(serve_or_die())
