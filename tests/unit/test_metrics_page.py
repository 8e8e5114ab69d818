"""docs/metrics.md lists exactly what is exported, and its alerts ask for nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import yaml
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase

from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.member import retry_document
from fleet_consumer.worker.metrics import GroupLabels, metrics_page
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroupSpec
from fleet_operator.planning import labels
from fleet_operator.reconcilers.consumergroup.offset_changes import show_group
from fleet_operator.runtime.metrics import CLUSTER_LABELS, GROUP_GAUGES, GROUP_LABELS, GROUP_PREFIX, PREFIX, Metrics
from tests.support.metrics import Family, documented, exported
from tests.unit.planning.builders import facts, observation, observed_group
from tests.unit.worker.test_member import LABELS, Lived

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
RETRIES = (ROOT / "docs" / "retries.md").read_text()
WORKER = "consumer_fleet_worker_"
TARGET_LABELS = {"namespace", "pod", "job", "instance", "service", "endpoint", "container", "node", "cluster"}
"""Labels that Prometheus or its operator set for a target, or that are added to all series of a Prometheus."""


def worker_page() -> str:
    """The page of a worker that has everything there is to show."""
    lived = Lived()
    lived.state.breaker = lambda: BreakerSnapshot("Closed", 0.0, 0.0)
    lived.state.retry = lambda: retry_document("main", None, {}, lived.bench.stats)
    lived.bench.stats.retry_publishes["5s"] += 1
    render = metrics_page(lived.state, LABELS._replace(role="main"), lived.bench.clock)
    render()  # ends of partitions are only asked for while somebody scrapes
    lived.bench.steps(12)
    return render().decode()


def operator_families() -> dict[str, Family]:
    """All metrics of the operator, those without a sample too."""
    found = {}
    for collector in cast("list[MetricWrapperBase]", list(Metrics().registry._collector_to_names)):
        for family in collector.describe():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = family._labelnames if isinstance(family, GaugeMetricFamily) else collector._labelnames
            found[name] = Family(family.type, frozenset(labels))
    return found


def test_every_metric_of_a_worker_is_documented_and_no_other() -> None:
    assert exported(worker_page(), "consumer_fleet_") == documented(PAGE, WORKER, GroupLabels._fields)


def test_every_metric_of_the_operator_is_documented_and_no_other() -> None:
    own, groups = documented(PAGE, f"{PREFIX}_"), documented(PAGE, f"{GROUP_PREFIX}_", GROUP_LABELS)
    assert operator_families() == own | groups
    assert {f"{GROUP_PREFIX}_{name}" for name in GROUP_GAUGES} <= set(groups)


def test_labels_never_collide_with_those_of_the_target() -> None:
    known = exported(worker_page(), "consumer_fleet_") | operator_families()
    assert {name for name, family in known.items() if family.labels & TARGET_LABELS} == set()


def test_names_follow_the_conventions() -> None:
    for name, (kind, _) in (exported(worker_page(), "consumer_fleet_") | operator_families()).items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith("_seconds"), name


def stored(families: dict[str, Family]) -> dict[str, Family]:
    """The names that Prometheus stores, histograms as their parts."""
    parts = {
        f"{name}_{part}": Family("counter", family.labels)
        for name, family in families.items()
        if family.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    return families | parts


def test_documented_pod_monitor_selects_workers_as_they_are_labelled() -> None:
    blocks = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
    (monitor,) = [block for block in blocks if block.get("kind") == "PodMonitor"]
    selector: dict[str, Any] = monitor["spec"]["selector"]
    worker = labels.child_labels("orders", labels.WORKER)
    assert selector["matchLabels"].items() <= worker.items()
    (expression,) = selector["matchExpressions"]
    assert worker[expression["key"]] in expression["values"]
    assert labels.child_labels("orders", labels.RETRY)[expression["key"]] in expression["values"]
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == ["http"]


def test_documented_log_settings_are_valid() -> None:
    blocks = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
    (block,) = [block for block in blocks if "log" in block]
    spec = {"clusterRef": {"name": "main"}, "topics": ["t"], "handler": {"python": {"callable": "a:b"}}, **block}
    log = ConsumerGroupSpec.model_validate(spec).log
    assert (log.level, log.format) == ("Info", "Json")


def test_info_names_the_kafka_group_and_its_cluster() -> None:
    metrics = Metrics()
    show_group(metrics.groups, ("shop", "orders"), facts(observation=observation(observed_group())), {})
    ((labels_found, value),) = [
        (sample.labels, sample.value)
        for family in metrics.groups.collect()
        for sample in family.samples
        if sample.name == f"{GROUP_PREFIX}_info"
    ]
    assert value == 1
    assert set(labels_found) == {*GROUP_LABELS, "group_id", *CLUSTER_LABELS}
