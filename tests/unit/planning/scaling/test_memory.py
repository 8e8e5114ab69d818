"""The memory that a StatefulSet keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_operator.planning.scaling.memory import (
    HOUR_S,
    NO_MEMORY,
    STEPS_MAX,
    Bound,
    Capacity,
    Growth,
    ScaleMemory,
    read_memory,
)

NOW = 1_800_000_000.0
FULL = ScaleMemory(
    count=6,
    steps=(NOW - 60, NOW),
    growth=Growth(before=3, after=6, commits=120.5, at=NOW),
    bound=Bound(count=3, until=NOW + 3600),
    probed=True,
    replicas=1,
    capacity=Capacity(rate=55.5, revision="0a1b2c3d4e"),
)


@pytest.mark.parametrize("memory", [FULL, ScaleMemory(count=0), NO_MEMORY], ids=["full", "asleep", "empty"])
def test_text_is_read_back(memory: ScaleMemory) -> None:
    assert read_memory(memory.to_text()) == memory
    assert memory.to_text() == read_memory(memory.to_text()).to_text()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"count": -1, "steps": [], "probed": false}',
        '{"count": 1e999, "steps": [], "probed": false}',
        '{"count": 6, "steps": ["yesterday"], "probed": false}',
        '{"count": 6, "steps": 7, "probed": false}',
        '{"count": 6, "steps": [NaN], "probed": false}',
        json.dumps({"count": 6, "steps": [], "probed": False, "growth": {"before": 1}}),
        json.dumps({"count": 6, "steps": [], "probed": False, "bound": [3]}),
        json.dumps({"count": 6, "steps": [], "probed": False, "capacity": 55}),
        *(
            json.dumps({"count": 6, "steps": [], "probed": False, "capacity": {"rate": rate, "revision": "r"}})
            for rate in (1e-300, float("nan"), float("inf"), 0, -3, "many")
        ),
    ],
)
def test_text_of_somebody_else_is_no_memory(text: Any) -> None:
    assert read_memory(text) == NO_MEMORY


def test_steps_of_the_last_hour_are_kept_and_bounded() -> None:
    memory = ScaleMemory(steps=(NOW - HOUR_S - 1, NOW - 10)).after_step(4, NOW)
    assert (memory.count, memory.steps) == (4, (NOW - 10, NOW))
    for number in range(2 * STEPS_MAX):
        memory = memory.after_step(4, NOW + number)
    assert len(memory.steps) == STEPS_MAX
    assert len(memory.to_text()) < 4096, "annotations are cut at this length"


def test_step_keeps_a_bound_until_its_time_and_drops_the_growth() -> None:
    assert FULL.after_step(4, NOW + 10) == ScaleMemory(
        count=4,
        steps=(NOW - 60, NOW, NOW + 10),
        bound=FULL.bound,
        replicas=1,
        capacity=FULL.capacity,
    )
    assert FULL.after_step(4, NOW + 3601).bound is None
    assert (FULL.bound_at(NOW + 3599), FULL.bound_at(NOW + 3600)) == (3, None)


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
    noted = FULL.with_capacity(rate, revision).capacity
    assert noted is not None
    assert noted.rate == kept
    assert noted.revision == (revision if rate and revision else "0a1b2c3d4e")


def test_step_of_a_clock_that_was_ahead_is_not_counted() -> None:
    assert ScaleMemory(steps=(NOW + 500, NOW - 10)).steps_within_hour(NOW) == (NOW - 10,)
