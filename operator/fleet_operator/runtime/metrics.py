"""The operator's Prometheus metrics, all in one registry and one place, so that the reference page can list them.

Nothing else imports prometheus_client. Gauges of a group are removed with it, or a deleted group would report for ever.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

PREFIX: Final = "consumer_fleet_operator"
GROUP_LABELS: Final = ("namespace", "name")
LATENCY_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0)
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Metrics:
    """Every metric of one operator process; created anew for each test, hence no global registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._register_process()
        self._register_groups()

    def _register_process(self) -> None:
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        seconds = partial(Histogram, namespace=PREFIX, buckets=LATENCY_BUCKETS, registry=self.registry)
        self.reconciles = counter(
            "reconciles", "Reconciles by kind and outcome (done, error, bug).", ["kind", "outcome"]
        )
        self.reconcile_seconds = seconds("reconcile_seconds", "How long one reconcile takes.", ["kind"])
        self.queue_depth = gauge("queue_depth", "Keys that are due and wait.", ["kind"])
        self.queue_wait = seconds("queue_wait_seconds", "How long a key waited after it was due.", ["kind"])
        self.status_writes = counter("status_writes", "Writes of status.", ["kind"])
        self.status_deferred = counter(
            "status_deferred", "Routine status writes put off by the token bucket.", ["kind"]
        )
        self.events = counter("events", "Kubernetes Events by outcome (written, merged, dropped, failed).", ["outcome"])
        self.watch_events = counter("watch_events", "Events that the watches delivered.", ["kind"])
        self.watch_corrections = counter(
            "watch_corrections", "Cache entries that a periodic list had to mend.", ["kind"]
        )
        self.cached_objects = gauge("cached_objects", "Objects in the caches.", ["kind"])
        self.offset_resets = counter("offset_resets", "Resets of offsets that were committed and verified.")
        self.leader = gauge("leader", "1 while this process holds the Lease.")
        self.loop_lag = gauge("loop_lag_seconds", "How late the event loop ran its last tick.")
        self.observation_seconds = seconds(
            "observation_seconds", "How long one look at a Kafka cluster takes.", ["cluster"]
        )
        self.observation_failures = counter(
            "observation_failures", "Looks at a Kafka cluster that failed, by reason.", ["cluster", "reason"]
        )
        self.observed_at = gauge("observed_at_seconds", "When a Kafka cluster was last seen (Unix time).", ["cluster"])

    def _register_groups(self) -> None:
        gauge = partial(Gauge, labelnames=GROUP_LABELS, registry=self.registry)
        self.group_lag = gauge(
            "consumer_fleet_group_lag_records", "Records between committed and end offsets; absent while unknown."
        )
        self.group_members = gauge("consumer_fleet_group_members", "Members of the group.")
        self.group_ready_replicas = gauge("consumer_fleet_group_ready_replicas", "Ready workers.")
        self.group_state = gauge(
            "consumer_fleet_group_state", "1 for the state the group is in.", labelnames=(*GROUP_LABELS, "state")
        )
        self.group_retry_waiting = gauge(
            "consumer_fleet_group_retry_waiting_records",
            "Records in the retry and redrive topics that the retry workers have not committed; absent while unknown.",
        )
        self.group_retry_due = gauge(
            "consumer_fleet_group_retry_due_lag_records",
            "Those of the waiting records whose time has come; absent while unknown.",
        )
        self.group_retry_oldest_due = gauge(
            "consumer_fleet_group_retry_oldest_due_timestamp_seconds",
            "When the oldest due record became due (Unix time); absent while none is, or while unknown.",
        )
        self.group_failed = gauge(
            "consumer_fleet_group_failed_records",
            "Records in the failed topic that are not known to be put back; absent while unknown.",
        )
        self.group_breakers_open = gauge(
            "consumer_fleet_group_breakers_open",
            "Workers that hold their records back because too many fail; of those that could be asked.",
        )

    def text(self) -> bytes:
        """All metrics in Prometheus' text form; `CONTENT_TYPE` is its type."""
        return generate_latest(self.registry)
