"""Offsets of groups between reconciles: metrics follow each observation; a changed status takes a reconcile.

Offsets move all the time, and nearly always within the buckets that a status shows. A full reconcile for each move
would be most of the operator's work, and change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.lag import GroupLag, ResetPolicy, behind_text, group_lag, lag_bucket
from fleet_operator.planning.observation import UNKNOWN_STATE, GroupObservation, RetryObservation, believed_group
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.retry import count_failures, redriven_of
from fleet_operator.reconcilers.consumergroup.scaling import ScalingWatch
from fleet_operator.reconcilers.context import Context
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import GroupSeries, Values

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


def show_group(series: GroupSeries, key: Key, facts: ConsumerGroupFacts, status: JsonObject) -> None:
    """Show a group as it was found by a reconcile."""
    state = status.get("state") or UNKNOWN_STATE
    info = facts.group.group_id, key[0], facts.group.spec.cluster_ref.name
    series.label(key, state=state, info=info)
    series.show(key, group_values(facts, status))


def group_values(facts: ConsumerGroupFacts, status: JsonObject) -> Values:
    """The value of each gauge of a group."""
    observed = facts.observed_group
    lag = facts.view.lag if observed is not None else None
    retry = observed.retry if observed is not None else None
    redriven = redriven_of(facts.redriven, facts.failed_topic_id)
    return {
        "ready": _ready(status),
        "ready_replicas": facts.fleet.ready_replicas if facts.fleet else 0,
        **scale_values(facts.scale),
        "members": None if observed is None else len(observed.members),
        **lag_values(lag),
        **retry_values(retry),
        "failed_records": None if observed is None else count_failures(observed, redriven),
        # Pods of which none answers may all have an open breaker; a group without pods has none.
        "breakers_open": len(facts.open_breakers) if facts.workers or not facts.all_pods else None,
    }


def scale_values(decision: ScaleDecision) -> Values:
    """The gauges of a decision about the number of workers."""
    inputs = decision.inputs or ScaleInputs()
    return {
        "wanted_replicas": decision.replicas if decision.proposed is None else decision.proposed,
        "arrival_records_per_second": inputs.arrival,
        "worker_capacity_records_per_second": inputs.capacity,
    }


def retry_values(retry: RetryObservation | None) -> Values:
    """The gauges of waiting retries."""
    return {
        "retry_waiting_records": None if retry is None else retry.waiting,
        "retry_due_lag_records": None if retry is None else retry.due_lag,
        "retry_oldest_due_timestamp_seconds": None if retry is None else retry.oldest_due_at,
    }


def lag_values(lag: GroupLag | None) -> Values:
    """The gauges of lag. A part of a sum is no lag, and the largest of a part not the largest."""
    known = lag if lag is not None and lag.complete else None
    return {
        "lag_records": None if known is None else known.total,
        "max_partition_lag_records": None if known is None else max(each or 0 for each in known.partitions.values()),
        "behind_seconds": None if known is None or known.behind is None else known.behind.seconds,
    }


def _ready(status: JsonObject) -> float | None:
    for condition in status.get("conditions") or ():
        if condition["type"] == conditions.READY:
            return {"True": 1.0, "False": 0.0}.get(condition["status"])
    return None
