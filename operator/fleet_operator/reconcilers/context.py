"""Collaborators that every reconcile works with."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from fleet_consumer.clock import Clock
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.reconcilers.worker_watch import WorkerWatch
from fleet_operator.runtime.dispatcher import Queues
from fleet_operator.runtime.events import EventRecorder
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.status_writer import StatusWriter
from fleet_operator.runtime.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The collaborators of the reconcilers; one for the whole operator. `ending` closes what they have opened."""

    settings: Settings
    clock: Clock
    store: Store
    statuses: StatusWriter
    events: EventRecorder
    metrics: Metrics
    observers: ObserverPool
    workers: WorkerWatch
    queues: Queues
    ending: AsyncExitStack = field(default_factory=AsyncExitStack)
    chance: random.Random = field(default_factory=random.Random)

    def resync(self) -> float:
        """Seconds until an object is looked at again without an event; spread, or all would be due at once."""
        return self.settings.resync_seconds * (0.75 + 0.25 * self.chance.random())
