"""Gauges of a group: exact numbers, absent while unknown, gone with the group."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.planning.observation import RetryObservation, WorkerObservation
from fleet_operator.reconcilers.consumergroup.offset_changes import show_group
from fleet_operator.runtime.metrics import Metrics
from tests.unit.planning.builders import NOW, facts, observation, observed_group, unreachable

KEY = ("shop", "orders")
FLOW = RetryObservation(observed_at=NOW, waiting=1234, due_lag=56, oldest_due_at=NOW - 60)


def gauges(metrics: Metrics) -> dict[str, float]:
    """Each sample of this group by its name."""
    return {
        sample.name.removeprefix("consumer_fleet_group_"): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("group_name") == "orders" and not {"state", "condition"} & sample.labels.keys()
    }


def problems(metrics: Metrics) -> set[tuple[str, str]]:
    """Condition and reason of each problem of this group."""
    (family,) = metrics.group_problems.collect()
    found = [each.labels for each in family.samples if each.labels["group_name"] == "orders"]
    return {(labels["condition"], labels["reason"]) for labels in found}


def test_retry_metrics_are_exact() -> None:
    metrics = Metrics()
    opened = WorkerObservation(pod="orders-0", breaker="Open")
    seen = observation(observed_group(retry=FLOW, failed_records=8217))
    show_group(metrics.groups, KEY, facts(observation=seen, workers=(opened,)), {})
    found = gauges(metrics)
    assert found["retry_waiting_records"] == 1234
    assert found["retry_due_lag_records"] == 56
    assert found["retry_oldest_due_timestamp_seconds"] == NOW - 60
    assert found["failed_records"] == 8217
    assert found["breakers_open"] == 1


def test_unknown_metrics_are_absent_not_zero() -> None:
    metrics = Metrics()
    show_group(metrics.groups, KEY, facts(observation=observation(observed_group(retry=FLOW, failed_records=1))), {})
    unknown = replace(FLOW, waiting=None, due_lag=None, oldest_due_at=None)
    show_group(metrics.groups, KEY, facts(observation=observation(observed_group(retry=unknown, failed_records=1))), {})
    assert {"retry_waiting_records", "retry_due_lag_records", "retry_oldest_due_timestamp_seconds"}.isdisjoint(
        gauges(metrics)
    )
    show_group(metrics.groups, KEY, facts(observation=unreachable()), {})
    assert "failed_records" not in gauges(metrics)


def test_open_breakers_are_unknown_while_no_worker_answers() -> None:
    metrics = Metrics()
    show_group(metrics.groups, KEY, facts(pods=()), {})
    assert gauges(metrics)["breakers_open"] == 0, "no pod, no breaker"
    show_group(metrics.groups, KEY, facts(), {})
    assert "breakers_open" not in gauges(metrics)


def test_gauges_go_with_their_group() -> None:
    metrics = Metrics()
    show_group(metrics.groups, KEY, facts(observation=observation(observed_group(retry=FLOW, failed_records=1))), {})
    metrics.groups.remove(KEY)
    assert gauges(metrics) == {}
