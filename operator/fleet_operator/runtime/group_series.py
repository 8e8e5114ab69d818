"""Prometheus series of ConsumerGroups: plain values, which become samples when somebody scrapes.

prometheus_client keeps an object with a lock for each series. With a dozen series for each of thousands of groups those
would be a seventh of the operator's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
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
        """Remove a group that is gone, or its series would report for ever."""
        self._groups.pop(key, None)

    def describe(self) -> Iterable[Metric]:
        """The families without samples; called when this is registered."""
        return [*_gauges().values(), _state(), _info()]

    def collect(self) -> Iterator[Metric]:
        groups = list(self._groups.items())
        for place, family in enumerate(_gauges().values()):
            for key, group in groups:
                value = group.values[place]
                if value is not None:
                    family.add_metric(key, value)
            yield family
        states, infos = _state(), _info()
        for key, group in groups:
            if group.state is not None:
                states.add_metric((*key, group.state), 1.0)
            if group.info is not None:
                infos.add_metric((*key, *group.info), 1.0)
        yield states
        yield infos


def _gauges() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"{GROUP_PREFIX}_{name}", text, labels=GROUP_LABELS)
        for name, text in GROUP_GAUGES.items()
    }


def _state() -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{GROUP_PREFIX}_state", "1 for the state the group is in.", labels=STATE_LABELS)


def _info() -> GaugeMetricFamily:
    text = "1; names the Kafka group and the KafkaCluster."
    return GaugeMetricFamily(f"{GROUP_PREFIX}_info", text, labels=INFO_LABELS)
