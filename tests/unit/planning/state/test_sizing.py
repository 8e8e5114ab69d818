"""The past of a fleet's size, as its state keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.state.document import UnreadableStateError, read_state, write_state
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.state.sizing import (
    HOUR_S,
    LEVEL_YOUNG_S,
    STEPS_MAX,
    UNWATCHED_S,
    Bound,
    Capacity,
    Growth,
    Level,
    SizingState,
    Step,
)

NOW = 1_800_000_000.0
FULL = SizingState(
    count=6,
    steps=(Step(at=NOW - 60, cost=0.5), Step(at=NOW, cost=1.0)),
    growth=Growth(before=3, after=6, commits=120.5, at=NOW),
    bound=Bound(count=3, until=NOW + 3600, reached=150.0, tries=2),
    levels=(Level(count=3, since=NOW - 100), Level(count=4, since=NOW - 200)),
    known_at=NOW,
    probed=True,
    replicas=1,
    capacity=Capacity(rate=55.5, revision="0a1b2c3d4e", at=NOW - 500),
)


def read(document: dict[str, Any]) -> SizingState:
    return read_state(GroupState, {"sizing": document}, "orders").sizing


@pytest.mark.parametrize("memory", [FULL, SizingState(count=0), SizingState()], ids=["full", "asleep", "empty"])
def test_document_is_read_back(memory: SizingState) -> None:
    assert read(json.loads(json.dumps(write_state(GroupState(sizing=memory), {}))).get("sizing", {})) == memory


@pytest.mark.parametrize("rate", [1e-9, 4e-7, 1e-6, 0.25, 1e9, 1e12])
def test_any_measured_capacity_is_read_back(rate: float) -> None:
    """Workers report it, and may run any image."""
    memory = SizingState().with_capacity(rate, "0a1b2c3d4e", NOW)
    assert read(write_state(GroupState(sizing=memory), {})["sizing"]) == memory


@pytest.mark.parametrize(
    "document",
    [
        {"count": -1},
        {"count": float("inf")},
        {"steps": ["yesterday"]},
        {"steps": 7},
        {"steps": [{"at": float("nan"), "cost": 1.0}]},
        {"steps": [{"at": NOW, "cost": 7.0}]},
        {"levels": [{"count": 3}]},
        {"growth": {"before": 1}},
        {"bound": [3]},
        {"capacity": 55},
        *(
            {"capacity": {"rate": rate, "revision": "r"}}
            for rate in (1e-300, float("nan"), float("inf"), 0, -3, "many")
        ),
    ],
)
def test_document_of_somebody_else_is_not_read(document: dict[str, Any]) -> None:
    with pytest.raises(UnreadableStateError, match=r"sizing\."):
        read(document)


def at(time: float, cost: float = 1.0) -> Step:
    return Step(at=time, cost=cost)


def test_steps_of_the_last_hour_are_kept_and_bounded() -> None:
    memory = SizingState(steps=(at(NOW - HOUR_S - 1), at(NOW - 10))).after_step(4, NOW, cost=0.25)
    assert (memory.count, memory.steps) == (4, (at(NOW - 10), at(NOW, 0.25)))
    for number in range(2 * STEPS_MAX):
        memory = memory.after_step(4, NOW + number, cost=1.0)
    assert len(memory.steps) == STEPS_MAX


def test_step_that_stops_nobody_is_not_counted() -> None:
    assert SizingState().after_step(0, NOW, cost=0.0).steps == ()


def test_step_keeps_the_bound_and_drops_the_growth() -> None:
    after = FULL.after_step(4, NOW + 10, cost=1.0)
    assert (after.count, after.growth, after.bound, after.probed) == (4, None, FULL.bound, False)
    assert (FULL.bound_at(NOW + 3599), FULL.bound_at(NOW + 3600)) == (3, None)


def test_young_level_is_not_remembered_and_one_that_is_gone_leaves_at_once() -> None:
    young, old = Level(count=3, since=NOW - LEVEL_YOUNG_S + 1), Level(count=4, since=NOW - 500)
    assert SizingState().with_levels([young, old], NOW).levels == (old,)
    assert FULL.with_levels([FULL.levels[1]], NOW).levels == (FULL.levels[1],)
    assert FULL.with_levels([], NOW) == replace(FULL, levels=(), known_at=None)


def test_levels_cost_one_write_a_minute() -> None:
    assert FULL.with_levels(FULL.levels, NOW + 50) == FULL
    assert FULL.with_levels(FULL.levels, NOW + 60).known_at == NOW + 60


def test_levels_count_after_a_restart_and_not_after_a_long_absence() -> None:
    assert FULL.levels_at(NOW + UNWATCHED_S) == FULL.levels
    assert FULL.levels_at(NOW + UNWATCHED_S + 1) == ()
    assert FULL.levels_at(NOW - 1) == (), "of a clock that was ahead"
    assert SizingState(levels=FULL.levels).levels_at(NOW) == ()


def test_bound_of_a_clock_that_was_ahead_is_none() -> None:
    assert FULL.bound_at(NOW - 600) is None


@pytest.mark.parametrize(
    ("rate", "revision", "kept"),
    [
        (58.0, "0a1b2c3d4e", 55.5),
        (70.0, "0a1b2c3d4e", 70.0),
        (40.0, "0a1b2c3d4e", 40.0),
        (55.5, "another", 55.5),
        (90.0, None, 55.5),
        (None, "another", 55.5),
    ],
)
def test_capacity_is_kept_in_steps_of_a_tenth(rate: float | None, revision: str | None, kept: float) -> None:
    """Each is a write to the API server."""
    recorded = FULL.with_capacity(rate, revision, NOW).capacity
    assert recorded is not None
    assert recorded.rate == kept
    assert recorded.revision == (revision if rate and revision else "0a1b2c3d4e")


def test_step_of_a_clock_that_was_ahead_is_not_counted() -> None:
    assert SizingState(steps=(at(NOW + 500), at(NOW - 10))).steps_within_hour(NOW) == (at(NOW - 10),)
