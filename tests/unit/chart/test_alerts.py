"""Alerts of the chart: complete, on metrics that exist, and as the pages and the sample of Alertmanager have them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.queries import alerts
from tests.support.metrics import Family, exported
from tests.unit.test_metrics_page import operator_families, stored, worker_page

ROOT = Path(__file__).parents[3]
RUNBOOKS = (ROOT / "docs" / "alerts.md").read_text()
SAMPLE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "alertmanager" / "alertmanager.yaml").read_text())
TWINS = {
    "consumer_fleet_group_(lag_records|max_partition_lag_records|behind_seconds)": "GroupLagIsUnknown",
    "consumer_fleet_group_retry_": "RetriesAreUnknown",
    "consumer_fleet_group_breakers_open": "WorkersAreSilent",
    "consumer_fleet_worker_": "WorkersAreNotScraped",
}
"""Series that are absent while they are unknown, and the alerts for that case. All others of the operator are absent
while OperatorIsAway fires, or while there is no problem."""


@cache
def known() -> dict[str, Family]:
    """The series that Prometheus stores."""
    return stored(exported(worker_page(), "consumer_fleet_") | operator_families())


def sections() -> dict[str, str]:
    """Sections of the runbook page by the names of their alerts, in their order."""
    parts = re.split(r"^### (\w+)$", RUNBOOKS, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", alerts())
def test_alert_has_a_severity_a_summary_and_a_section(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description"}
    hold = f", after {rule['for']}" if "for" in rule else ""
    section = sections()[name]
    assert section.startswith(f"\n\nSeverity `{rule['labels']['severity']}`{hold}.\n")
    for part in ("Meaning.", "First step.", "Resolved"):
        assert f"- **{part}**" in section


def test_sections_are_those_of_the_alerts_in_their_order() -> None:
    assert list(sections()) == list(alerts())


@pytest.mark.parametrize("name", alerts())
def test_expression_uses_metrics_and_labels_that_exist(name: str) -> None:
    expression = alerts()[name]["expr"]
    metrics = re.findall(r"\bconsumer_fleet_\w+", expression)
    assert metrics
    for metric in metrics:
        assert metric in known()
        if known()[metric].kind == "counter" and "unless" not in expression:
            assert re.search(rf"\b(rate|increase)\({metric}\b", expression), f"{metric} starts again"
    labels = {
        label for text in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in text.split(", ") if label
    }
    assert labels <= {"le", "instance", "namespace"}.union(*(known()[metric].labels for metric in metrics))


def test_alert_on_a_series_that_may_be_absent_has_a_twin_that_the_page_names() -> None:
    for name, rule in alerts().items():
        expression = rule["expr"]
        if "unless" in expression or "absent(" in expression:
            continue  # fires while series are absent
        for twin in {twin for series, twin in TWINS.items() if re.search(series, expression)}:
            assert "unless on" in alerts()[twin]["expr"]
            here = next(text for text in re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE) if f"### {name}\n" in text)
            assert f"`{twin}`" in sections()[name] or f"### {twin}\n" in here, f"{name} does not name {twin}"


def test_sample_of_alertmanager_names_alerts_that_exist_and_labels_that_they_have() -> None:
    scenes = yaml.safe_load((ROOT / "tests" / "monitoring" / "scenes.yaml").read_text())
    for rule in SAMPLE["inhibit_rules"]:
        for matchers in (rule["source_matchers"], rule["target_matchers"]):
            names = [name for text in matchers for name in re.findall(r"\w+", text.partition("=")[2])]
            assert names
            for name in names:
                assert name in alerts()
                assert set(rule["equal"]) <= scenes[name]["labels"].keys(), f"{name} lacks labels to compare"
    severities = {text.split('"')[1] for route in SAMPLE["route"]["routes"] for text in route["matchers"]}
    assert severities == {"critical", "info"}
