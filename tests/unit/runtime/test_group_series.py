"""Series of groups: made of plain values when somebody scrapes."""

from __future__ import annotations

from fleet_operator.runtime.metrics import Metrics

KEY = ("shop", "orders")


def samples(metrics: Metrics) -> list[str]:
    return [line for line in metrics.text().decode().splitlines() if line.startswith("consumer_fleet_group_")]


def test_group_has_a_sample_for_each_known_value_and_one_state() -> None:
    metrics = Metrics()
    assert samples(metrics) == []
    metrics.groups.label(KEY, state="Empty", info=("shop.orders", "shop", "main"))
    metrics.groups.label(KEY, state="Stable", info=("shop.orders", "shop", "main"))
    metrics.groups.show(KEY, {"lag_records": 5, "members": 2.0})
    metrics.groups.show(KEY, {"lag_records": None})
    labels = 'group_name="orders",group_namespace="shop"'
    assert samples(metrics) == [
        f"consumer_fleet_group_members{{{labels}}} 2.0",
        f'consumer_fleet_group_state{{{labels},state="Stable"}} 1.0',
        'consumer_fleet_group_info{cluster_name="main",cluster_namespace="shop",group_id="shop.orders",'
        f"{labels}}} 1.0",
    ]
    metrics.groups.remove(KEY)
    metrics.groups.remove(KEY)
    assert samples(metrics) == []


def test_only_a_group_with_a_problem_has_series_of_problems() -> None:
    metrics = Metrics()
    metrics.group_problems.show(KEY, [])
    assert samples(metrics) == []
    metrics.group_problems.show(KEY, [("Degraded", "TopicNotFound"), ("Stuck", "PartitionStuck")])
    metrics.group_problems.show(KEY, [("Degraded", "PartitionStuck"), ("Stuck", "PartitionStuck")])
    metrics.group_problems.show(("shop", "well"), [])
    labels = 'group_name="orders",group_namespace="shop",reason="PartitionStuck"'
    assert samples(metrics) == [
        f'consumer_fleet_group_problem{{condition="Degraded",{labels}}} 1.0',
        f'consumer_fleet_group_problem{{condition="Stuck",{labels}}} 1.0',
    ]
    metrics.group_problems.show(KEY, [])
    assert samples(metrics) == []
    metrics.group_problems.show(KEY, [("Stuck", "PartitionStuck")])
    metrics.drop_group(KEY)
    assert samples(metrics) == []
