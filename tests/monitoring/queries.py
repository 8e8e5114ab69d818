"""Queries of the chart's dashboards and expressions of its alerts, as Prometheus gets them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.install import CHART

__all__ = ["DASHBOARDS", "RULES", "alerts", "filled", "queries_of"]

RULES: Final = CHART / "alerts" / "rules.yaml"
DASHBOARDS: Final = CHART / "dashboards"


@cache
def alerts() -> dict[str, dict[str, Any]]:
    """The chart's alerting rules by their names."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def queries_of(dashboard: Path) -> list[str]:
    """Expressions of all panels of a dashboard, with Grafana's variables in them."""
    return list(_expressions(json.loads(dashboard.read_text())["panels"]))


def filled(query: str, variables: Mapping[str, str]) -> str:
    """A query with values in place of Grafana's variables."""
    for name, value in variables.items():
        query = query.replace(f"${name}", value)
    assert "$" not in query, query
    return query


def _expressions(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))
        yield from _expressions(panel.get("panels", []))
