"""Lists that fill the caches before anything else happens, and correct them from time to time.

The first lists are what makes the caches complete, and the informer's watches go on from them. They also prove that the
CRDs exist and that the operator may read what it must, with a warning that names the kind and the namespace if not.

Each namespace is listed by itself, and served while all that its reconciles read has been listed: in one that refuses,
because somebody has taken the operator's right away, nothing is done, and nothing that is known of it counts as
deleted. It is asked again and again, and the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.clients.kube import KubeError, KubeForbiddenError, KubeNotFoundError
from fleet_operator.runtime.cache import Change, Key, WatchedKind
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
RETRY_SECONDS_MAX: Final = 60.0
SOON_SECONDS: Final = 30.0
"""The second list comes early: a deletion between the first and the start of kopf's watches is seen by neither."""
LISTS_AT_ONCE: Final = 4
"""A page of each is in memory; and one namespace whose lists hang must not keep the others waiting."""
CHANGES_AT_ONCE: Final = 100
REFUSALS: Final = (KubeForbiddenError, KubeNotFoundError)

Changed = Callable[[Kind, JsonObject, Change], None]


@dataclass(slots=True)
class _Listing:
    """One kind in one namespace: when it is listed next (loop's seconds), and failures in a row.

    `filled`: the cache has all of it. `known`: it was filled once. `apart`: it is missing, and others can do without.
    `absent`: the API server does not know the kind. `version` is that of the last list, and `fresh` is set while no
    watch has begun there.
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
    """Lists every watched kind in the served namespaces (none named: all).

    `serving` is set once one is served, `returned` whenever a kind is listed that the API server did not know before.
    """

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
        """True if everything has been listed that the reconciles of a kind in a namespace read."""
        listings = self._listings[None if None in self._listings else namespace]
        return all(each.filled or (each.apart and other is not kind) for other, each in listings.items())

    async def version(self, kind: Kind, namespace: str | None) -> str:
        """The version of the last list, for a watch to go on from; waits for a list if a watch has begun there."""
        listing = self._listings[namespace][kind]
        await listing.fresh.wait()
        listing.fresh.clear()
        return listing.version

    def again(self, kind: Kind, namespace: str | None, error: KubeError | None = None) -> None:
        """List soon: a watch cannot go on. If it was refused, what the cache has is not complete until then."""
        listing = self._listings[namespace][kind]
        listing.fresh.clear()
        if not isinstance(error, REFUSALS):
            listing.due = 0.0
        elif listing.filled:
            self._fail(kind, namespace, error)
        self._wakes[namespace].set()

    async def run(self, changed: Changed) -> None:
        """List, and report each correction as if a watch had delivered it. Never returns."""
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
            # The CRDs of an installation come one after the other, and all of them before the first start.
            may_miss = listing.known or isinstance(error, KubeForbiddenError)
            listing.apart = self._watched[kind].apart and may_miss
            self._show(kind, namespace, missing=True)
        if listing.failures & (listing.failures - 1) == 0:  # the first, the second, the fourth
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
        """List a kind, page by page; returns the keys of which the cache was wrong, and what it had that is gone."""
        cache, corrected = self._store.cache(watched.kind), list[Key]()
        living, version = set[str](), 0
        async for page in self._store.pages(watched.kind, namespace, watched.selector):
            living |= {body["metadata"]["uid"] for body in page.items}
            corrected += cache.take(page.items)
            version = int(page.resource_version)
        self._listings[namespace][watched.kind].version = str(version)
        return corrected, cache.drop_missing(living, version, namespace=namespace)
