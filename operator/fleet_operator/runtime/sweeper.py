"""Lists that fill the caches before anything else happens, and mend them from time to time.

The first sweep is what makes the caches complete: the watches never say "that was all". It also proves that the CRDs
are there and that the operator may read what it must, with a message that names the kind if not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.clients.kube import KubeError
from fleet_operator.runtime.cache import Change, Key, key_of
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
        selectors: Mapping[Kind, str],
        namespaces: Sequence[str],
        metrics: Metrics,
        *,
        interval: float,
    ) -> None:
        self._store = store
        self._selectors = selectors
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._metrics = metrics
        self._interval = interval

    async def fill(self) -> None:
        """Sweep until every kind has been listed once; waits out whatever is missing."""
        for kind in self._selectors:
            while True:
                try:
                    await self._sweep(kind)
                    break
                except KubeError as error:
                    fields = {"kind": kind.kind, "reason": error.reason, "error": str(error)}
                    log.warning("cannot list yet", extra=fields)
                    await asyncio.sleep(RETRY_SECONDS)

    async def run(self, changed: Changed) -> None:
        """Sweep for ever, reporting what had to be mended as if a watch had delivered it. Never returns."""
        pause = min(SOON_SECONDS, self._interval)
        while True:
            await asyncio.sleep(pause)
            pause = self._interval
            for kind in self._selectors:
                try:
                    await self._mend(kind, changed)
                except KubeError as error:
                    fields = {"kind": kind.kind, "reason": error.reason, "error": str(error)}
                    log.warning("sweep failed", extra=fields)

    async def _mend(self, kind: Kind, changed: Changed) -> None:
        cache = self._store.cache(kind)
        before: dict[Key, JsonObject] = {key_of(body): body for body in cache}
        for key in await self._sweep(kind):
            body = cache.get(*key)
            if body is not None:
                changed(kind, body, Change.SPEC)
            elif (gone := before.get(key)) is not None:
                self._metrics.watch_corrections.labels(kind.kind).inc()
                log.warning("a deletion was missed by the watch", extra={"kind": kind.kind, "key": "/".join(key)})
                changed(kind, gone, Change.GONE)

    async def _sweep(self, kind: Kind) -> list[Key]:
        cache = self._store.cache(kind)
        mended: list[Key] = []
        for namespace in self._namespaces:
            listing = await self._store.kube.list(
                kind, namespace, label_selector=self._selectors[kind], view=cache.view
            )
            mended += cache.sweep(listing.items, int(listing.resource_version), namespace=namespace)
        self._metrics.cached_objects.labels(kind.kind).set(len(cache))
        return mended
