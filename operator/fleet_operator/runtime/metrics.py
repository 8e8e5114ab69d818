"""The operator's Prometheus metrics, all in one registry and one place, so that the reference page can list them.

Those of ConsumerGroups are plain values, which become samples when somebody scrapes: prometheus_client keeps an object
with a lock for each series, and a dozen series for each of thousands of groups would be a seventh of the operator's
memory. Nothing else imports prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from fleet_operator.runtime.cache import Key

GROUP_PREFIX: Final = "consumer_fleet_group"
GROUP_LABELS: Final = ("group_namespace", "group_name")
CLUSTER_LABELS: Final = ("cluster_namespace", "cluster_name")
"""Never `namespace`, `pod` or `cluster`: Prometheus sets these itself, for the target that it scrapes."""
INFO_LABELS: Final = (*GROUP_LABELS, "group_id", *CLUSTER_LABELS)
STATE_LABELS: Final = (*GROUP_LABELS, "state")
GROUP_GAUGES: Final = {
    "ready": "1 while the condition Ready is True, 0 while it is False; absent while it is Unknown.",
    "ready_replicas": "Ready workers.",
    "wanted_replicas": "Workers that should exist; with spec.scaling those that the load asks for, of a dry run too.",
    "arrival_records_per_second": "Rate of arrival that scaling follows; absent without spec.scaling, and while "
    "unknown.",
    "worker_capacity_records_per_second": "Rate that one worker has proven to handle; absent without spec.scaling, and "
    "while unknown.",
    "members": "Members of the group; absent while unknown.",
    "lag_records": "Records between committed and end offsets, of all partitions; absent while any is unknown.",
    "max_partition_lag_records": "The largest lag of one partition; absent while any is unknown.",
    "behind_seconds": "Estimated age of the oldest record that is not committed; absent while unknown.",
    "retry_waiting_records": "Records in the retry and redrive topics that are not committed; absent while unknown.",
    "retry_due_lag_records": "Those of the waiting records whose time has come; absent while unknown.",
    "retry_oldest_due_timestamp_seconds": "When the oldest due record became due (Unix time); absent without one, and "
    "while unknown.",
    "failed_records": "Records in the failed topic that are not known to be put back; absent while unknown.",
    "breakers_open": "Workers that hold their records back because too many fail, of those that answered; absent while "
    "none does.",
}
"""Gauges with one value for each group, by their names after the prefix, with their help texts."""
PLACES: Final = {name: place for place, name in enumerate(GROUP_GAUGES)}

Values = Mapping[str, float | None]
"""Values by names of gauges; None where a value is not known."""


@dataclass(slots=True)
class _Group:
    """One group's values, in the order of `GROUP_GAUGES`, and its labels."""

    values: list[float | None] = field(default_factory=lambda: [None] * len(GROUP_GAUGES))
    state: str | None = None
    info: tuple[str, str, str] | None = None


class GroupSeries(Collector):
    """The series of all groups. Changed on the event loop, collected by any thread."""

    def __init__(self) -> None:
        self._groups: dict[Key, _Group] = {}

    def show(self, key: Key, values: Values) -> None:
        """Set some values of a group; an unknown one is absent, not zero."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        for name, value in values.items():
            group.values[PLACES[name]] = value

    def label(self, key: Key, *, state: str, info: tuple[str, str, str]) -> None:
        """Set a group's state, and its Kafka group and the namespace and name of its KafkaCluster."""
        self.show(key, {})
        group = self._groups[key]
        group.state, group.info = state, info

    def remove(self, key: Key) -> None:
        """Remove a group that is gone, or its series would be exported permanently."""
        self._groups.pop(key, None)

    def describe(self) -> Iterable[Metric]:
        """The families without samples; called when this is registered."""
        return _families([])

    def collect(self) -> Iterator[Metric]:
        return _families(list(self._groups.items()))


def _families(groups: Sequence[tuple[Key, _Group]]) -> Iterator[Metric]:
    for name, text in GROUP_GAUGES.items():
        family = GaugeMetricFamily(f"{GROUP_PREFIX}_{name}", text, labels=GROUP_LABELS)
        for key, group in groups:
            value = group.values[PLACES[name]]
            if value is not None:
                family.add_metric(key, value)
        yield family
    states = GaugeMetricFamily(f"{GROUP_PREFIX}_state", "1 for the state the group is in.", labels=STATE_LABELS)
    text = "1; names the Kafka group and the KafkaCluster."
    infos = GaugeMetricFamily(f"{GROUP_PREFIX}_info", text, labels=INFO_LABELS)
    for key, group in groups:
        if group.state is not None:
            states.add_metric((*key, group.state), 1.0)
        if group.info is not None:
            infos.add_metric((*key, *group.info), 1.0)
    yield states
    yield infos


PREFIX: Final = "consumer_fleet_operator"
LATENCY_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0)
AGE_BUCKETS: Final = (1.0, 2.0, 5.0, 7.5, 10.0, 12.5, 15.0, 20.0, 30.0, 60.0)
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


# A series with its creation time next to each counter: Prometheus finds resets without them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Every metric of one operator process; a new one for each test, hence no global registry."""

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
            "status_deferred", "Status writes put off until their turn, or for what follows in a new fleet.", ["kind"]
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
        self.api_requests.labels(verb, resource, str(code)).inc()

    def forget_cluster(self, namespace: str, name: str) -> None:
        """Remove the series of a KafkaCluster that is gone; its age would grow without end."""
        for metric in (self.observation_seconds, self.observation_failures, self.observed_at):
            metric.remove_by_labels(dict(zip(CLUSTER_LABELS, (namespace, name), strict=True)))

    def text(self) -> bytes:
        """All metrics in Prometheus' text form; `CONTENT_TYPE` is its type."""
        return generate_latest(self.registry)
