"""Lists objects to fill the caches at the start, and to correct them periodically.

The first lists fill the caches, and the informer's watches continue from these lists. The first lists also prove that
the CRDs exist and that the operator has its permissions; otherwise a warning names the kind and the namespace.

Each namespace is listed separately, and is served only after every kind that its reconciles read has been listed. If
the API server refuses lists of a namespace, because somebody withdrew the operator's permissions, the operator stops
serving this namespace. None of its known objects counts as deleted. The lists are retried, and other namespaces are not
affected.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.clients.kube import KubeError, KubeForbiddenError, KubeNotFoundError
from fleet_operator.runtime.cache import Change, Key, WatchedKind, key_of
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
RETRY_SECONDS_MAX: Final = 60.0
SOON_SECONDS: Final = 30.0
"""Pause in seconds before the second list. It is short, because a deletion after the first list and before the start of
kopf's watches is reported by neither of them."""
LISTS_AT_ONCE: Final = 4
"""Maximum number of concurrent lists. The limit is low, because each list keeps a page in memory. It is above 1,
because a namespace whose lists hang must not block other namespaces."""
CHANGES_AT_ONCE: Final = 100
REFUSALS: Final = (KubeForbiddenError, KubeNotFoundError)

Changed = Callable[[Kind, JsonObject, Change], None]


@dataclass(slots=True)
class _Listing:
    """The state of the lists of one kind in one namespace.

    - `due`: time of the next list (seconds of the event loop's clock); `failures`: number of consecutive failures.
    - `filled`: the cache is complete; `known`: the cache has been complete at least once.
    - `apart`: the kind cannot be listed, and reconciles of other kinds do not need it.
    - `absent`: the API server does not know the kind.
    - `version`: the resourceVersion of the last list; `fresh`: set until a watch starts from that list.
    """

    due: float = 0.0
    failures: int = 0
    filled: bool = False
    known: bool = False
    apart: bool = False
    absent: bool = False
    version: str = ""
    fresh: asyncio.Event = field(default_factory=asyncio.Event)


class Sweeper:
    """Lists every watched kind in the served namespaces (an empty sequence means all). `serving` is set as soon as a
    namespace is served, `returned` when a previously unknown kind has been listed."""

    def __init__(
        self,
        store: Store,
        watched: Iterable[WatchedKind],
        namespaces: Sequence[str],
        metrics: Metrics,
        *,
        interval: float,
    ) -> None:
        self.serving = asyncio.Event()
        self.returned = asyncio.Event()
        self._store = store
        self._watched = {each.kind: each for each in watched}
        self._metrics = metrics
        self._interval = interval
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._listings = {at: {kind: _Listing() for kind in self._watched} for at in self._namespaces}
        self._wakes = {at: asyncio.Event() for at in self._namespaces}
        self._slots = asyncio.Semaphore(LISTS_AT_ONCE)
        for kind in self._watched:
            metrics.cached_objects.labels(kind.kind).set_function(store.cache(kind).__len__)

    def serves(self, kind: Kind, namespace: str | None) -> bool:
        """True if all kinds that reconciles of `kind` need in this namespace have been listed."""
        listings = self._listings[None if None in self._listings else namespace]
        return all(each.filled or (each.apart and other is not kind) for other, each in listings.items())

    async def version(self, kind: Kind, namespace: str | None) -> str:
        """The resourceVersion of the last list. If a watch has already started from that list, waits for the next
        list."""
        listing = self._listings[namespace][kind]
        await listing.fresh.wait()
        listing.fresh.clear()
        return listing.version

    def again(self, kind: Kind, namespace: str | None, error: KubeError | None = None) -> None:
        """Schedule an early list, because a watch cannot continue. If the watch was refused, the cache is incomplete
        until a list succeeds."""
        listing = self._listings[namespace][kind]
        listing.fresh.clear()
        if not isinstance(error, REFUSALS):
            listing.due = 0.0
        elif listing.filled:
            self._fail(kind, namespace, error)
        self._wakes[namespace].set()

    async def run(self, changed: Changed) -> None:
        """List periodically, and report each correction of a cache like a watch event. Never returns."""
        async with asyncio.TaskGroup() as tasks:
            for namespace in self._namespaces:
                tasks.create_task(self._keep(namespace, changed), name=f"sweep-{namespace or 'all'}")

    async def _keep(self, namespace: str | None, changed: Changed) -> None:
        listings, wake, now = self._listings[namespace], self._wakes[namespace], asyncio.get_running_loop().time
        while True:
            wake.clear()
            for kind, listing in listings.items():
                if listing.due <= now():
                    async with self._slots:
                        await self._list(kind, namespace, changed)
            if any(self.serves(kind, namespace) for kind in self._watched):
                self.serving.set()
            pause = max(min(listing.due for listing in listings.values()) - now(), 0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()

    async def _list(self, kind: Kind, namespace: str | None, changed: Changed) -> None:
        listing = self._listings[namespace][kind]
        try:
            corrected, dropped = await self._sweep(self._watched[kind], namespace)
        except KubeError as error:
            self._fail(kind, namespace, error)
            return
        if not listing.filled:
            self._show(kind, namespace, missing=False)
        if listing.absent:
            self.returned.set()
        listing.fresh.set()
        pause = self._interval if listing.filled else min(SOON_SECONDS, self._interval)
        listing.due = asyncio.get_running_loop().time() + pause
        listing.filled, listing.known, listing.apart, listing.absent, listing.failures = True, True, False, False, 0
        await self._report(kind, corrected, dropped, changed)

    def _fail(self, kind: Kind, namespace: str | None, error: KubeError) -> None:
        listing = self._listings[namespace][kind]
        delay = min(RETRY_SECONDS * 2.0 ** min(listing.failures, 10), RETRY_SECONDS_MAX)
        listing.due = asyncio.get_running_loop().time() + delay
        listing.failures += 1
        if isinstance(error, REFUSALS):
            listing.filled = False
            listing.absent = isinstance(error, KubeNotFoundError)
            # The operator waits for a missing CRD, because an installation creates its CRDs one by one.
            may_miss = listing.known or isinstance(error, KubeForbiddenError)
            listing.apart = self._watched[kind].apart and may_miss
            self._show(kind, namespace, missing=True)
        if listing.failures & (listing.failures - 1) == 0:  # log failures 1, 2, 4, 8 and so on
            where = {} if namespace is None else {"namespace": namespace}
            fields = {"kind": kind.kind, **where, "reason": error.reason, "error": str(error)}
            log.warning("sweep failed" if listing.filled else "cannot list yet", extra=fields)

    def _show(self, kind: Kind, namespace: str | None, *, missing: bool) -> None:
        self._metrics.refused.labels(kind.kind, namespace or "").set(missing)
        if not missing and self._listings[namespace][kind].failures:
            log.info("listed after failures", extra={"kind": kind.kind, "namespace": namespace or "all"})

    async def _report(self, kind: Kind, corrected: list[Key], dropped: dict[Key, JsonObject], changed: Changed) -> None:
        cache = self._store.cache(kind)
        for number, key in enumerate((*dropped, *corrected)):
            if number % CHANGES_AT_ONCE == CHANGES_AT_ONCE - 1:
                await asyncio.sleep(0)
            body = cache.get(*key)
            if body is not None:
                changed(kind, body, Change.SPEC)
            elif (gone := dropped.get(key)) is not None:
                self._metrics.watch_corrections.labels(kind.kind).inc()
                log.warning("a deletion was missed by the watch", extra={"kind": kind.kind, "key": "/".join(key)})
                changed(kind, gone, Change.GONE)

    async def _sweep(self, watched: WatchedKind, namespace: str | None) -> tuple[list[Key], dict[Key, JsonObject]]:
        """List page by page and correct the cache. Returns the keys of objects that were missing or outdated in the
        cache, and the dropped objects."""
        cache, corrected = self._store.cache(watched.kind), list[Key]()
        living, version = set[str](), 0
        kube = self._store.kube
        async for page in kube.pages(watched.kind, namespace, label_selector=watched.selector, view=watched.view):
            living |= {body["metadata"]["uid"] for body in page.items}
            corrected += [key_of(body) for body in page.items if cache.observe(body) is not Change.NOTHING]
            version = int(page.resource_version)
        self._listings[namespace][watched.kind].version = str(version)
        return corrected, cache.drop_missing(living, version, namespace=namespace)
