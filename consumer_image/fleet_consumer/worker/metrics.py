"""A worker's Prometheus metrics, in a registry of their own.

They are read from plain counters at each scrape: nothing on the way of a record knows Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fleet_consumer.consumer.resets import OutOfRangeReport, TruncationReport
from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.worker.member import WorkerState, ready
from fleet_consumer.worker.stats import Histogram, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS = (
    ("produced", "Records written on behalf of handlers.", "produced"),
    ("batches", "Polls that brought records.", "batches"),
    ("handler_seconds", "Time spent handling, in seconds; divide by records for the mean.", "handler_seconds"),
    ("poll_wait_seconds", "Time spent waiting for records, in seconds.", "poll_wait_seconds"),
    ("ack_wait_seconds", "Time spent waiting for acknowledgements, in seconds.", "ack_wait_seconds"),
    ("rebalances", "Assignments received.", "rebalances"),
    ("lost_partitions", "Partitions lost without a chance to commit.", "lost_partitions"),
    ("timeouts", "Records whose handler took too long and was cancelled.", "timeouts"),
    ("abandoned", "Records whose handling ended after their partition had gone; others repeat them.", "abandoned"),
    ("suppressed", "Copies of a retry hop that were passed over.", "suppressed"),
    ("damaged_headers", "Deliveries whose kr- headers had to be clamped or replaced.", "damaged_headers"),
    ("unknown_policies", "Failed deliveries that named an unknown policy revision.", "unknown_policies"),
)
"""Name after the prefix, help text, field of Stats."""

PREFIX = "fleet_consumer_"

TRUNCATIONS = "Times that a log no longer had what was read: an unclean election, or a topic made anew."

BREAKER_STATES = ("Closed", "HalfOpen", "Open")


class WorkerCollector:
    """Renders a worker's counters and state at the moment they are asked for."""

    def __init__(self, stats: Stats, state: WorkerState) -> None:
        self._stats = stats
        self._state = state

    def describe(self) -> list[Metric]:
        """Nothing to check at registration: this is the registry's only user."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of now."""
        stats = self._stats
        records = CounterMetricFamily(f"{PREFIX}records", "Records by what became of them.", labels=["result"])
        for result in ("done", "failed", "dropped", "retried"):
            records.add_metric([result], getattr(stats, result))
        yield records
        commits = CounterMetricFamily(f"{PREFIX}commits", "Offset commits by outcome.", labels=["outcome"])
        commits.add_metric(["acknowledged"], stats.commits)
        commits.add_metric(["failed"], stats.commit_failures)
        yield commits
        for name, text, field in COUNTERS:
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value=getattr(stats, field))
        yield from self._retries()
        yield from self._out_of_range()
        yield from self._gauges()

    def _retries(self) -> Iterator[Metric]:
        """Failures on the way through the retry topics, and the lateness of retried records."""
        stats = self._stats
        hops = CounterMetricFamily(f"{PREFIX}hops", "Records sent to a retry topic, by its delay.", labels=["delay"])
        failures = CounterMetricFamily(
            f"{PREFIX}failures", "Records sent to the failed topic, by reason.", labels=["reason"]
        )
        # All reasons from the beginning: a rate does not see a series' first value, so the first failure.
        reasons = {reason.value: 0 for reason in FailureReason} | dict(stats.failures)
        for family, counts in ((hops, stats.hops), (failures, reasons)):
            for label, count in sorted(dict(counts).items()):
                family.add_metric([label], count)
            yield family
        yield _histogram("due_lateness_seconds", "From due to handed out, of retried records.", stats.lateness)
        breaker, retry = self._state.breaker(), self._state.retry()
        if breaker is not None:
            states = GaugeMetricFamily(f"{PREFIX}breaker", "1 for the retry budget's state.", labels=["state"])
            for name in BREAKER_STATES:
                states.add_metric([name], float(name == breaker.state))
            yield states
        if retry is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}waiting_partitions", "Partitions that wait for their record.", value=len(retry.waiting)
            )

    def _out_of_range(self) -> Iterator[Metric]:
        """A new session counts from zero again, as a restarted worker does."""
        session = self._state.session
        report = session.consumer.out_of_range() if session else OutOfRangeReport()
        truncations = session.consumer.truncations() if session else TruncationReport()
        for name, text, count in (
            ("out_of_range", "Times that brokers did not have the next offset.", report.count),
            ("skipped_offsets", "Offsets that were skipped because they were out of range.", report.skipped),
            ("truncations", TRUNCATIONS, truncations.count),
            ("cut_offsets", "Offsets that were read and then lost by the cluster.", truncations.cut),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value=count)

    def _gauges(self) -> Iterator[Metric]:
        joined, _ = ready(self._state)
        session = self._state.session
        partitions = dict(session.loop.progress.partitions) if session else {}
        generation = session.consumer.membership().generation if session else -1
        in_flight = session.loop.in_flight if session else 0
        held = sum(partition.hold is not None for partition in partitions.values())
        for name, text, value in (
            ("ready", "1 while the worker is a member that can work.", int(joined)),
            ("generation", "The group's generation, -1 while not joined.", generation),
            ("assigned_partitions", "Partitions owned.", len(partitions)),
            ("in_flight", "Records taken up and not through their handler.", in_flight),
            ("held_partitions", "Partitions whose writes do not come through.", held),
        ):
            yield GaugeMetricFamily(f"{PREFIX}{name}", text, value=value)
        for name, text in (("position", "Next offset to handle."), ("committed", "Committed offset.")):
            gauge = GaugeMetricFamily(f"{PREFIX}{name}_offset", text, labels=["topic", "partition"])
            for (topic, number), partition in partitions.items():
                offset = getattr(partition, name)
                if offset is not None:
                    gauge.add_metric([topic, str(number)], offset)
            yield gauge


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    buckets, sofar = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), tuple(histogram.counts), strict=True):
        sofar += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(sofar)))
    return HistogramMetricFamily(f"{PREFIX}{name}", text, buckets=buckets, sum_value=histogram.total)


def metrics_page(stats: Stats, state: WorkerState) -> Callable[[], bytes]:
    """A function that renders the page behind /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(stats, state))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)
