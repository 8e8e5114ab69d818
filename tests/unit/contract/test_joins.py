"""join.json: the hold of the workers that one step adds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_consumer.contract.joins import HOLD_S, JoinStep, parse_join, render_join
from fleet_consumer.contract.section import SettingsInvalid

STEP = JoinStep(2, 6, 1_800_000_000.25)


def test_rendered_step_is_read_back() -> None:
    assert parse_join(json.loads(json.dumps(render_join("uid-1", STEP))), "uid-1") == STEP


def test_step_of_another_group_is_none() -> None:
    assert parse_join(render_join("uid-1", STEP), "uid-2") is None


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"version": 2}, render_join("u", STEP) | {"first": -1}, render_join("u", STEP) | {"more": 1}],
)
def test_other_content_is_refused(document: Any) -> None:
    with pytest.raises(SettingsInvalid):
        parse_join(document, "u")


@pytest.mark.parametrize(
    ("ordinal", "after_s", "hold_s"),
    [(2, 3.0, HOLD_S - 3.0), (5, 0.5, HOLD_S - 0.5), (1, 3.0, 0.0), (6, 3.0, 0.0), (2, HOLD_S, 0.0), (2, 60.0, 0.0)],
)
def test_new_workers_of_the_step_hold_until_its_time(ordinal: int, after_s: float, hold_s: float) -> None:
    assert STEP.hold_s(ordinal, STEP.at + after_s) == pytest.approx(hold_s)


def test_clock_that_is_far_behind_holds_nothing() -> None:
    assert STEP.hold_s(2, STEP.at - 3600.0) == 0.0
