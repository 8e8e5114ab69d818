"""kopf: the watches of the operator's own kinds, whose events go to the caches.

kopf's handlers here are `on.event` only, so it writes nothing to the cluster: no finalizers, no annotations, no Events.
It runs on a thread of its own. Each event takes it several turns of its loop, and a turn of the operator's loop takes
up to a tenth of a second while a thousand groups are made: its watches fell a minute behind there. Its tasks are
spawned and awaited here (`kopf.spawn_tasks`), because `kopf.operator` hangs at its end when one stream has failed (see
docs/decisions/0001-dependencies.md).
"""

from __future__ import annotations

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
"""Never set. kopf takes its finalizer away from an object without a handler that needs it, and the default one is also
that of every other operator that is made with kopf."""
SERVER_TIMEOUT_SECONDS: Final = 300
"""A watch is renewed at least this often, whatever kopf's own check for silence finds."""
PAGE_OBJECTS: Final = 10
"""A page of whole objects is in memory, and read, at once."""
IDLE_SECONDS: Final = 1.0
"""Time after an event for which an object keeps its task, and the task the whole event: of thousands of objects."""
RETRY_SECONDS_MAX: Final = 30.0
RESTART_SECONDS: Final = 2.0
RESTART_SECONDS_MAX: Final = 60.0
STREAM: Final = "watcher for "
"""Beginning of the names of the tasks that read kopf's streams."""
STOP_SECONDS: Final = 10.0
"""The longest wait for kopf to come to its end."""


class Lists(Protocol):
    """The operator's own lists of the same kinds."""

    returned: asyncio.Event
    """Set when a kind is listed that the API server did not know before; cleared here."""

    def again(self, kind: Kind, namespace: str | None) -> None:
        """List a kind soon, in one namespace or with None in all."""


class EndlessBackoffs:
    """The pauses between the attempts of a request, in seconds: growing, with jitter, and without an end.

    kopf repeats a request that failed, a forbidden one too, as long as this has a next pause, and ends all watches
    afterwards. One namespace that withdraws the operator's rights must not take the watches of the others.
    """

    def __iter__(self) -> Iterator[float]:
        for number in itertools.count():
            yield random.uniform(0.5, 1.0) * min(2.0 ** min(number, 10), RETRY_SECONDS_MAX)


class NoDiffs(kopf.DiffBaseStorage):
    """Nothing of an object is compared with what was handled before: `on.event` has no use for it.

    kopf would copy each object three times for it, which is most of what an event costs.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return cast("kopf.BodyEssence", {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is written."""


def make_registry(watched: Sequence[WatchedKind], sink: Sink) -> kopf.OperatorRegistry:
    """The handlers of the operator; they need no state of kopf."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.persistence.finalizer = FINALIZER
        settings.persistence.diffbase_storage = NoDiffs()
        settings.scanning.disabled = True  # the CRDs exist before we start; needs no rights on CRDs and namespaces
        settings.process.ultimate_exiting_timeout = None
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 10
        settings.networking.error_backoffs = EndlessBackoffs()
        settings.watching.server_timeout = SERVER_TIMEOUT_SECONDS
        settings.watching.chunk_size = PAGE_OBJECTS
        settings.queueing.idle_timeout = IDLE_SECONDS

    # A registry of our own has no login handlers; these two are kopf's, in the order of the client's own rules. They
    # need ids of their own: kopf keeps one result for each id.
    kopf.on.login(id="service-account", registry=registry)(kopf.login_with_service_account)
    kopf.on.login(id="kubeconfig", registry=registry)(kopf.login_with_kubeconfig)

    kinds = {each.kind.plural: each.kind for each in watched}

    async def observe(event: kopf.RawEvent, resource: kopf.Resource, **_: Any) -> None:
        sink(kinds[resource.plural], cast("JsonObject", event["object"]), event["type"] == "DELETED")

    for kind in kinds.values():
        # The group must be named: other products have kinds of the same plural.
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(observe)
    return registry


class Watcher:
    """The watches of some kinds in some namespaces (none named: all). `run` once, on the operator's loop."""

    def __init__(
        self, watched: Sequence[WatchedKind], sink: Sink, namespaces: Sequence[str], lists: Lists, thread: LoopThread
    ) -> None:
        """`sink` is called on the operator's loop, in the order of each kind's events. `thread` is kopf's."""
        self._kinds = [each.kind for each in watched]
        self._watched = watched
        self._sink = sink
        self._namespaces = namespaces
        self._lists = lists
        self._thread = thread

    async def run(self) -> None:
        """Watch until it is cancelled. Raises kopf.LoginError without valid credentials.

        Another error that ends kopf is a kind whose CRD is gone, or a stream that cannot be read. kopf starts again
        then, without the kind, and once more when the kind is back.
        """
        loop, starts = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            self._lists.returned.clear()
            error = await self._watch()
            if isinstance(error, kopf.LoginError):
                raise error
            starts = starts + 1 if loop.time() - began < RESTART_SECONDS_MAX else 1
            if error is not None:
                log.warning("the watches of our kinds have ended", extra={"error": str(error)})
                for kind, namespace in itertools.product(self._kinds, self._namespaces or (None,)):
                    self._lists.again(kind, namespace)
            await asyncio.sleep(min(RESTART_SECONDS * 2.0 ** min(starts - 1, 10), RESTART_SECONDS_MAX))

    async def _watch(self) -> BaseException | None:
        """Run kopf until it ends or a kind has returned; returns the error that ended it."""
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
    """Run kopf until it ends or the flag is raised; returns the error that ended it. On kopf's thread."""
    scope: dict[str, Any] = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    # Without an identity kopf asks for the user's name, which a container's bare uid does not have.
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
    """Set an event of the loop that this runs on."""
    flag.set()


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """End kopf's tasks.

    A stream that fails ends kopf and leaves the other streams, which `kopf.run_tasks` finds by cancelling every task of
    the loop. All at once they hang: a stream waits for its helpers, and they are to be ended by it alone.
    """
    ending = {*tasks, *(task for task in asyncio.all_tasks() if task.get_name().startswith(STREAM))}
    for task in ending:
        task.cancel()
    _, late = await asyncio.wait(ending, timeout=STOP_SECONDS)
    if late:
        log.warning("the watches did not end in time", extra={"tasks": sorted(task.get_name() for task in late)})
