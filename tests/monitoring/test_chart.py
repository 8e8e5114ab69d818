"""Alerts and dashboards as Helm renders them."""

from __future__ import annotations

import copy

import pytest

from tests.apiserver.chart import of_kind, rendered
from tests.monitoring.queries import DASHBOARDS, alerts

BASE = "https://runbooks.example.com/alerts/"


def test_neither_alerts_nor_dashboards_are_created_by_default() -> None:
    found = rendered()
    assert not of_kind(found, "PrometheusRule")
    assert not of_kind(found, "ConfigMap")


def test_each_alert_links_to_its_section_and_is_otherwise_as_in_the_file() -> None:
    (rule,) = of_kind(rendered("alerts.enabled=true", f"alerts.runbookBaseUrl={BASE}"), "PrometheusRule").values()
    found = {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]}
    wanted = copy.deepcopy(alerts())
    for name, each in wanted.items():
        each["annotations"]["runbook_url"] = f"{BASE}#{name.lower()}"
    assert found == wanted


def test_runbooks_are_in_the_repository_unless_another_place_is_named() -> None:
    (rule,) = of_kind(rendered("alerts.enabled=true"), "PrometheusRule").values()
    links = {each["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for each in group["rules"]}
    assert links == {f"docs/alerts.md#{name.lower()}" for name in alerts()}
    with pytest.raises(ValueError, match="runbookBaseUrl"):
        rendered("alerts.enabled=true", "alerts.runbookBaseUrl=https://example.com/page#anchor")


def test_prometheus_and_grafana_select_by_labels() -> None:
    labels = ("alerts.labels.release=prometheus", "dashboards.labels.folder=kafka")
    found = rendered("alerts.enabled=true", "dashboards.enabled=true", *labels)
    (rule,), (dashboards,) = of_kind(found, "PrometheusRule").values(), of_kind(found, "ConfigMap").values()
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert {"grafana_dashboard": "1", "folder": "kafka"}.items() <= dashboards["metadata"]["labels"].items()
    assert dashboards["data"] == {path.name: path.read_text() for path in DASHBOARDS.iterdir()}
