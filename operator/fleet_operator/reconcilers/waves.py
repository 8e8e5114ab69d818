"""Upgrades in waves: the ledger of all groups, kept by what the caches learn of ConsumerGroups and KafkaClusters."""

from __future__ import annotations

from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.api.v1alpha1.refs import cluster_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.planning.fleet.revision import connection_digest
from fleet_operator.planning.fleet.wave_ledger import WaveLedger
from fleet_operator.planning.fleet.waves import Turn, read_standing
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.references import parse
from fleet_operator.runtime.cache import Key


class Waves:
    """The turns of all groups of one operator. Used on the event loop only.

    A group that frees a place has the next ones reconciled, as many as there are places: not all that wait.
    """

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._ledger = WaveLedger(settings.max_concurrent_rollouts, settings.consumer_image)
        self._queue = context.queues[CONSUMER_GROUP]
        self._metrics = context.metrics
        if settings.max_concurrent_rollouts == 0:
            return
        context.store.cache(KAFKA_CLUSTER).followers.append(self._note_cluster)
        context.store.cache(CONSUMER_GROUP).followers.append(self._note)

    def turn(self, key: Key) -> Turn:
        """The turn of a group; one that brings something holds a place until it shows in a status or is given back."""
        return self._ledger.turn(key)

    def give_back(self, key: Key) -> None:
        """Take back a turn of which nothing was made."""
        self._ledger.give_back(key)

    def _note(self, key: Key, body: JsonObject | None) -> None:
        if self._ledger.note(key, None if body is None else read_standing(body, cluster_of(body))):
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
