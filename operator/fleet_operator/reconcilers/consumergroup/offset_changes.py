"""Offsets of groups between reconciles: metrics follow each observation; a changed status needs a reconcile.

Offsets move all the time, and nearly always within the buckets that a status shows. A full reconcile for each move
would be most of the operator's work, and change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.observe.changes import counts_of
from fleet_operator.planning.lag import GroupLag, behind_text, group_lag, lag_bucket
from fleet_operator.planning.observation import UNKNOWN_STATE, GroupObservation, RetryObservation, believed_group
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.retry import count_failures, redriven_of
from fleet_operator.reconcilers.consumergroup.session import GroupSession, GroupSessions, Place, Reading
from fleet_operator.reconcilers.consumergroup.sizing import has_news
from fleet_operator.reconcilers.context import Context
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import GroupSeries, Values

AGING_SECONDS: Final = 30.0
"""Interval at which groups whose offsets stand still are looked at: the time behind grows all the same."""
AT_ONCE: Final = 200
"""Groups looked at in one turn of the event loop."""


class OffsetChanges:
    """All groups whose offsets change between reconciles. Used on the event loop only."""

    def __init__(self, context: Context, sessions: GroupSessions) -> None:
        self._context = context
        self._sessions = sessions

    def follow(self, session: GroupSession, facts: ConsumerGroupFacts, cluster: Key) -> None:
        """Take in a reconcile's reading. A group that could not be observed is reconciled at each change."""
        observed, counts, lag = facts.observed_group, facts.view.partition_counts, facts.view.lag
        if observed is None or counts is None or lag is None:
            session.reading = None
            return
        self._note_age(session.reading, observed)
        session.reading = Reading(
            cluster=cluster,
            group_id=facts.group.group_id,
            partitions=counts,
            reset=facts.group.spec.consumer.auto_offset_reset,
            has_commits=bool(observed.committed),
            unknown=_unknown(observed, lag),
            failed_records=observed.failed_records,
            retry=counts_of(observed.retry),
            observed_at=observed.observed_at,
        )

    def moved(self, key: Key) -> bool:
        """Show changed offsets in the metrics; True if the group has to be reconciled."""
        session = self._sessions.find(key)
        reading = session.reading if session is not None else None
        if session is None or reading is None:
            return True
        seen = self._context.observers.latest(reading.cluster)
        found = seen.groups.get(reading.group_id) if seen is not None and seen.reachable else None
        observed = believed_group(found) if found is not None else None
        if observed is None or observed.error is not None:
            return True
        partitions = [(topic, number) for topic, count in reading.partitions.items() for number in range(count)]
        lag = group_lag(observed, partitions, reading.reset)
        self._note_age(reading, observed)
        reading.observed_at = observed.observed_at
        # No decision rests on a believed value.
        reports = self._context.workers.latest(key)
        news = observed is found and has_news(session, observed, lag, reports, self._context.clock.wall())
        scaled = scale_values(session.load.newest) if session.load is not None else {}
        self._context.metrics.groups.show(key, {**lag_values(lag), **retry_values(observed.retry), **scaled})
        if news:
            self._context.queues[CONSUMER_GROUP].add(key)
            return False
        now = bool(observed.committed), _unknown(observed, lag), observed.failed_records, counts_of(observed.retry)
        if now != (reading.has_commits, reading.unknown, reading.failed_records, reading.retry):
            return True
        body = self._context.store.get(CONSUMER_GROUP, key)
        # A group whose status was put off comes back when its turn has come: until then it would come in vain.
        waits = self._context.statuses.awaits_turn(CONSUMER_GROUP.kind, key)
        return body is None or (not waits and _shows_otherwise(body, lag))

    async def keep_aging(self) -> None:
        """Look at all groups from time to time; queues those whose status would change. Never returns."""
        while True:
            await asyncio.sleep(AGING_SECONDS)
            keys = self._sessions.keys()
            for start in range(0, len(keys), AT_ONCE):
                for key in keys[start : start + AT_ONCE]:
                    session = self._sessions.find(key)
                    if session is not None and session.reading is not None and self.moved(key):
                        self._context.queues[CONSUMER_GROUP].add(key)
                await asyncio.sleep(0)

    def _note_age(self, before: Reading | None, observed: GroupObservation) -> None:
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


def show_group(series: GroupSeries, key: Key, facts: ConsumerGroupFacts, status: JsonObject) -> None:
    """Show a group as it was found by a reconcile."""
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
    ready = conditions.find_condition(status.get("conditions") or (), conditions.READY)
    return None if ready is None else {"True": 1.0, "False": 0.0}.get(ready["status"])
