"""Orders to running drivers, written to the control ConfigMap when they change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract.backfill_ledger import Control
from fleet_operator.planning.backfill import manifests
from fleet_operator.planning.backfill.guard import LiveGroup, control_of
from fleet_operator.planning.backfill.phase import BackfillFacts
from fleet_operator.planning.retry.topics import view_group
from fleet_operator.reconcilers.backfill.gather import GUARD, Gathered
from fleet_operator.reconcilers.context import Context, require_ours
from fleet_operator.reconcilers.references import ReferencedGroup
from fleet_operator.runtime.cache import Key, key_of

RENEW_SECONDS: Final = 60.0
"""Orders that stay the same are written again after this time, in case somebody has changed them."""


@dataclass(frozen=True, slots=True)
class _Given:
    uid: str
    orders: Control
    at: float


class Orders:
    """The orders to all drivers. Used on the event loop only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._given: dict[Key, _Given] = {}

    def forget(self, key: Key) -> None:
        self._given.pop(key, None)

    def wanted(self, key: Key, facts: BackfillFacts, referenced: ReferencedGroup) -> Control:
        """The orders for a driver now."""
        given = self._given.get(key)
        if given is not None and given.uid == facts.backfill.metadata.uid and given.orders.guard is not None:
            paused = given.orders.guard.pause
        else:
            paused = facts.backfill.status.get("throttledBy") == GUARD
        return control_of(facts.backfill, _live(referenced), stop=facts.stop, paused=paused)

    async def give(self, found: Gathered) -> None:
        """Write the orders, unless they are known to stand. Raises KubeError and ForeignObjectError."""
        key, uid, now = key_of(found.body), found.body["metadata"]["uid"], self._context.clock.monotonic()
        orders, given = self.wanted(key, found.facts, found.referenced), self._given.get(key)
        if given is not None and (given.uid, given.orders) == (uid, orders) and now - given.at < RENEW_SECONDS:
            return
        body = manifests.control(found.facts.backfill, orders)
        await require_ours(self._context.store, found.body, body)
        await self._context.store.kube.apply(body)
        self._given[key] = _Given(uid, orders, now)


def _live(referenced: ReferencedGroup) -> LiveGroup | None:
    group, seen = referenced.group, referenced.observation
    if group is None or seen is None:
        return None
    view = view_group(group, seen, None, own_cluster=False)
    lag = view.lag
    return LiveGroup(seen.observed_at, lag.behind if lag is not None and lag.complete else None)
