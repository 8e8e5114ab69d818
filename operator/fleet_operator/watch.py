"""The watches, by kopf: they deliver changed objects to the event loop of the operator.

kopf runs on a thread with a loop of its own, because it takes the loop it runs on for its own: on its way out it
cancels every task it finds there, and on the main thread it takes the signals. Handlers are `on.event` only, so kopf
writes nothing to the cluster: no finalizers, no annotations, no Events. Nor are the handlers ever called: the objects
are taken out of the streams before (see `watch_session`).

kopf's caches, indices, retries and daemons are not used: an index over a few thousand objects delays the start by
minutes. Level-based reconciling needs none of them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, cast

import kopf

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.runtime.cache import WatchedKind
from fleet_operator.watch_session import delivering

log = logging.getLogger(__name__)

Sink = Callable[[Kind, JsonObject, bool], None]
"""Called on the operator's loop with the kind, the object, and whether it is gone."""

SERVER_TIMEOUT_SECONDS: Final = 300
"""A watch is renewed at least this often, beside kopf's own check for silence."""
STOP_SECONDS: Final = 10.0
"""The longest wait for kopf to come to its end."""
PAGE_OBJECTS: Final = 10
"""kopf has one page size for all kinds; a page of whole objects is in memory, and read, at once."""


class Lists(Protocol):
    """The operator's own lists of the same kinds."""

    def refused(self, kind: Kind, namespace: str | None) -> None:
        """A list or watch was refused, in a namespace or with None in all; on the operator's loop."""

    def listed(self, kind: Kind, namespace: str | None) -> str | None:
        """The version from which a watch may go on; None if it has to list. Any thread."""


class WatchesEndedError(Exception):
    """kopf has given up watching, and says why in the log."""


class Watcher:
    """The watches, on the operator's loop. `start` and `stop` once each.

    `ended` completes when they have ended: with the error, unless they were stopped.
    """

    def __init__(self, sink: Sink, namespaces: Sequence[str], lists: Lists) -> None:
        self._sink = sink
        self._lists = lists
        self._namespaces = namespaces
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._alarmed: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self, watched: Sequence[WatchedKind]) -> None:
        """Watch these kinds; their CRDs exist."""
        self._thread = threading.Thread(target=self._run, args=(watched,), name="kopf", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop watching and wait, within a bound, for the thread."""
        self._stop.set()
        assert self._thread is not None, "call start first"
        await asyncio.to_thread(self._thread.join, STOP_SECONDS)
        if self._thread.is_alive():
            log.warning("the watches did not end in time")

    def _run(self, watched: Sequence[WatchedKind]) -> None:
        """A thread: kopf until it is stopped or fails. Its failure ends the operator (see `app`)."""
        error: BaseException | None = None
        try:
            asyncio.run(self._watch(watched))
        except Exception as caught:
            error = caught
        self._loop.call_soon_threadsafe(self._finish, error)

    async def _watch(self, watched: Sequence[WatchedKind]) -> None:
        scope: dict[str, Any] = {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        try:
            await kopf.operator(
                registry=self._registry(watched),
                settings=watch_settings(watched),
                standalone=True,
                # Without it kopf asks for the user's name, which a container's bare uid does not have.
                identity=cast("Any", "consumer-fleet"),
                stop_flag=self._stop,
                **scope,
            )
        finally:
            # kopf waits for the flag on a thread of its loop's pool, and the loop does not close before that ends.
            self._stop.set()

    async def _arm(self, **_: Any) -> None:
        self._alarmed = asyncio.create_task(self._alarm(), name="alarm")

    async def _alarm(self) -> None:
        """Report the end of the watches if kopf, which is ending, has not come to its end and its error after a while.

        An error in a stream ends kopf; but its other watches then wait for credentials that nobody fetches any more,
        survive being cancelled, and kopf waits for them without end.
        It cancels all tasks that were begun after it, so this one, which a handler of its start begins.
        """
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not self._stop.is_set():
                given_up = WatchesEndedError("kopf has given up watching")
                self._loop.call_soon_threadsafe(self._loop.call_later, STOP_SECONDS, self._finish, given_up)
            raise

    def _finish(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _registry(self, watched: Sequence[WatchedKind]) -> kopf.OperatorRegistry:
        """A registry of our own has no login handlers; these two are kopf's, in the order of the client's own rules.

        They need ids of their own: kopf keeps one result for each id, and both functions have the same name.
        """
        registry = kopf.OperatorRegistry()
        for name, login in (
            ("service-account", kopf.login_with_service_account),
            ("kubeconfig", kopf.login_with_kubeconfig),
        ):
            kopf.on.login(id=name, registry=registry)(
                delivering(login, watched, self._deliver, self._refuse, self._listed)
            )
        kopf.on.startup(id="alarm", registry=registry)(self._arm)
        for each in watched:
            kind = each.kind
            # The group must be named: other products have kinds of the same plural.
            kopf.on.event(
                group=kind.group, version=kind.version, plural=kind.plural, id=f"watch-{kind.plural}", registry=registry
            )(_unused)
        return registry

    def _deliver(self, watched: WatchedKind, changes: Sequence[tuple[JsonObject, bool]]) -> None:
        """Hand objects over to the operator's loop, cut on this side: there a burst waits in the form in which it will
        be kept."""
        kind, view = watched.kind, watched.view
        typed = {"apiVersion": kind.api_version, "kind": kind.kind}
        cut = [(view.trim({**body, **typed}), gone) for body, gone in changes]
        self._loop.call_soon_threadsafe(self._take, kind, cut)

    def _refuse(self, watched: WatchedKind, namespace: str | None) -> None:
        self._loop.call_soon_threadsafe(self._lists.refused, watched.kind, namespace)

    def _listed(self, watched: WatchedKind, namespace: str | None) -> str | None:
        return self._lists.listed(watched.kind, namespace)

    def _take(self, kind: Kind, changes: Sequence[tuple[JsonObject, bool]]) -> None:
        for body, gone in changes:
            self._sink(kind, body, gone)


async def _unused(**_: Any) -> None:
    """Makes kopf watch a kind."""


def watch_settings(watched: Iterable[WatchedKind]) -> kopf.OperatorSettings:
    """kopf with everything switched off that it would do beside watching."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the CRDs exist before we start; needs no rights on CRDs and namespaces
    settings.process.ultimate_exiting_timeout = None
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = SERVER_TIMEOUT_SECONDS
    settings.watching.chunk_size = PAGE_OBJECTS
    for each in watched:
        if each.selector:
            address = (each.kind.group, each.kind.version, each.kind.plural)
            settings.watching.label_selectors[address] = each.selector
    return settings
