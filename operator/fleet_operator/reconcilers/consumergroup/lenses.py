"""Offsets of groups between reconciles: metrics follow each observation; a changed status takes a reconcile.

Offsets move all the time, and nearly always within the buckets that a status shows. A full reconcile for each move
would be most of the operator's work, and change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.lag import GroupLag, ResetPolicy, behind_text, group_lag, lag_bucket
from fleet_operator.planning.observation import GroupObservation, RetryObservation, believed_group
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.reconcilers.consumergroup.metrics import lag_values, retry_values, scale_values
from fleet_operator.reconcilers.consumergroup.scaling_watch import ScalingWatch
from fleet_operator.reconcilers.context import Context
from fleet_operator.runtime.cache import Key

Place = tuple[str, int]
"""A topic and a partition of it."""

AGING_SECONDS: Final = 30.0
"""Interval at which groups whose offsets stand still are looked at: the time behind grows all the same."""
AT_ONCE: Final = 200
"""Groups looked at in one turn of the event loop."""


@dataclass(slots=True)
class _Lens:
    """The last reconcile's reading of one group: what its lag is computed from, and what the status shows."""

    cluster: Key
    group_id: str
    partitions: Mapping[str, int]
    reset: ResetPolicy
    has_commits: bool
    unknown: tuple[frozenset[Place], ...]
    failed_records: int | None
    retry: tuple[object, ...] | None
    observed_at: float


class Lenses:
    """All groups that were observed when they were reconciled last. Used on the event loop only."""

    def __init__(self, context: Context, scaling: ScalingWatch) -> None:
        self._context = context
        self._scaling = scaling
        self._lenses: dict[Key, _Lens] = {}

    def focus(self, key: Key, facts: ConsumerGroupFacts, cluster: Key) -> None:
        """Take in a reconcile's reading. A group that could not be observed is reconciled at each move."""
        observed, counts, lag = facts.observed_group, facts.view.partition_counts, facts.view.lag
        if observed is None or counts is None or lag is None:
            self._lenses.pop(key, None)
            return
        self._note_age(self._lenses.get(key), observed)
        self._lenses[key] = _Lens(
            cluster=cluster,
            group_id=facts.group.group_id,
            partitions=counts,
            reset=facts.group.spec.consumer.auto_offset_reset,
            has_commits=bool(observed.committed),
            unknown=_unknown(observed, lag),
            failed_records=observed.failed_records,
            retry=_counts(observed.retry),
            observed_at=observed.observed_at,
        )

    def forget(self, key: Key) -> None:
        self._lenses.pop(key, None)

    def moved(self, key: Key) -> bool:
        """Show moved offsets in the metrics; True if the group has to be reconciled."""
        lens = self._lenses.get(key)
        if lens is None:
            return True
        seen = self._context.observers.latest(lens.cluster)
        found = seen.groups.get(lens.group_id) if seen is not None and seen.reachable else None
        observed = believed_group(found) if found is not None else None
        if observed is None or observed.error is not None:
            return True
        partitions = [(topic, number) for topic, count in lens.partitions.items() for number in range(count)]
        lag = group_lag(observed, partitions, lens.reset)
        self._note_age(lens, observed)
        lens.observed_at = observed.observed_at
        # No decision rests on a believed value.
        news = observed is found and self._scaling.has_news(key, observed, lag)
        newest = self._scaling.newest(key)
        scaled = scale_values(newest) if newest is not None else {}
        self._context.metrics.groups.show(key, {**lag_values(lag), **retry_values(observed.retry), **scaled})
        if news:
            self._context.queues[CONSUMER_GROUP].add(key)
            return False
        now = bool(observed.committed), _unknown(observed, lag), observed.failed_records, _counts(observed.retry)
        if now != (lens.has_commits, lens.unknown, lens.failed_records, lens.retry):
            return True
        body = self._context.store.get(CONSUMER_GROUP, key)
        # A group whose status was put off comes back when its turn has come: until then it would come in vain.
        waits = self._context.statuses.awaits_turn(CONSUMER_GROUP.kind, key)
        return body is None or (not waits and _shows_otherwise(body, lag))

    async def keep_aging(self) -> None:
        """Look at all groups from time to time; queues those whose status would change. Never returns."""
        while True:
            await asyncio.sleep(AGING_SECONDS)
            keys = list(self._lenses)
            for start in range(0, len(keys), AT_ONCE):
                for key in keys[start : start + AT_ONCE]:
                    if key in self._lenses and self.moved(key):
                        self._context.queues[CONSUMER_GROUP].add(key)
                await asyncio.sleep(0)

    def _note_age(self, before: _Lens | None, observed: GroupObservation) -> None:
        """The age that the last observation had reached when this one took its place."""
        if before is not None and observed.observed_at > before.observed_at:
            age = self._context.clock.wall() - before.observed_at
            self._context.metrics.decision_age.observe(max(age, 0.0))


def _shows_otherwise(body: JsonObject, lag: GroupLag) -> bool:
    status: Mapping[str, Any] = body.get("status") or {}
    if not lag.complete or lag.total is None:
        return False
    bucket = lag_bucket(lag.total, status.get("lagApproximate"))
    shown = (status.get("lagApproximate"), status.get("behindText"))
    return shown != (bucket, behind_text(lag.behind, status.get("behindText", "")))


def _unknown(observed: GroupObservation, lag: GroupLag) -> tuple[frozenset[Place], ...]:
    """The partitions without a lag, and those of them that have another reason for it; empty where all have one."""
    if lag.complete:
        return ()
    unknown = frozenset(key for key, value in lag.partitions.items() if value is None)
    return unknown, unknown & observed.beyond_end, unknown - observed.end_offsets.keys()


def _counts(retry: RetryObservation | None) -> tuple[object, ...] | None:
    """The counts of a retry flow, by which its workers are scaled."""
    return None if retry is None else (retry.waiting, retry.due_lag, retry.oldest_due_at, retry.next_due_at)
