"""Lists that fill the caches before anything else happens, and correct them from time to time.

The first sweep is what makes the caches complete: watches never report the end of their first list. It also proves that
the CRDs exist and that the operator may read what it must, with a warning that names the kind if not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.clients.kube import KubeError
from fleet_operator.runtime.cache import Change, Key, WatchedKind
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
SOON_SECONDS: Final = 30.0
"""The second sweep comes early: a deletion between the first list and the start of the watches is seen by neither."""

Changed = Callable[[Kind, JsonObject, Change], None]


class Sweeper:
    """Lists every watched kind in the served namespaces (none named: all)."""

    def __init__(
        self,
        store: Store,
        watched: Iterable[WatchedKind],
        namespaces: Sequence[str],
        metrics: Metrics,
        *,
        interval: float,
    ) -> None:
        self._store = store
        self._watched = tuple(watched)
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._metrics = metrics
        self._interval = interval

    async def fill(self) -> None:
        """Sweep until every kind has been listed once; waits for what is missing."""
        for watched in self._watched:
            while True:
                try:
                    await self._sweep(watched)
                    break
                except KubeError as error:
                    _warn("cannot list yet", watched.kind, error)
                    await asyncio.sleep(RETRY_SECONDS)

    async def run(self, changed: Changed) -> None:
        """Sweep for ever, reporting each correction as if a watch had delivered it. Never returns."""
        pause = min(SOON_SECONDS, self._interval)
        while True:
            await asyncio.sleep(pause)
            pause = self._interval
            for watched in self._watched:
                try:
                    await self._correct(watched, changed)
                except KubeError as error:
                    _warn("sweep failed", watched.kind, error)

    async def _correct(self, watched: WatchedKind, changed: Changed) -> None:
        kind = watched.kind
        cache = self._store.cache(kind)
        corrected, dropped = await self._sweep(watched)
        for key in (*dropped, *corrected):
            body = cache.get(*key)
            if body is not None:
                changed(kind, body, Change.SPEC)
            elif (gone := dropped.get(key)) is not None:
                self._metrics.watch_corrections.labels(kind.kind).inc()
                log.warning("a deletion was missed by the watch", extra={"kind": kind.kind, "key": "/".join(key)})
                changed(kind, gone, Change.GONE)

    async def _sweep(self, watched: WatchedKind) -> tuple[list[Key], dict[Key, JsonObject]]:
        """List a kind, page by page; returns the keys of which the cache was wrong, and what it had that is gone."""
        kind, cache = watched.kind, self._store.cache(watched.kind)
        corrected, dropped = list[Key](), dict[Key, JsonObject]()
        for namespace in self._namespaces:
            living, version = set[str](), 0
            async for page in self._store.pages(kind, namespace, watched.selector):
                living |= {body["metadata"]["uid"] for body in page.items}
                corrected += cache.take(page.items)
                version = int(page.resource_version)
            dropped |= cache.drop_missing(living, version, namespace=namespace)
        self._metrics.cached_objects.labels(kind.kind).set_function(cache.__len__)
        return corrected, dropped


def _warn(message: str, kind: Kind, error: KubeError) -> None:
    log.warning(message, extra={"kind": kind.kind, "reason": error.reason, "error": str(error)})
