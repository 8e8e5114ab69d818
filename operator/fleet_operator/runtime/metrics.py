"""Defines the operator's Prometheus metrics in one registry and one module, so that the reference page can list them.

Metrics of ConsumerGroups are kept as plain values and converted to samples at each scrape. prometheus_client would keep
an object with a lock for each series, which would take a seventh of the operator's memory for thousands of groups. Lag
by partition is exported by workers, because 5,000 groups with 100 partitions each would be 500,000 series in this
process. No other module imports prometheus_client.

Decision: docs/decisions/0038-metrics-and-logs.md.
"""

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
"""Labels of a KafkaCluster's metrics. No label is named `namespace`, `pod` or `cluster`, because Prometheus gives these
labels the values of the scraped target."""
INFO_LABELS: Final = (*GROUP_LABELS, "group_id", *CLUSTER_LABELS)
STATE_LABELS: Final = (*GROUP_LABELS, "state")
GROUP_GAUGES: Final = {
    "ready": "1 while the condition Ready is True, 0 while it is False; absent while it is Unknown.",
    "ready_replicas": "Ready workers.",
    "wanted_replicas": "Workers that should exist; with spec.scaling, as many as the load needs, also in a dry run.",
    "arrival_records_per_second": "Arrival rate that scaling follows; absent without spec.scaling, and while unknown.",
    "worker_capacity_records_per_second": "Rate that one worker is known to handle; absent without spec.scaling, and "
    "while unknown.",
    "members": "Members of the group; absent while unknown.",
    "lag_records": "Records between committed and end offsets of all partitions; absent while an offset is unknown.",
    "max_partition_lag_records": "The largest lag of one partition; absent while the lag of any partition is unknown.",
    "behind_seconds": "Estimated age of the oldest uncommitted record; absent while unknown.",
    "retry_waiting_records": "Uncommitted records in the retry and redrive topics; absent while unknown.",
    "retry_due_lag_records": "Waiting records that are due; absent while unknown.",
    "retry_oldest_due_timestamp_seconds": "Time at which the oldest due record became due (Unix time); absent "
    "without a due record, and while unknown.",
    "failed_records": "Records in the failed topic, minus records known to have been put back; absent while unknown.",
    "breakers_open": "Workers that answered and have an open circuit breaker; absent while no worker answers.",
}
"""Help strings of the gauges with one value for each group, keyed by the gauge's name without its prefix."""
PLACES: Final = {name: place for place, name in enumerate(GROUP_GAUGES)}

Values = Mapping[str, float | None]
"""Values keyed by gauge name; None if a value is unknown."""
Problems = Sequence[tuple[str, str]]
"""Type and reason of each condition that reports a problem."""


@dataclass(slots=True)
class _Group:
    """The values of one group, in the order of `GROUP_GAUGES`, and the labels of the group."""

    values: list[float | None] = field(default_factory=lambda: [None] * len(GROUP_GAUGES))
    state: str | None = None
    info: tuple[str, str, str] | None = None


class GroupSeries(Collector):
    """The series of all groups, changed on the event loop and collected on any thread."""

    def __init__(self) -> None:
        self._groups: dict[Key, _Group] = {}

    def show(self, key: Key, values: Values) -> None:
        """Set values of a group, keyed by gauge name. The metrics omit unknown values; they do not show zero."""
        group = self._groups.setdefault(key, _Group())
        for name, value in values.items():
            group.values[PLACES[name]] = value

    def label(self, key: Key, *, state: str, info: tuple[str, str, str]) -> None:
        """Set a group's state and its `info` labels: the Kafka group, and the KafkaCluster's namespace and name."""
        self.show(key, {})
        group = self._groups[key]
        group.state, group.info = state, info

    def remove(self, key: Key) -> None:
        """Remove a deleted group; otherwise its series would be exported permanently."""
        self._groups.pop(key, None)

    def describe(self) -> Iterable[Metric]:
        """The metric families without samples; called when the collector is registered."""
        return _families([])

    def collect(self) -> Iterator[Metric]:
        return _families(list(self._groups.items()))


class ProblemSeries(Collector):
    """A gauge with one series for each problem that exists now. Healthy objects have no series, so thousands of healthy
    groups cost nothing.

    Series are changed on the event loop, and collected on any thread.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name, self._text = name, text
        self._labels = (*labels, "condition", "reason")
        self._problems: dict[Key, Problems] = {}

    def show(self, key: Key, problems: Problems) -> None:
        """Replace the problems of one object."""
        if problems:
            self._problems[key] = problems
        else:
            self.remove(key)

    def remove(self, key: Key) -> None:
        """Remove the problems of a deleted object."""
        self._problems.pop(key, None)

    def describe(self) -> Iterable[Metric]:
        """The metric family without samples; called when the collector is registered."""
        return [GaugeMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for key, problems in list(self._problems.items()):
            for condition, reason in problems:
                family.add_metric((*key, condition, reason), 1.0)
        yield family


def _families(groups: Sequence[tuple[Key, _Group]]) -> Iterator[Metric]:
    for name, text in GROUP_GAUGES.items():
        family = GaugeMetricFamily(f"{GROUP_PREFIX}_{name}", text, labels=GROUP_LABELS)
        for key, group in groups:
            value = group.values[PLACES[name]]
            if value is not None:
                family.add_metric(key, value)
        yield family
    states = GaugeMetricFamily(f"{GROUP_PREFIX}_state", "1 for the state of the Kafka group.", labels=STATE_LABELS)
    text = "Always 1; the labels name the Kafka group and the KafkaCluster."
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


# `_created` metrics would add a series to each counter; Prometheus detects counter resets without them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics of one operator process, in their own registry, so that each test can create one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._register_process()
        self.groups = GroupSeries()
        self.group_problems = ProblemSeries(
            f"{GROUP_PREFIX}_problem", "1 for each condition of a group that reports a problem.", GROUP_LABELS
        )
        self.cluster_problems = ProblemSeries(
            f"{PREFIX}_cluster_problem",
            "1 for each condition of a KafkaCluster that reports a problem.",
            CLUSTER_LABELS,
        )
        for series in (self.groups, self.group_problems, self.cluster_problems):
            self.registry.register(series)

    def drop_group(self, key: Key) -> None:
        """Remove a deleted ConsumerGroup's series."""
        self.groups.remove(key)
        self.group_problems.remove(key)

    def _register_process(self) -> None:
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        seconds = partial(Histogram, namespace=PREFIX, buckets=LATENCY_BUCKETS, registry=self.registry)
        self.reconciles = counter(
            "reconciles", "Reconciles by kind and outcome (done, error, bug).", ["kind", "outcome"]
        )
        self.reconcile_seconds = seconds("reconcile_duration_seconds", "Duration of a reconcile.", ["kind"])
        self.queue_depth = gauge("queue_depth", "Keys that are due and wait to be reconciled.", ["kind"])
        self.queue_wait = seconds("queue_wait_seconds", "Time that a key waited after it was due.", ["kind"])
        self.decision_age = seconds(
            "decision_age_seconds",
            "Age of a group's observation when the next observation replaced it.",
            buckets=AGE_BUCKETS,
        )
        self.status_writes = counter("status_writes", "Writes of status.", ["kind"])
        self.status_deferred = counter(
            "status_deferred",
            "Status writes deferred by the rate limit, or because a new fleet is still changing.",
            ["kind"],
        )
        self.status_waiting = gauge("status_waiting", "Objects whose status write waits for the rate limit.")
        self.events = counter("events", "Kubernetes Events by outcome (written, merged, dropped, failed).", ["outcome"])
        self.watch_events = counter("watch_events", "Events that the watches delivered.", ["kind"])
        self.watch_corrections = counter(
            "watch_corrections", "Cache entries that a periodic list had to correct.", ["kind"]
        )
        self.refused = gauge(
            "refused",
            "1 while the API server refuses lists or watches of a kind, else 0; an empty namespace means all.",
            ["kind", "watched_namespace"],
        )
        self.cached_objects = gauge("cached_objects", "Objects in the caches.", ["kind"])
        self.offset_resets = counter("offset_resets", "Offset resets that were committed and verified.")
        self.api_requests = counter(
            "api_requests",
            "Requests to the API server by HTTP verb, kind and status code (0: no answer), watches not included.",
            ["verb", "resource", "code"],
        )
        self.upgrades = gauge(
            "upgrades", "Groups by state of their upgrade (waiting, rolling, failed); absent without waves.", ["state"]
        )
        self.group_visits = counter(
            "group_visits",
            "Visits to keep an empty group's offsets, by outcome (Kept, NotEmpty, NoCommits, CommitsLost, Failed).",
            ["outcome"],
        )
        self.leader = gauge("leader", "1 while this process holds the Lease.")
        self.loop_lag = gauge("loop_lag_seconds", "Delay of the event loop's last tick.")
        self.observation_seconds = seconds(
            "observation_duration_seconds", "Duration of a poll of a Kafka cluster.", CLUSTER_LABELS
        )
        self.observation_failures = counter(
            "observation_failures", "Polls of a Kafka cluster that failed, by reason.", [*CLUSTER_LABELS, "reason"]
        )
        self.observed_at = gauge(
            "last_observation_timestamp_seconds",
            "Time of a Kafka cluster's last observation (Unix time).",
            CLUSTER_LABELS,
        )

    def count_request(self, verb: str, resource: str, code: int) -> None:
        self.api_requests.labels(verb, resource, str(code)).inc()

    def drop_cluster(self, namespace: str, name: str) -> None:
        """Remove a deleted KafkaCluster's series; otherwise the age of its last observation would keep growing."""
        self.cluster_problems.remove((namespace, name))
        for metric in (self.observation_seconds, self.observation_failures, self.observed_at):
            metric.remove_by_labels(dict(zip(CLUSTER_LABELS, (namespace, name), strict=True)))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, with the type `CONTENT_TYPE`."""
        return generate_latest(self.registry)
