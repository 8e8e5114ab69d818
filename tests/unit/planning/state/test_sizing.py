"""The past of a fleet's size, as its state keeps it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_operator.planning.state.document import UnreadableStateError, read_state, write_state
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.state.sizing import HOUR_S, STEPS_MAX, Bound, Capacity, Growth, SizingState

NOW = 1_800_000_000.0
FULL = SizingState(
    count=6,
    steps=(NOW - 60, NOW),
    growth=Growth(before=3, after=6, commits=120.5, at=NOW),
    bound=Bound(count=3, until=NOW + 3600),
    probed=True,
    replicas=1,
    capacity=Capacity(rate=55.5, revision="0a1b2c3d4e"),
)


def read(document: dict[str, Any]) -> SizingState:
    return read_state(GroupState, {"sizing": document}, "orders").sizing


@pytest.mark.parametrize("memory", [FULL, SizingState(count=0), SizingState()], ids=["full", "asleep", "empty"])
def test_document_is_read_back(memory: SizingState) -> None:
    assert read(json.loads(json.dumps(write_state(GroupState(sizing=memory), {}))).get("sizing", {})) == memory


@pytest.mark.parametrize(
    "document",
    [
        {"count": -1},
        {"count": float("inf")},
        {"steps": ["yesterday"]},
        {"steps": 7},
        {"steps": [float("nan")]},
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


def test_steps_of_the_last_hour_are_kept_and_bounded() -> None:
    memory = SizingState(steps=(NOW - HOUR_S - 1, NOW - 10)).after_step(4, NOW)
    assert (memory.count, memory.steps) == (4, (NOW - 10, NOW))
    for number in range(2 * STEPS_MAX):
        memory = memory.after_step(4, NOW + number)
    assert len(memory.steps) == STEPS_MAX


def test_step_keeps_a_bound_until_its_time_and_drops_the_growth() -> None:
    assert FULL.after_step(4, NOW + 10) == SizingState(
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
    assert SizingState(steps=(NOW + 500, NOW - 10)).steps_within_hour(NOW) == (NOW - 10,)
