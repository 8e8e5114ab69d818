"""The operator's Prometheus metrics, all in one registry and one place, so that the reference page can list them.

Nothing else but `group_series` imports prometheus_client.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fleet_operator.runtime.group_series import CLUSTER_LABELS, GroupSeries

PREFIX: Final = "consumer_fleet_operator"
LATENCY_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0)
AGE_BUCKETS: Final = (1.0, 2.0, 5.0, 7.5, 10.0, 12.5, 15.0, 20.0, 30.0, 60.0)
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


# A series with the time of its making beside each counter: Prometheus finds resets without them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Every metric of one operator process; created anew for each test, hence no global registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._register_process()
        self.groups = GroupSeries()
        self.registry.register(self.groups)

    def _register_process(self) -> None:
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        seconds = partial(Histogram, namespace=PREFIX, buckets=LATENCY_BUCKETS, registry=self.registry)
        self.reconciles = counter(
            "reconciles", "Reconciles by kind and outcome (done, error, bug).", ["kind", "outcome"]
        )
        self.reconcile_seconds = seconds("reconcile_duration_seconds", "How long one reconcile takes.", ["kind"])
        self.queue_depth = gauge("queue_depth", "Keys that are due and wait.", ["kind"])
        self.queue_wait = seconds("queue_wait_seconds", "How long a key waited after it was due.", ["kind"])
        self.decision_age = Histogram(
            "decision_age_seconds",
            "Age that a group's last observation had reached when the next one was taken up.",
            namespace=PREFIX,
            buckets=AGE_BUCKETS,
            registry=self.registry,
        )
        self.status_writes = counter("status_writes", "Writes of status.", ["kind"])
        self.status_deferred = counter(
            "status_deferred", "Routine status writes put off by the token bucket.", ["kind"]
        )
        self.status_waiting = gauge("status_waiting", "Objects whose status waits for the token bucket.")
        self.events = counter("events", "Kubernetes Events by outcome (written, merged, dropped, failed).", ["outcome"])
        self.watch_events = counter("watch_events", "Events that the watches delivered.", ["kind"])
        self.watch_corrections = counter(
            "watch_corrections", "Cache entries that a periodic list had to mend.", ["kind"]
        )
        self.refused = gauge(
            "refused",
            "1 while the API server refuses lists or watches of a kind, 0 after it; empty namespace: all.",
            ["kind", "watched_namespace"],
        )
        self.cached_objects = gauge("cached_objects", "Objects in the caches.", ["kind"])
        self.offset_resets = counter("offset_resets", "Resets of offsets that were committed and verified.")
        self.api_requests = counter(
            "api_requests",
            "Requests to the API server by HTTP verb, kind and status code (0: no answer), watches not included.",
            ["verb", "resource", "code"],
        )
        self.upgrades = gauge(
            "upgrades", "Groups in upgrades by waves (waiting, rolling, failed); absent without waves.", ["state"]
        )
        self.group_visits = counter(
            "group_visits",
            "Visits of empty groups, whose commits would expire, by outcome (Kept, NotEmpty, NoCommits, CommitsLost, "
            "Failed).",
            ["outcome"],
        )
        self.leader = gauge("leader", "1 while this process holds the Lease.")
        self.loop_lag = gauge("loop_lag_seconds", "How late the event loop ran its last tick.")
        self.observation_seconds = seconds(
            "observation_duration_seconds", "How long one look at a Kafka cluster takes.", CLUSTER_LABELS
        )
        self.observation_failures = counter(
            "observation_failures", "Looks at a Kafka cluster that failed, by reason.", [*CLUSTER_LABELS, "reason"]
        )
        self.observed_at = gauge(
            "last_observation_timestamp_seconds", "When a Kafka cluster was last seen (Unix time).", CLUSTER_LABELS
        )

    def count_request(self, verb: str, resource: str, code: int) -> None:
        """Count an answer of the API server."""
        self.api_requests.labels(verb, resource, str(code)).inc()

    def forget_cluster(self, namespace: str, name: str) -> None:
        """Remove the series of a KafkaCluster that is gone; its age would grow for ever."""
        for metric in (self.observation_seconds, self.observation_failures, self.observed_at):
            metric.remove_by_labels(dict(zip(CLUSTER_LABELS, (namespace, name), strict=True)))

    def text(self) -> bytes:
        """All metrics in Prometheus' text form; `CONTENT_TYPE` is its type."""
        return generate_latest(self.registry)
