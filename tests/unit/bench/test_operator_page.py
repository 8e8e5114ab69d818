"""The page of the operator's benchmark: what each group cost and waited, also next to sizes recorded before."""

from __future__ import annotations

import json
from typing import Any

from bench.operator_page import page
from bench.operator_stage import Watched
from bench.report import RESULTS


def row(figures: dict[str, Any]) -> list[str]:
    """The cells of the first row of the first table."""
    lines = list(page([figures]))
    head = next(number for number, line in enumerate(lines) if line.startswith("| groups"))
    return [cell.strip() for cell in lines[head + 2].strip("|").split("|")]


def recorded() -> dict[str, Any]:
    sizes: list[dict[str, Any]] = json.loads((RESULTS / "operator.json").read_text())["sizes"]
    return sizes[0]


def test_page_shows_requests_for_each_group_and_the_wait_for_its_own_status() -> None:
    measured = recorded() | {"groups": 200, "children_requests": 3_100.0}
    cells = row(measured | {"own_status_p50_s": 1.25, "own_status_p99_s": 7.75})
    assert cells[3] == "1.2 s, 7.8 s"
    assert cells[6:8] == ["3,100", "15.5"]


def test_size_that_was_recorded_before_the_wait_was_measured_keeps_its_row() -> None:
    before = {key: value for key, value in recorded().items() if not key.startswith("own_status")}
    assert row(before)[3] == "not measured"


def test_page_in_the_results_is_made_of_the_recorded_figures() -> None:
    sizes = json.loads((RESULTS / "operator.json").read_text())["sizes"]
    assert (RESULTS / "operator.md").read_text().startswith("\n".join(page(sizes)))


def test_wait_for_a_status_begins_with_the_first_sight_of_the_group() -> None:
    watched = Watched()
    head = {"metadata": {"namespace": "team", "name": "g1"}, "spec": {}}
    watched.take(head)
    assert watched.waits() == []
    watched.take({**head, "status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    (wait,) = watched.waits()
    assert 0.0 <= wait == watched.first["team/g1"] - watched.made["team/g1"]
