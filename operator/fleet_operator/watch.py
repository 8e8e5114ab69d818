"""Watches the operator's own kinds with kopf, and passes their events to the caches.

Only `on.event` handlers are registered, so kopf writes nothing to the cluster: no finalizers, annotations or Events.
kopf runs on its own thread, because it needs several loop iterations for each event. An iteration of the operator's
loop takes up to 0.1 s while a thousand groups are created, and there kopf's watches would fall a minute behind. kopf's
tasks are spawned and awaited here (`kopf.spawn_tasks`), because `kopf.operator` hangs on exit after a stream has
failed.

kopf's `scanning` of CRDs is disabled. Scanning needs a cluster-wide permission, and a stream may still request a
deleted CRD before kopf learns of the deletion. If permissions for a namespace are withdrawn, the sweeper's lists report
that.

Decision: docs/decisions/0001-dependencies.md.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, cast

import kopf

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.runtime.cache import WatchedKind
from fleet_operator.runtime.informer import Sink
from fleet_operator.runtime.loop_thread import Handover, LoopThread

log = logging.getLogger(__name__)

IDENTITY: Final = "consumer-fleet"
FINALIZER: Final = "consumerfleet.io/kopf"
"""Finalizer name for kopf, never set on an object. kopf removes its finalizer from objects whose handlers do not need
one. With the default name, kopf would remove the finalizers of other kopf operators."""
SERVER_TIMEOUT_SECONDS: Final = 300
"""Maximum duration of one watch request. Its renewal also replaces a dead connection that kopf has not noticed."""
PAGE_OBJECTS: Final = 10
"""Number of objects in one page of a list. A whole page is parsed in one step and kept in memory."""
IDLE_SECONDS: Final = 1.0
"""Time for which kopf keeps an idle object's task and last event in memory. It is short, because there are many
objects."""
RETRY_SECONDS_MAX: Final = 30.0
RESTART_SECONDS: Final = 2.0
RESTART_SECONDS_MAX: Final = 60.0
STREAM: Final = "watcher for "
"""kopf's tasks that read a watch stream have names with this prefix."""
STOP_SECONDS: Final = 10.0
"""Maximum time to wait for kopf's tasks to end."""


class Lists(Protocol):
    """The operator's own lists of the watched kinds, which the sweeper makes."""

    returned: asyncio.Event
    """Set when a previously unknown kind has been listed for the first time; cleared by the Watcher."""

    def again(self, kind: Kind, namespace: str | None) -> None:
        """Schedule an early list of a kind in one namespace (None: in all namespaces)."""


class EndlessBackoffs:
    """An unlimited series of retry delays in seconds, with jitter, that grow up to RETRY_SECONDS_MAX. After the last
    delay of a limited series, kopf would end all watches. Withdrawn permissions for one namespace would then end the
    watches of all namespaces."""

    def __iter__(self) -> Iterator[float]:
        for number in itertools.count():
            yield random.uniform(0.5, 1.0) * min(2.0 ** min(number, 10), RETRY_SECONDS_MAX)


class NoDiffs(kopf.DiffBaseStorage):
    """Stores no last-handled state, because kopf's three copies of the object would be most of an event's cost."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return cast("kopf.BodyEssence", {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Do nothing, because no state is stored."""


def make_registry(watched: Sequence[WatchedKind], sink: Sink) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.persistence.finalizer = FINALIZER
        settings.persistence.diffbase_storage = NoDiffs()
        settings.scanning.disabled = (
            True  # without scanning, kopf needs no permissions for CRDs and namespaces; the CRDs already exist
        )
        settings.process.ultimate_exiting_timeout = None
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 10
        settings.networking.error_backoffs = EndlessBackoffs()
        settings.watching.server_timeout = SERVER_TIMEOUT_SECONDS
        settings.watching.chunk_size = PAGE_OBJECTS
        settings.queueing.idle_timeout = IDLE_SECONDS

    # A custom registry has no login handlers. So kopf's login handlers are added, in the order in which `KubeClient`
    # tries credentials. Each handler has an id, because kopf keeps one result per id.
    kopf.on.login(id="service-account", registry=registry)(kopf.login_with_service_account)
    kopf.on.login(id="kubeconfig", registry=registry)(kopf.login_with_kubeconfig)

    kinds = {each.kind.plural: each.kind for each in watched}

    async def observe(event: kopf.RawEvent, resource: kopf.Resource, **_: Any) -> None:
        sink(kinds[resource.plural], cast("JsonObject", event["object"]), event["type"] == "DELETED")

    for kind in kinds.values():
        # The API group is given, because other products have kinds with the same plural.
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(observe)
    return registry


class Watcher:
    """Watches kinds in namespaces (an empty sequence means all). Call `run` once, on the operator's event loop."""

    def __init__(
        self, watched: Sequence[WatchedKind], sink: Sink, namespaces: Sequence[str], lists: Lists, thread: LoopThread
    ) -> None:
        """`sink` is called on the operator's event loop; events of one kind stay in order. kopf runs on `thread`."""
        self._kinds = [each.kind for each in watched]
        self._watched = watched
        self._sink = sink
        self._namespaces = namespaces
        self._lists = lists
        self._thread = thread

    async def run(self) -> None:
        """Watch until cancelled. Raises kopf.LoginError without valid credentials. If a CRD is deleted or a stream is
        unreadable, kopf is restarted without the missing kinds, and again when a missing kind reappears."""
        loop, starts = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            self._lists.returned.clear()
            error = await self._watch()
            if isinstance(error, kopf.LoginError):
                raise error
            starts = starts + 1 if loop.time() - began < RESTART_SECONDS_MAX else 1
            if error is not None:
                log.warning("the watches of the operator's kinds have ended", extra={"error": str(error)})
                for kind, namespace in itertools.product(self._kinds, self._namespaces or (None,)):
                    self._lists.again(kind, namespace)
            await asyncio.sleep(min(RESTART_SECONDS * 2.0 ** min(starts - 1, 10), RESTART_SECONDS_MAX))

    async def _watch(self) -> BaseException | None:
        """Run kopf until it ends, or until a missing kind exists again; returns the error that ended kopf, or None."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        registry = make_registry(self._watched, Handover(loop, self._sink))
        serving = self._thread.run(_serve(registry, self._namespaces, stop))
        returned = asyncio.create_task(self._lists.returned.wait(), name="returned")
        ends: set[asyncio.Future[Any]] = {serving, returned}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            returned.cancel()
            await self._thread.run(_raise(stop))
            await asyncio.wait({serving})
        return serving.result()


async def _serve(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str], stop: asyncio.Event
) -> BaseException | None:
    """Run kopf until it ends or `stop` is set; returns the error that ended kopf, or None. Runs on kopf's thread."""
    scope: dict[str, Any] = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    # Without an identity, kopf looks up the user's name, and the uid of a container may have no name.
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=kopf.OperatorSettings(),
        standalone=True,
        identity=cast("Any", IDENTITY),
        stop_flag=stop,
        **scope,
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(tasks)
    errors = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return next((error for error in errors if error is not None), None)


async def _raise(flag: asyncio.Event) -> None:
    """Set `flag`. Being a coroutine, this can be run on another thread's event loop."""
    flag.set()


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel kopf's tasks and its remaining streams, which keep running after one stream fails. `kopf.run_tasks` would
    cancel all tasks of the loop together and then hang, because each stream must cancel its own helper tasks and wait
    for them."""
    ending = {*tasks, *(task for task in asyncio.all_tasks() if task.get_name().startswith(STREAM))}
    for task in ending:
        task.cancel()
    _, late = await asyncio.wait(ending, timeout=STOP_SECONDS)
    if late:
        log.warning("the watches did not end in time", extra={"tasks": sorted(task.get_name() for task in late)})
