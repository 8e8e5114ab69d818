"""The console's copy of the list of fleets, and its reads of the operator's caches.

The caches and observations belong to the operator's event loop. So every read runs on that loop, and takes only
microseconds. When a ConsumerGroup changes, its row in the list is built from the body that the cache has just parsed. A
queue passes the rows to the console's thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import KafkaCluster, refs
from fleet_operator.clients.kinds import BACKFILL, CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.console.views.fleets import FleetRow, Key, fleet_row, in_order
from fleet_operator.console.views.scaling import History
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.observation import ClusterObservation, as_of
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Facts:
    """One ConsumerGroup: its object, the newest observation of its Kafka cluster, and its KafkaCluster, all read
    together."""

    body: JsonObject
    observation: ClusterObservation | None
    cluster: JsonObject | None = None

    def seen(self, now: float) -> ClusterObservation | None:
        """The observation as reconciles use it. If its observer hangs, it is marked as unreachable. If the
        KafkaCluster's connection has been edited since the observation, it is marked as not `current`."""
        if self.observation is None or self.cluster is None:
            return self.observation
        try:
            spec = KafkaCluster.model_validate(self.cluster).spec
        except ValidationError:
            return replace(self.observation, current=False)
        found = as_of(self.observation, interval_s=float(spec.observe_interval_seconds), now=now)
        return found if found is None or found.connection == spec.connection else replace(found, current=False)


class Source:
    """Reads of the operator's caches and observations. Create a Source on the operator's event loop, before the caches
    are filled; await its coroutines on any other loop."""

    def __init__(self, store: Store, observers: ObserverPool) -> None:
        self.changes: deque[tuple[Key, FleetRow | None]] = deque()
        self._store, self._observers = store, observers
        self._loop = asyncio.get_running_loop()
        store.cache(CONSUMER_GROUP).followers.append(self._changed)

    def _changed(self, key: Key, body: JsonObject | None) -> None:
        try:
            self.changes.append((key, None if body is None else fleet_row(body)))
        except (AttributeError, KeyError, TypeError, ValueError):  # an error of the console must never stop the caches
            log.warning("the console cannot read a status", extra={"group": "/".join(key)}, exc_info=True)

    async def facts(self, key: Key) -> Facts | None:
        """Read the facts about a ConsumerGroup; None if the ConsumerGroup does not exist."""
        return await self._there(lambda: self._facts(key))

    def _facts(self, key: Key) -> Facts | None:
        body = self._store.get(CONSUMER_GROUP, key)
        if body is None:
            return None
        cluster = refs.cluster_of(body)
        return Facts(body, self._observers.latest(cluster), self._store.get(KAFKA_CLUSTER, cluster))

    async def backfills(self, key: Key) -> list[JsonObject]:
        """The Backfills of a ConsumerGroup."""
        return await self._there(lambda: self._store.cache(BACKFILL).having(key))

    async def _there(self, read: Callable[[], Result]) -> Result:
        async def reading() -> Result:
            return read()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading(), self._loop))


@dataclass(slots=True)
class Board:
    """The rows of all fleets, and the histories for plots. Used on the console's thread. `version` increases with each
    change."""

    rows: dict[Key, FleetRow] = field(default_factory=dict)
    histories: dict[Key, History] = field(default_factory=dict)
    version: int = 0
    _ordered: tuple[int, list[FleetRow]] = (-1, [])
    _namespaces: tuple[int, list[str]] = (-1, [])

    def take(self, changes: deque[tuple[Key, FleetRow | None]], now: float) -> None:
        """Apply changes, oldest first. For each scaled fleet, also record the values that are plotted, such as its lag
        and its number of workers. `now` is in epoch seconds."""
        while changes:
            key, row = changes.popleft()
            self.version += 1
            if row is None:
                self.rows.pop(key, None)
                self.histories.pop(key, None)
                continue
            self.rows[key] = row
            if row.scaled:
                self.histories.setdefault(key, History()).record(row, now)

    def ordered(self) -> list[FleetRow]:
        """All rows, sorted as in the list of fleets. They are sorted once per version."""
        if self._ordered[0] != self.version:
            self._ordered = self.version, in_order(self.rows.values())
        return self._ordered[1]

    def namespaces(self) -> list[str]:
        """The namespaces that have fleets, sorted by name."""
        if self._namespaces[0] != self.version:
            self._namespaces = self.version, sorted({namespace for namespace, _ in self.rows})
        return self._namespaces[1]
