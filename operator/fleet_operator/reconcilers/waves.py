"""Upgrades in waves: the ledger of all groups, kept by what the caches learn of ConsumerGroups and KafkaClusters."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.api.v1alpha1.refs import cluster_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.planning.fleet.revision import connection_digest
from fleet_operator.planning.fleet.wave_ledger import WaveLedger
from fleet_operator.planning.fleet.waves import Turn, read_standing
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.references import parse
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import News

log = logging.getLogger(__name__)

DEADLINE_LOOK_SECONDS: Final = 15.0


class Waves:
    """The turns of all groups of one operator. Used on the event loop only.

    A group that frees a place has the next ones reconciled, as many as there are places: not all that wait.
    """

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._ledger = WaveLedger(
            settings.max_concurrent_rollouts,
            settings.consumer_image,
            deadline_s=settings.upgrade_deadline_seconds,
            force=settings.force_upgrades,
        )
        self._queue = context.queues[CONSUMER_GROUP]
        self._metrics = context.metrics
        self._canaries = frozenset(settings.canary_namespaces)
        if settings.max_concurrent_rollouts == 0:
            return
        context.store.cache(KAFKA_CLUSTER).followers.append(self._note_cluster)
        context.store.cache(CONSUMER_GROUP).followers.append(self._note)
        context.beside.append(self.keep_time)

    async def keep_time(self) -> None:
        """Have those go on that a group has held up for too long, and tell of it. Never returns."""
        context = self._context
        while True:
            await asyncio.sleep(DEADLINE_LOOK_SECONDS)
            late = self._ledger.expire(context.clock.monotonic())
            for key, what in late:
                log.warning("a group holds up upgrades for too long", extra={"key": "/".join(key), "what": what})
                body = context.store.get(CONSUMER_GROUP, key)
                note = f"this group has held up {what} for {self._ledger.deadline_s:.0f} s: the others go on without it"
                if body is not None:
                    context.events.record(News(body, "Warning", "UpgradeOverdue", note))
            if late:
                self._wake()

    def turn(self, key: Key) -> Turn:
        """The turn of a group; one that brings something holds a place until it shows in a status or is given back."""
        return self._ledger.turn(key)

    def give_back(self, key: Key) -> None:
        """Take back a turn of which nothing was made."""
        self._ledger.give_back(key)

    def _note(self, key: Key, body: JsonObject | None) -> None:
        if self._ledger.note(key, None if body is None else read_standing(body, cluster_of(body), self._canaries)):
            self._wake()
            if self._ledger.turn_alone(key).begins:
                self._queue.add(key)  # its fleet has gone down behind its KafkaCluster or the operator

    def _note_cluster(self, key: Key, body: JsonObject | None) -> None:
        cluster = parse(KafkaCluster, body)
        if self._ledger.note_cluster(key, None if cluster is None else connection_digest(cluster)):
            self._wake()

    def _wake(self) -> None:
        for key in self._ledger.next():
            self._queue.add(key)
        for state, count in self._ledger.counts().items():
            self._metrics.upgrades.labels(state).set(count)
