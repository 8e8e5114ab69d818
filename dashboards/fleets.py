"""The dashboard of all groups: groups with problems, groups with lag, and the total work."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.panels import Panel, choice, dashboard, graph, number, rows_of

CHOSEN: Final = '{group_namespace=~"$namespace"}'
GROUP: Final = "{{group_namespace}}/{{group_name}}"


def build() -> Dashboard:
    query = "label_values(consumer_fleet_group_info, group_namespace)"
    variables = [choice("namespace", "Namespace", query, several=True)]
    sections = [("Health", _health()), ("Lag", _lag()), ("Work", _work()), ("Retries", _retries())]
    return dashboard("Fleets", "All ConsumerGroups: health, lag, work and retries", variables, sections)


def _health() -> Sequence[Panel]:
    info, ready = f"consumer_fleet_group_info{CHOSEN}", f"consumer_fleet_group_ready{CHOSEN}"
    problem = f"consumer_fleet_group_problem{CHOSEN}"
    return (
        number("Groups", "none", f"count({info})"),
        number("Ready", "none", f"sum({ready})"),
        number("Not Ready", "none", f"count({ready} == 0) or vector(0)"),
        number("Degraded", "none", f"count({_with(problem, 'Degraded')}) or vector(0)"),
        number("Stalled", "none", f"count({_with(problem, 'Stalled')}) or vector(0)"),
        number(
            "Lag unknown", "none", f"count({info} unless on (group_namespace, group_name) {_lag_of()}) or vector(0)"
        ),
        rows_of("Problems", problem, text="Conditions that report a problem, by group", hidden=("Value",)),
        graph(
            "States of Kafka groups", "none", (f"count by (state) (consumer_fleet_group_state{CHOSEN})", "{{state}}")
        ),
        graph(
            "Workers",
            "none",
            (f"sum(consumer_fleet_group_wanted_replicas{CHOSEN})", "wanted"),
            (f"sum(consumer_fleet_group_ready_replicas{CHOSEN})", "ready"),
        ),
    )


def _lag() -> Sequence[Panel]:
    behind, largest = (
        f"consumer_fleet_group_behind_seconds{CHOSEN}",
        f"consumer_fleet_group_max_partition_lag_records{CHOSEN}",
    )
    return (
        graph("Lag, ten largest", "short", (f"topk(10, {_lag_of()})", GROUP)),
        graph("Time behind, ten longest", "s", (f"topk(10, {behind})", GROUP)),
        graph("Lag of one partition, ten largest", "short", (f"topk(10, {largest})", GROUP)),
        graph("Lag of all groups", "short", (f"sum({_lag_of()})", "records")),
    )


def _work() -> Sequence[Panel]:
    records = f"consumer_fleet_worker_records_total{CHOSEN}"
    busy = 'consumer_fleet_worker_busy_seconds_total{group_namespace=~"$namespace", role="main"}'
    commits = 'consumer_fleet_worker_commits_total{group_namespace=~"$namespace", outcome="failed"}'
    rebalances = f"consumer_fleet_worker_rebalances_total{CHOSEN}"
    return (
        graph("Records by result", "cps", (f"sum by (result) (rate({records}[$__rate_interval]))", "{{result}}")),
        graph(
            "Records, ten busiest groups",
            "cps",
            (f"topk(10, sum by (group_namespace, group_name) (rate({records}[$__rate_interval])))", GROUP),
        ),
        graph(
            "Used capacity, ten fullest groups",
            "percentunit",
            (f"topk(10, avg by (group_namespace, group_name) (rate({busy}[$__rate_interval])))", GROUP),
            text="Share of the handler slots of main workers that calls occupy",
        ),
        graph(
            "Failed commits",
            "cps",
            (f"topk(10, sum by (group_namespace, group_name) (rate({commits}[$__rate_interval])))", GROUP),
        ),
        graph(
            "Rebalances in an hour, ten most",
            "none",
            (f"topk(10, max by (group_namespace, group_name) (increase({rebalances}[1h])))", GROUP),
        ),
    )


def _retries() -> Sequence[Panel]:
    failures = f"consumer_fleet_worker_failures_total{CHOSEN}"
    oldest = f"consumer_fleet_group_retry_oldest_due_timestamp_seconds{CHOSEN}"
    return (
        graph("Waiting records", "short", (f"topk(10, consumer_fleet_group_retry_waiting_records{CHOSEN})", GROUP)),
        graph("Time since the oldest retry was due", "s", (f"topk(10, time() - {oldest})", GROUP)),
        graph("Failures by reason", "cps", (f"sum by (reason) (rate({failures}[$__rate_interval]))", "{{reason}}")),
        graph("Records in failed topics", "short", (f"topk(10, consumer_fleet_group_failed_records{CHOSEN})", GROUP)),
        graph("Open breakers", "none", (f"sum(consumer_fleet_group_breakers_open{CHOSEN})", "workers")),
    )


def _lag_of() -> str:
    return f"consumer_fleet_group_lag_records{CHOSEN}"


def _with(series: str, condition: str) -> str:
    return series.replace("}", f', condition="{condition}"}}')
