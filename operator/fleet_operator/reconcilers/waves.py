"""Upgrades in waves: the ledger of all groups, told by their reconciles and by changes of KafkaClusters."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fleet_operator.api.v1alpha1 import KafkaCluster, conditions
from fleet_operator.api.v1alpha1.refs import cluster_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.planning.fleet.revision import connection_digest
from fleet_operator.planning.fleet.wave_ledger import WaveLedger
from fleet_operator.planning.fleet.waves import Standing, Turn
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import UpgradeState
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.references import parse
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import News

log = logging.getLogger(__name__)

DEADLINE_LOOK_SECONDS: Final = 15.0
FIRST_ROUND_SECONDS: Final = 120.0
"""The longest wait of a new process for the first reconciles of all groups, before an upgrade begins: only they show
which groups are whole, and which go first."""
FIRST_ROUND: Final = Problem(
    conditions.WAITING_FOR_WAVE, "the operator has just started: upgrades begin when it has looked at all groups once"
)


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
        self._generations: dict[Key, int | None] = {}  # those at which groups were noted
        self._unheard: set[Key] | None = None  # groups of the first round that were not noted yet; None before it
        self._first_round_until = 0.0  # monotonic
        self._told: set[Key] = set()  # groups that show that they wait for the first round
        self.off = settings.max_concurrent_rollouts == 0
        if self.off:
            return
        context.store.cache(KAFKA_CLUSTER).followers.append(self._note_cluster)
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
            if late or (self._unheard and not self._is_first_round()):
                self._unheard = set()
                self._wake()

    def turn(self, body: JsonObject, key: Key, state: UpgradeState) -> Turn:
        """The turn of a group in this state; one that brings something holds a place until it is noted, or given
        back."""
        self._begin_first_round()
        if not self.off and self._generations.get(key) != body["metadata"].get("generation"):
            self._ledger.edited(key)
        if self._is_first_round() and not self._ledger.turn_alone(key).begins:
            behind = self._ledger.is_behind(cluster_of(body), state)
            if not behind or body["spec"].get("image"):
                return Turn(waves=True)
            self._told.add(key)
            return Turn(waves=True, wait=FIRST_ROUND)
        return self._ledger.turn(key)

    def give_back(self, key: Key) -> None:
        """Take back a turn of which nothing was made."""
        self._ledger.give_back(key)

    def note(self, body: JsonObject, key: Key, standing: Standing) -> None:
        """Note a group as its reconcile has found it; queues the groups whose turn has come by it."""
        if self.off:
            return
        self._begin_first_round()
        self._generations[key] = body["metadata"].get("generation")
        changed = self._ledger.note(key, standing)
        if self._heard(key) or changed:
            self._wake()
            if self._ledger.turn_alone(key).begins:
                self._queue.add(key)  # its fleet has gone down behind its KafkaCluster or the operator

    def forget(self, key: Key) -> None:
        """Note that a group is going, or cannot be read."""
        self._begin_first_round()
        self._generations.pop(key, None)
        if not self.off and (self._ledger.note(key, None) or self._heard(key)):
            self._wake()

    def _begin_first_round(self) -> None:
        """At the first reconcile the caches are filled."""
        if self._unheard is None:
            self._unheard = set(self._context.store.cache(CONSUMER_GROUP).keys())
            self._first_round_until = self._context.clock.monotonic() + FIRST_ROUND_SECONDS

    def _is_first_round(self) -> bool:
        """True until every group that the caches had at the first reconcile was noted once, within a time."""
        if self.off or self._unheard is None:
            return not self.off
        return bool(self._unheard) and self._context.clock.monotonic() < self._first_round_until

    def _heard(self, key: Key) -> bool:
        """True if this was the last group of the first round."""
        if not self._is_first_round() or self._unheard is None:
            return False
        self._unheard.discard(key)
        return not self._unheard

    def _note_cluster(self, key: Key, body: JsonObject | None) -> None:
        cluster = parse(KafkaCluster, body)
        if self._ledger.note_cluster(key, None if cluster is None else connection_digest(cluster)):
            self._wake()

    def _wake(self) -> None:
        if not self._is_first_round():
            for key in dict.fromkeys((*self._ledger.next(), *sorted(self._told))):
                self._queue.add(key)
            self._told.clear()
        for state, count in self._ledger.counts().items():
            self._metrics.upgrades.labels(state).set(count)
