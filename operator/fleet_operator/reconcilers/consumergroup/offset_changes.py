"""Handles changes of offsets between reconciles: each observation updates the metrics, but a reconcile follows only if
the status or a decision would change.

Offsets change all the time, but a status shows only rounded values, which rarely change. If each change of offsets
caused a full reconcile, these reconciles would be most of the operator's work, and most of them would change nothing.
Decision: docs/decisions/0048-thousands-of-groups.md.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.observe.changes import counts_of
from fleet_operator.planning.lag import GroupLag, behind_text, group_lag, lag_bucket
from fleet_operator.planning.observation import UNKNOWN_STATE, GroupObservation, RetryObservation, last_known_group
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.retry import count_failures, redriven_of
from fleet_operator.reconcilers.consumergroup.session import GroupSession, GroupSessions, LagInputs
from fleet_operator.reconcilers.consumergroup.sizing import needs_reconcile
from fleet_operator.reconcilers.context import Context
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import GroupSeries, Values

AGING_SECONDS: Final = 30.0
"""Interval in seconds between checks of groups whose offsets do not change, because the age of their oldest unread
record still grows."""
AT_ONCE: Final = 200
"""Number of groups that are checked in one iteration of the event loop."""


class OffsetChanges:
    def __init__(self, context: Context, sessions: GroupSessions) -> None:
        self._context = context
        self._sessions = sessions

    def follow(self, session: GroupSession, facts: ConsumerGroupFacts, cluster: Key) -> None:
        """Cache the inputs from which the group's lag is computed. If an input is unknown, the group is reconciled at
        each change of its offsets."""
        observed, counts, lag = facts.observed_group, facts.view.partition_counts, facts.view.lag
        if observed is None or counts is None or lag is None:
            session.lag_inputs = None
            return
        self._observe_age(session.lag_inputs, observed)
        session.lag_inputs = LagInputs(
            cluster=cluster,
            group_id=facts.group.group_id,
            partitions=counts,
            reset=facts.group.spec.consumer.auto_offset_reset,
            decisive=_decisive(observed, lag),
            observed_at=observed.observed_at,
        )

    def moved(self, key: Key) -> bool:
        """Update the metrics from changed offsets; returns True if the group must be reconciled."""
        session = self._sessions.find(key)
        lag_inputs = session.lag_inputs if session is not None else None
        if session is None or lag_inputs is None:
            return True
        seen = self._context.observers.latest(lag_inputs.cluster)
        found = seen.groups.get(lag_inputs.group_id) if seen is not None and seen.reachable else None
        observed = last_known_group(found) if found is not None else None
        if observed is None or observed.error is not None:
            return True
        partitions = [(topic, number) for topic, count in lag_inputs.partitions.items() for number in range(count)]
        lag = group_lag(observed, partitions, lag_inputs.reset)
        self._observe_age(lag_inputs, observed)
        lag_inputs.observed_at = observed.observed_at
        # `observed` may be a last known value; no scaling decision is based on such a value.
        reports = self._context.workers.latest(key)
        due = observed is found and needs_reconcile(session, observed, lag, reports, self._context.clock.wall())
        scaled = scale_values(session.load.newest) if session.load is not None else {}
        self._context.metrics.groups.show(key, {**lag_values(lag), **retry_values(observed.retry), **scaled})
        if due:
            self._context.queues[CONSUMER_GROUP].add(key)
            return False
        if _decisive(observed, lag) != lag_inputs.decisive:
            return True
        body = self._context.store.get(CONSUMER_GROUP, key)
        # A group with a deferred status write is already queued for the time of that write.
        waits = self._context.statuses.awaits_slot(CONSUMER_GROUP.kind, key)
        return body is None or (not waits and _shows_otherwise(body, lag))

    async def keep_aging(self) -> None:
        """Check all groups every AGING_SECONDS and queue those whose status would change. Never returns."""
        while True:
            await asyncio.sleep(AGING_SECONDS)
            keys = self._sessions.keys()
            for start in range(0, len(keys), AT_ONCE):
                for key in keys[start : start + AT_ONCE]:
                    session = self._sessions.find(key)
                    if session is not None and session.lag_inputs is not None and self.moved(key):
                        self._context.queues[CONSUMER_GROUP].add(key)
                await asyncio.sleep(0)

    def _observe_age(self, before: LagInputs | None, observed: GroupObservation) -> None:
        """Record in a metric how old the last observation was when the new observation replaced it."""
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


def _decisive(observed: GroupObservation, lag: GroupLag) -> tuple[object, ...]:
    """Facts whose change requires a reconcile. They include the partitions with unknown lag, grouped by cause: a commit
    beyond the log end offset, an unknown log end offset, or another cause."""
    unknown = frozenset(key for key, value in lag.partitions.items() if value is None)
    apart = unknown, unknown & observed.beyond_end, unknown - observed.end_offsets.keys()
    return bool(observed.committed), apart, observed.failed_records, counts_of(observed.retry)


def show_group(series: GroupSeries, key: Key, facts: ConsumerGroupFacts, status: JsonObject) -> None:
    state = status.get("state") or UNKNOWN_STATE
    info = facts.group.group_id, key[0], facts.group.spec.cluster_ref.name
    series.label(key, state=state, info=info)
    series.show(key, group_values(facts, status))


def group_values(facts: ConsumerGroupFacts, status: JsonObject) -> Values:
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
        # None (unknown) if the group has pods, but none of them answers. A group without pods has no open breaker.
        "breakers_open": len(facts.open_breakers) if facts.workers or not facts.all_pods else None,
    }


def scale_values(decision: ScaleDecision) -> Values:
    inputs = decision.inputs or ScaleInputs()
    return {
        "wanted_replicas": decision.replicas if decision.proposed is None else decision.proposed,
        "arrival_records_per_second": inputs.arrival,
        "worker_capacity_records_per_second": inputs.capacity,
    }


def retry_values(retry: RetryObservation | None) -> Values:
    return {
        "retry_waiting_records": None if retry is None else retry.waiting,
        "retry_due_lag_records": None if retry is None else retry.due_lag,
        "retry_oldest_due_timestamp_seconds": None if retry is None else retry.oldest_due_at,
    }


def lag_values(lag: GroupLag | None) -> Values:
    """The values of the lag gauges; None if the lag is incomplete, because partial sums and maxima would be wrong."""
    known = lag if lag is not None and lag.complete else None
    return {
        "lag_records": None if known is None else known.total,
        "max_partition_lag_records": None if known is None else max(each or 0 for each in known.partitions.values()),
        "behind_seconds": None if known is None or known.behind is None else known.behind.seconds,
    }


def _ready(status: JsonObject) -> float | None:
    ready = conditions.find_condition(status.get("conditions") or (), conditions.READY)
    return None if ready is None else {"True": 1.0, "False": 0.0}.get(ready["status"])
