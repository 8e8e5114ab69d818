"""The dashboard of the operator: leadership, reconciles, requests, caches, and observations of Kafka."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.panels import Panel, dashboard, graph, number, rows_of

CLUSTER: Final = "{{cluster_namespace}}/{{cluster_name}}"


def build() -> Dashboard:
    sections = [("State", _state()), ("Reconciles", _reconciles()), ("API server", _api()), ("Kafka", _kafka())]
    return dashboard("Operator", "The operator: reconciles, requests, caches, observations", [], sections)


def _state() -> Sequence[Panel]:
    return (
        number("Leaders", "none", f"sum({_of('leader')})"),
        number("Groups", "none", "count(consumer_fleet_group_info)"),
        number(
            "Groups with problems",
            "none",
            "count(count by (group_namespace, group_name) (consumer_fleet_group_problem)) or vector(0)",
        ),
        number("Status writes that wait", "none", f"sum({_of('status_waiting')})"),
        number("Lag of the event loop", "s", f"max({_of('loop_lag_seconds')})"),
        number("Refused kinds", "none", f"sum({_of('refused')}) or vector(0)"),
        graph("Leaders", "none", (_of("leader"), "{{instance}}")),
        graph("Lag of the event loop", "s", (_of("loop_lag_seconds"), "{{instance}}")),
    )


def _reconciles() -> Sequence[Panel]:
    return (
        graph("Reconciles by outcome", "cps", (_rate("reconciles_total", "kind", "outcome"), "{{kind}} {{outcome}}")),
        graph("Duration of a reconcile, p99", "s", (_quantile("reconcile_duration_seconds", "kind"), "{{kind}}")),
        graph("Wait for a reconcile, p99", "s", (_quantile("queue_wait_seconds", "kind"), "{{kind}}")),
        graph("Objects that wait", "none", (f"sum by (kind) ({_of('queue_depth')})", "{{kind}}")),
        graph("Age of observations at decisions, p99", "s", (_quantile("decision_age_seconds"), "age")),
        graph(
            "Upgrades", "none", (f"sum by (state) ({_of('upgrades')})", "{{state}}"), text="Only with upgrades by waves"
        ),
        graph("Offset resets", "none", (f"sum(increase({_of('offset_resets_total')}[1h]))", "within an hour")),
        graph(
            "Visits of empty groups",
            "none",
            (f"sum by (outcome) (increase({_of('group_visits_total')}[1h]))", "{{outcome}}"),
        ),
        graph("Events", "cps", (_rate("events_total", "outcome"), "{{outcome}}")),
    )


def _api() -> Sequence[Panel]:
    return (
        graph("Requests", "cps", (_rate("api_requests_total", "verb", "resource"), "{{verb}} {{resource}}")),
        graph("Requests by status code", "cps", (_rate("api_requests_total", "code"), "{{code}}")),
        graph("Watch events", "cps", (_rate("watch_events_total", "kind"), "{{kind}}")),
        graph("Corrections of caches", "cps", (_rate("watch_corrections_total", "kind"), "{{kind}}")),
        graph("Objects in caches", "none", (f"sum by (kind) ({_of('cached_objects')})", "{{kind}}")),
        graph(
            "Status writes",
            "cps",
            (_rate("status_writes_total", "kind"), "{{kind}}"),
            (_rate("status_deferred_total", "kind"), "{{kind}} deferred"),
        ),
        rows_of("Refused by the API server", f"{_of('refused')} > 0", hidden=("Value",)),
    )


def _kafka() -> Sequence[Panel]:
    return (
        graph(
            "Time since the last observation", "s", (f"time() - {_of('last_observation_timestamp_seconds')}", CLUSTER)
        ),
        graph(
            "Duration of an observation, p99",
            "s",
            (_quantile("observation_duration_seconds", "cluster_namespace", "cluster_name"), CLUSTER),
        ),
        graph(
            "Failed observations",
            "cps",
            (
                _rate("observation_failures_total", "cluster_namespace", "cluster_name", "reason"),
                f"{CLUSTER} {{{{reason}}}}",
            ),
        ),
        rows_of("Problems of Kafka clusters", _of("cluster_problem"), hidden=("Value",)),
    )


def _of(name: str) -> str:
    return f"consumer_fleet_operator_{name}"


def _rate(name: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (rate({_of(name)}[$__rate_interval]))"


def _quantile(name: str, *labels: str) -> str:
    buckets = f"rate({_of(name)}_bucket[$__rate_interval])"
    return f"histogram_quantile(0.99, sum by ({', '.join((*labels, 'le'))}) ({buckets}))"
