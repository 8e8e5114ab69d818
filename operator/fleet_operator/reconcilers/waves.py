"""Upgrades in waves: assigns upgrade slots to groups. The assignment is based on a `WaveLedger`, which is updated after
each reconcile of a group and each change of a KafkaCluster."""

import asyncio
import logging
from typing import Final

from fleet_operator.api.v1alpha1 import KafkaCluster, conditions
from fleet_operator.api.v1alpha1.refs import cluster_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.planning.fleet.revision import connection_digest
from fleet_operator.planning.fleet.wave_ledger import WaveLedger
from fleet_operator.planning.fleet.waves import RolloutStatus, Slot
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import UpgradeState
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.references import parse
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.events import Event

log = logging.getLogger(__name__)

DEADLINE_CHECK_SECONDS: Final = 15.0
FIRST_ROUND_SECONDS: Final = 120.0
"""Longest time in seconds for which a new process delays upgrades until it has reconciled every group once. Only these
reconciles show which groups are healthy, and which groups must be upgraded first."""
FIRST_ROUND: Final = Problem(
    conditions.WAITING_FOR_WAVE, "the operator has just started: upgrades begin when it has reconciled all groups once"
)


class Waves:
    """The upgrade slots of all groups of one operator. Used on the event loop only. When slots become free, only one
    waiting group is queued for each free slot."""

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
        self._generations: dict[Key, int | None] = {}  # metadata.generation of each group, as last recorded
        self._unheard: set[Key] | None = (
            None  # groups that the first round has not reconciled yet; None before it begins
        )
        self._first_round_until = 0.0  # monotonic
        self._told: set[Key] = set()  # groups whose status says that they wait for the end of the first round
        self.off = settings.max_concurrent_rollouts == 0
        if self.off:
            return
        context.store.cache(KAFKA_CLUSTER).followers.append(self._record_cluster)
        context.background_tasks.append(self.keep_time)

    async def keep_time(self) -> None:
        """If a group has delayed other groups for too long, let the others continue, and record an Event. Never
        returns."""
        context = self._context
        while True:
            await asyncio.sleep(DEADLINE_CHECK_SECONDS)
            late = self._ledger.expire(context.clock.monotonic())
            for key, what in late:
                log.warning("a group holds up upgrades for too long", extra={"key": "/".join(key), "what": what})
                body = context.store.get(CONSUMER_GROUP, key)
                note = f"this group has held up {what} for {self._ledger.deadline_s:.0f} s: other groups no longer wait"
                if body is not None:
                    context.events.record(Event(body, "Warning", "UpgradeOverdue", note))
            if late or (self._unheard and not self._is_first_round()):
                self._unheard = set()
                self._wake()

    def slot(self, body: JsonObject, key: Key, state: UpgradeState) -> Slot:
        """Return a group's upgrade slot. `state` is the group's upgrade state. A slot that permits a change stays
        occupied until `record_group` or `release` is called for the group."""
        self._begin_first_round()
        if not self.off and self._generations.get(key) != body["metadata"].get("generation"):
            self._ledger.edited(key)
        if self._is_first_round() and not self._ledger.slot_alone(key).begins:
            behind = self._ledger.is_behind(cluster_of(body), state)
            if not behind or body["spec"].get("image"):
                return Slot(waves=True)
            self._told.add(key)
            return Slot(waves=True, wait=FIRST_ROUND)
        return self._ledger.slot(key)

    def release(self, key: Key) -> None:
        self._ledger.release(key)

    def record_group(self, body: JsonObject, key: Key, status: RolloutStatus) -> None:
        """Record the result of a group's reconcile, and queue the groups that this allows to start an upgrade."""
        if self.off:
            return
        self._begin_first_round()
        self._generations[key] = body["metadata"].get("generation")
        changed = self._ledger.record_group(key, status)
        if self._heard(key) or changed:
            self._wake()
            if self._ledger.slot_alone(key).begins:
                self._queue.add(key)  # the fleet has no workers and is outdated, so its upgrade may start now

    def drop_group(self, key: Key) -> None:
        """Drop a group from the ledger, because it is being deleted or cannot be read."""
        self._begin_first_round()
        self._generations.pop(key, None)
        if not self.off and (self._ledger.record_group(key, None) or self._heard(key)):
            self._wake()

    def _begin_first_round(self) -> None:
        """Begin the first round, if it has not begun. The first reconcile calls this, because the caches are filled by
        then."""
        if self._unheard is None:
            self._unheard = set(self._context.store.cache(CONSUMER_GROUP).keys())
            self._first_round_until = self._context.clock.monotonic() + FIRST_ROUND_SECONDS

    def _is_first_round(self) -> bool:
        """True until all groups in the cache at the first reconcile are recorded or FIRST_ROUND_SECONDS have passed."""
        if self.off or self._unheard is None:
            return not self.off
        return bool(self._unheard) and self._context.clock.monotonic() < self._first_round_until

    def _heard(self, key: Key) -> bool:
        """Record that a group was reconciled; returns True if it was the last group of the first round."""
        if not self._is_first_round() or self._unheard is None:
            return False
        self._unheard.discard(key)
        return not self._unheard

    def _record_cluster(self, key: Key, body: JsonObject | None) -> None:
        cluster = parse(KafkaCluster, body)
        if self._ledger.record_cluster(key, None if cluster is None else connection_digest(cluster)):
            self._wake()

    def _wake(self) -> None:
        if not self._is_first_round():
            for key in dict.fromkeys((*self._ledger.next(), *sorted(self._told))):
                self._queue.add(key)
            self._told.clear()
        for state, count in self._ledger.counts().items():
            self._metrics.upgrades.labels(state).set(count)
