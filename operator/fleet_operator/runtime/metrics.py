"""The operator's Prometheus metrics, all in one registry and one place, so that the reference page can list them.

Nothing else imports prometheus_client. Gauges of a group are removed with it, or a deleted group would report for ever.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

PREFIX: Final = "consumer_fleet_operator"
LATENCY_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0)
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Metrics:
    """Every metric of one operator process; made anew for each test, hence no global registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._register_reconciles(self.registry)
        self._register_caches(self.registry)
        self._register_observations(self.registry)
        self._register_groups(self.registry)
        self._register_retries(self.registry)

    def _register_reconciles(self, registry: CollectorRegistry) -> None:
        self.reconciles = Counter(
            f"{PREFIX}_reconciles",
            "Reconciles by kind and outcome (done, error, bug).",
            ["kind", "outcome"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "How long one reconcile takes.",
            ["kind"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.queue_depth = Gauge(f"{PREFIX}_queue_depth", "Keys that are due and wait.", ["kind"], registry=registry)
        self.queue_wait = Histogram(
            f"{PREFIX}_queue_wait_seconds",
            "How long a key waited after it was due.",
            ["kind"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.status_writes = Counter(f"{PREFIX}_status_writes", "Writes of status.", ["kind"], registry=registry)
        self.status_deferred = Counter(
            f"{PREFIX}_status_deferred",
            "Routine status writes put off by the token bucket.",
            ["kind"],
            registry=registry,
        )
        self.events = Counter(
            f"{PREFIX}_events",
            "Kubernetes Events by outcome (written, merged, dropped, failed).",
            ["outcome"],
            registry=registry,
        )

    def _register_caches(self, registry: CollectorRegistry) -> None:
        self.watch_events = Counter(
            f"{PREFIX}_watch_events", "Events that the watches delivered.", ["kind"], registry=registry
        )
        self.watch_corrections = Counter(
            f"{PREFIX}_watch_corrections",
            "Cache entries that a periodic list had to mend.",
            ["kind"],
            registry=registry,
        )
        self.cached_objects = Gauge(f"{PREFIX}_cached_objects", "Objects in the caches.", ["kind"], registry=registry)
        self.leader = Gauge(f"{PREFIX}_leader", "1 while this process holds the Lease.", registry=registry)
        self.loop_lag = Gauge(
            f"{PREFIX}_loop_lag_seconds", "How late the event loop ran its last tick.", registry=registry
        )

    def _register_observations(self, registry: CollectorRegistry) -> None:
        self.observation_seconds = Histogram(
            f"{PREFIX}_observation_seconds",
            "How long one look at a Kafka cluster takes.",
            ["cluster"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.observation_failures = Counter(
            f"{PREFIX}_observation_failures",
            "Looks at a Kafka cluster that failed, by reason.",
            ["cluster", "reason"],
            registry=registry,
        )
        self.observed_at = Gauge(
            f"{PREFIX}_observed_at_seconds",
            "When a Kafka cluster was last seen (Unix time).",
            ["cluster"],
            registry=registry,
        )

    def _register_groups(self, registry: CollectorRegistry) -> None:
        self.group_lag = Gauge(
            "consumer_fleet_group_lag_records",
            "Records between committed and end offsets; absent while unknown.",
            ["namespace", "name"],
            registry=registry,
        )
        self.group_members = Gauge(
            "consumer_fleet_group_members", "Members of the group.", ["namespace", "name"], registry=registry
        )
        self.group_ready_replicas = Gauge(
            "consumer_fleet_group_ready_replicas", "Ready workers.", ["namespace", "name"], registry=registry
        )
        self.group_state = Gauge(
            "consumer_fleet_group_state",
            "1 for the state the group is in.",
            ["namespace", "name", "state"],
            registry=registry,
        )

    def _register_retries(self, registry: CollectorRegistry) -> None:
        labels = ["namespace", "name"]
        self.group_retry_waiting = Gauge(
            "consumer_fleet_group_retry_waiting_records",
            "Records in the retry and redrive topics that the retry workers have not committed; absent while unknown.",
            labels,
            registry=registry,
        )
        self.group_retry_due = Gauge(
            "consumer_fleet_group_retry_due_lag_records",
            "Those of the waiting records whose time has come; absent while unknown.",
            labels,
            registry=registry,
        )
        self.group_retry_oldest_due = Gauge(
            "consumer_fleet_group_retry_oldest_due_timestamp_seconds",
            "When the oldest due record became due (Unix time); absent while none is, or while unknown.",
            labels,
            registry=registry,
        )
        self.group_failed = Gauge(
            "consumer_fleet_group_failed_records",
            "Records in the failed topic that are not known to be put back; absent while unknown.",
            labels,
            registry=registry,
        )
        self.group_breakers_open = Gauge(
            "consumer_fleet_group_breakers_open",
            "Dispatcher that hold their records back because too many fail; of those that could be asked.",
            labels,
            registry=registry,
        )

    def text(self) -> bytes:
        """Everything in Prometheus' text form; `CONTENT_TYPE` is its type."""
        return generate_latest(self.registry)
