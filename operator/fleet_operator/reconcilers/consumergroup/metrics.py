"""Gauges of ConsumerGroups, with exact numbers where the status has buckets."""

from __future__ import annotations

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.lag import GroupLag
from fleet_operator.planning.observation import UNKNOWN_STATE, RetryObservation
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.retry import count_failures, read_redriven
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.group_series import GroupSeries, Values


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
    redriven = read_redriven((status.get("retry") or {}).get("redriven") or {}, facts.failed_topic_id)
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
