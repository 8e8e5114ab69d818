"""Dashboards of the chart: written by their builders, and asking only for metrics that exist."""

from __future__ import annotations

import re

import pytest

from dashboards.__main__ import FOLDER, files
from tests.monitoring.queries import queries_of
from tests.support.metrics import exported
from tests.unit.test_metrics_page import operator_families, stored, worker_page


def test_committed_files_are_what_the_builders_make() -> None:
    """Otherwise run `python -m dashboards`."""
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == files()


@pytest.mark.parametrize("name", files())
def test_queries_use_metrics_that_exist_by_their_kind(name: str) -> None:
    known = stored(exported(worker_page(), "consumer_fleet_") | operator_families())
    queries = queries_of(FOLDER / name)
    assert len(queries) > 20
    for query in queries:
        names = re.findall(r"\b(?:consumer_fleet|process)_\w+", query)
        assert names, query
        for metric in names:
            assert metric in known or metric.startswith("process_"), query
            if metric in known and known[metric].kind == "counter":
                assert re.search(rf"\b(rate|increase)\({metric}\b", query), f"{query}: {metric} starts again"


@pytest.mark.parametrize("prefix", ["consumer_fleet_group_", "consumer_fleet_worker_", "consumer_fleet_operator_"])
def test_every_metric_is_on_a_dashboard(prefix: str) -> None:
    known = exported(worker_page(), "consumer_fleet_") | operator_families()
    shown = " ".join(query for name in files() for query in queries_of(FOLDER / name))
    absent = {name for name in known if name.startswith(prefix) and name not in shown}
    assert absent == set()
