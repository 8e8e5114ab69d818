"""Watches the built-in kinds that reconciles read from caches: pods, StatefulSets and others.

A watch starts from the resourceVersion of the sweeper's list. So nothing is listed twice, and no change between list
and watch is missed. A watch is renewed when the API server ends it or the connection breaks. If its resourceVersion is
too old, or if the watch is refused, the sweeper lists again, and the watch starts from that list. Each kind in each
namespace has its own watch, so a refused watch does not end other watches.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

from fleet_operator.clients.kinds import JsonObject, Kind
from fleet_operator.clients.kube import KubeClient, KubeError, KubeUnavailableError
from fleet_operator.runtime.cache import WatchedKind
from fleet_operator.runtime.sweeper import Sweeper

log = logging.getLogger(__name__)

Sink = Callable[[Kind, JsonObject, bool], None]
"""A function that is called with the kind, the object, and True if the object was deleted."""

RENEW_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 30.0


class Informer:
    """Watches kinds in namespaces (empty: all). Call `run` once, while the sweeper of the same kinds runs."""

    def __init__(
        self, kube: KubeClient, watched: Sequence[WatchedKind], sink: Sink, namespaces: Sequence[str], sweeper: Sweeper
    ) -> None:
        self._kube = kube
        self._watched = watched
        self._sink = sink
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._sweeper = sweeper

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for watched in self._watched:
                for namespace in self._namespaces:
                    name = f"watch-{watched.kind.plural}-{namespace or 'all'}"
                    tasks.create_task(self._follow(watched, namespace), name=name)

    async def _follow(self, watched: WatchedKind, namespace: str | None) -> None:
        kind, version, failures = watched.kind, "", 0
        while True:
            version = since = version or await self._sweeper.version(kind, namespace)
            try:
                async for event in self._kube.watch(
                    kind, namespace, since, label_selector=watched.selector, view=watched.view
                ):
                    version = event.resource_version
                    if event.body is not None:
                        self._sink(kind, event.body, event.gone)
                failures = 0
            except KubeError as error:
                failures = failures + 1 if version == since else 1
                if not isinstance(error, KubeUnavailableError):
                    version = ""
                    self._sweeper.again(kind, namespace, error)
                elif failures & (failures - 1) == 0:  # log failures 1, 2, 4, 8 and so on
                    fields = {"kind": kind.kind, "namespace": namespace or "all", "error": str(error)}
                    log.warning("watch failed", extra=fields)
            await asyncio.sleep(pause_after(failures))


def pause_after(failures: int) -> float:
    """Seconds until a failed watch is renewed, with jitter, because many watches may break at the same time."""
    longest = min(RENEW_SECONDS * 2.0 ** min(3 * failures, 10), RETRY_SECONDS_MAX)
    return random.uniform(0.5, 1.0) * longest
