"""A worker's Prometheus metrics. Each scrape reads them from plain counters, in a separate registry.

The code that handles records does not depend on Prometheus. Decision: docs/decisions/0038-metrics-and-logs.md.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partialmethod
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.resets import OutOfRangeReport, TruncationReport
from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.distribution import own_version
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.consume.lags import lag_of, seconds_behind
from fleet_consumer.worker.member import WorkerState, ready
from fleet_consumer.worker.session import Session
from fleet_consumer.worker.stats import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS = (
    ("produced_records", "Records written on behalf of handlers.", "produced"),
    ("batches", "Polls that returned records.", "batches"),
    ("poll_wait_seconds", "Time spent waiting for records, in seconds.", "poll_wait_seconds"),
    ("ack_wait_seconds", "Time spent waiting for acknowledgements, in seconds.", "ack_wait_seconds"),
    ("rebalances", "Assignments received.", "rebalances"),
    ("lost_partitions", "Partitions lost without a chance to commit.", "lost_partitions"),
    ("timeouts", "Records whose handler call timed out and was cancelled.", "timeouts"),
    ("abandoned_records", "Records handled after their partition was revoked; they are repeated.", "abandoned"),
    ("suppressed_copies", "Duplicate copies of a retry publish that were skipped.", "suppressed"),
    ("damaged_headers", "Deliveries whose kr- headers had to be clamped or replaced.", "damaged_headers"),
    ("unknown_policies", "Failed deliveries that named an unknown policy revision.", "unknown_policies"),
    ("unreadable_offsets", "Offsets of unreadable data that were skipped on request.", "unreadable_offsets"),
)
"""The counters: name without the prefix, help text, and field of `Stats`."""

PREFIX: Final = "consumer_fleet_worker_"

TRUNCATIONS = "Log truncations below the worker's position, by an unclean leader election or a recreated topic."

PARTITION_GAUGES: Final = {
    "position_offset": "Offset of the next record for the handler.",
    "committed_offset": "Committed offset.",
    "end_offset": "End offset of the partition, from the last response.",
    "lag_records": "Records between the committed offset and the end.",
    "behind_seconds": "Age of the oldest record being handled, else of the last handled record; 0 if all are handled.",
}
"""Gauges of owned partitions: help string by name without `partition_`."""
INFO: Final = ("version", "revision")

BREAKER_STATES = ("Closed", "HalfOpen", "Open")


class GroupLabels(NamedTuple):
    """Labels of all worker metrics. Prometheus adds `namespace` and `pod` of the scraped target."""

    group_namespace: str
    group_name: str
    group_id: str
    role: str


Samples = Iterable[tuple[tuple[str, ...], float]]
"""The label values and the value of each sample."""


class WorkerCollector:
    def __init__(self, state: WorkerState, labels: GroupLabels, clock: Clock) -> None:
        self._stats = state.stats
        self._state = state
        self._labels = labels
        self._clock = clock

    def _family(
        self, kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, samples: Samples, *labels: str
    ) -> Metric:
        family = kind(f"{PREFIX}{name}", text, labels=[*GroupLabels._fields, *labels])
        for values, value in samples:
            family.add_metric([*self._labels, *values], value)
        return family

    _counter = partialmethod(_family, CounterMetricFamily)
    _gauge = partialmethod(_family, GaugeMetricFamily)

    def _histogram(self, name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
        buckets, sofar = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), tuple(histogram.counts), strict=True):
            sofar += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(sofar)))
        family = HistogramMetricFamily(f"{PREFIX}{name}", text, labels=GroupLabels._fields)
        family.add_metric(self._labels, buckets, histogram.total)
        return family

    def describe(self) -> list[Metric]:
        """Return no metrics. The registry uses them only to find duplicate names, and no other collector has these."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        results = [((each,), float(getattr(stats, each))) for each in ("done", "failed", "dropped", "retried")]
        yield self._counter("records", "Records by outcome.", results, "result")
        commits: Samples = [(("acknowledged",), stats.commits), (("failed",), stats.commit_failures)]
        yield self._counter("commits", "Offset commits by outcome.", commits, "outcome")
        for name, text, field in COUNTERS:
            yield self._counter(name, text, [((), getattr(stats, field))])
        busy = self._state.work().busy_seconds
        yield self._counter("busy_seconds", "Time in which handlers ran, divided by the number of slots.", [((), busy)])
        yield self._histogram("handler_duration_seconds", "Duration of handler calls.", stats.handling)
        yield from self._retries()
        yield from self._out_of_range()
        yield from self._gauges()

    def _retries(self) -> Iterator[Metric]:
        stats = self._stats
        # Export every reason from the start, with the value 0. Otherwise `rate` would miss the first failure, because
        # it ignores the first value of a series.
        reasons = {reason.value: 0 for reason in FailureReason} | dict(stats.failures)
        yield self._counter(
            "retry_publishes", "Records sent to a retry topic, by its delay.", _by_label(stats.retry_publishes), "delay"
        )
        yield self._counter("failures", "Records sent to the failed topic, by reason.", _by_label(reasons), "reason")
        yield self._histogram(
            "due_lateness_seconds",
            "Time from a retried record's due time to its admission for the handler.",
            stats.lateness,
        )
        breaker, retry = self._state.breaker(), self._state.retry()
        if breaker is not None:
            states = [((name,), float(name == breaker.state)) for name in BREAKER_STATES]
            yield self._gauge(
                "breaker_state", "1 for the current state of the retry budget's breaker.", states, "state"
            )
        if retry is not None:
            waiting: Samples = [((), retry["waitingCount"])]
            yield self._gauge("waiting_partitions", "Retry partitions whose next record is not due yet.", waiting)

    def _out_of_range(self) -> Iterator[Metric]:
        """Yield the counters of out-of-range and truncated positions. They start at 0 in each session."""
        session = self._state.session
        report = session.consumer.out_of_range() if session else OutOfRangeReport()
        truncations = session.consumer.truncations() if session else TruncationReport()
        for name, text, count in (
            ("out_of_range", "Times that a position was out of range.", report.count),
            ("skipped_offsets", "Offsets that were skipped because they were out of range.", report.skipped),
            ("truncations", TRUNCATIONS, truncations.count),
            ("cut_offsets", "Offsets that were read and then truncated by the cluster.", truncations.cut),
        ):
            yield self._counter(name, text, [((), count)])

    def _gauges(self) -> Iterator[Metric]:
        joined, _ = ready(self._state)
        session = self._state.session
        partitions = dict(session.loop.partitions) if session else {}
        generation = session.consumer.membership().generation if session else -1
        in_flight = session.loop.in_flight if session else 0
        held = sum(partition.hold is not None for partition in partitions.values())
        for name, text, value in (
            ("ready", "1 while the worker is a member that can work.", int(joined)),
            ("generation", "The group's generation, -1 while not joined.", generation),
            ("assigned_partitions", "Partitions owned.", len(partitions)),
            ("in_flight_records", "Admitted records whose handling has not ended.", in_flight),
            ("held_partitions", "Partitions held because of unacknowledged writes.", held),
        ):
            yield self._gauge(name, text, [((), value)])
        yield self._gauge(
            "info", "Always 1; labelled with version and revision.", [((own_version(), self._state.revision), 1)], *INFO
        )
        yield from self._partitions(session)

    def _partitions(self, session: Session | None) -> Iterator[Metric]:
        """Yield the gauges of owned partitions. A gauge with an unknown value is left out."""
        partitions = dict(session.loop.partitions) if session else {}
        ends = session.loop.ends.current(partitions) if session and partitions else {}
        in_hand = (lambda: session.loop.in_hand) if session else lambda: None
        now, retries = self._clock.wall(), self._labels.role == Role.RETRY
        values: dict[str, list[tuple[tuple[str, ...], float]]] = {name: [] for name in PARTITION_GAUGES}
        for (topic, number), partition in partitions.items():
            end = ends.get(partition.topic_partition)
            found = {
                "position_offset": partition.next_offset,
                "committed_offset": partition.committed,
                "end_offset": end,
                "lag_records": lag_of(partition, end),
                # Left out for retry topics, whose records wait on purpose. `due_lateness_seconds` replaces it.
                "behind_seconds": None if retries else seconds_behind(partition, end, in_hand, now),
            }
            for name, value in found.items():
                if value is not None:
                    values[name].append(((topic, str(number)), value))
        for name, text in PARTITION_GAUGES.items():
            yield self._gauge(f"partition_{name}", text, values[name], "topic", "partition")


def _by_label(counts: dict[str, int]) -> Samples:
    return [((label,), count) for label, count in sorted(counts.copy().items())]


def metrics_page(state: WorkerState, labels: GroupLabels, clock: Clock) -> Callable[[], bytes]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(state, labels, clock))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)
