"""Growth that is judged by what it gained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_operator.planning.scaling.capacity import Measurement
from fleet_operator.planning.scaling.load import Load, read_load, useful_counts
from fleet_operator.planning.scaling.policy import can_judge, count_without_effect
from fleet_operator.planning.state.sizing import Growth
from tests.unit.planning.scaling.scenes import NOW, Scene

GREW = Growth(before=2, after=6, commits=100.0, at=NOW)


def measured(commits: float, *, busy: bool = True) -> Measurement:
    return Measurement(at=NOW + 60, busy=commits / 6, commits=commits, mean=commits / 6, mostly_busy=busy)


def load() -> Load:
    scene = Scene(current=6)
    scene.pass_time(60)
    found, _ = read_load(scene.facts(), scene.trail)
    assert found is not None
    return found


@pytest.mark.parametrize(("commits", "back"), [(90.0, 2), (100.0, 2), (115.0, 2), (151.0, None), (300.0, None)])
def test_growth_has_to_gain_a_quarter_of_what_was_expected(commits: float, back: int | None) -> None:
    """Three times the workers on even partitions: two hundred records a second more were expected."""
    assert count_without_effect(GREW, measured(commits), load()) == back


def test_number_to_go_back_to_handles_what_was_reached() -> None:
    """150 records a second take three workers of 60, and 15 more than before are no effect."""
    grown = Growth(before=2, after=12, commits=135.0, at=NOW)
    assert count_without_effect(grown, measured(150.0), load()) == 3


def test_growth_is_not_taken_back_where_the_topics_are_gone_since() -> None:
    """As those of a pattern may be: nothing can be expected of any number of workers."""
    gone = replace(load(), counts=useful_counts({}, "cooperative-sticky"))
    assert count_without_effect(GREW, measured(90.0), gone) is None


def test_growth_is_not_judged_while_workers_have_nothing_to_do() -> None:
    assert can_judge(GREW, measured(100.0))
    assert not can_judge(GREW, measured(100.0, busy=False))
    assert not can_judge(Growth(before=0, after=6, commits=0.0, at=NOW), measured(100.0)), "a fleet that woke"
    assert not can_judge(Growth(before=2, after=6, commits=0.0, at=NOW), measured(100.0)), "a changed bound"


def test_growth_is_judged_after_its_own_rebalance_was_seen() -> None:
    """A look between the two generations of a cooperative rebalance sees a Stable group with all new members, and none
    of the states between; what was measured until then is the work of the old ones."""
    scene = Scene(current=2, arrival=600.0, handled=120.0, rebalance_seen=False)
    scene.pass_time(60)
    assert scene.current == 12
    scene.pass_time(120)
    assert scene.current == 12
    scene.see_rebalance()
    scene.pass_time(90)
    assert scene.current == 2
