"""Growth that is judged by what it gained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_operator.planning.scaling import brake
from fleet_operator.planning.scaling.dealing import useful_counts
from fleet_operator.planning.scaling.load import read_load
from fleet_operator.planning.state.document import read_state, write_state
from fleet_operator.planning.state.group import GroupState
from fleet_operator.planning.state.sizing import TRIES_MAX, Bound, Growth, SizingState
from tests.unit.planning.scaling.scenes import NOW, Scene

GREW = Growth(before=2, after=6, commits=100.0, at=NOW - 5.0)


def judged(commits: float, growth: Growth = GREW, *, lag: int = 100_000, seconds: float = 60.0) -> brake.Verdict | None:
    """The verdict after a while in which six workers have handled so many records a second."""
    scene = Scene(current=6, arrival=commits, handled=commits, lag=lag, spec={"downstreamBrake": "Disabled"})
    scene.memory = replace(scene.memory, growth=growth)
    scene.changes = {"rolling": True}
    scene.pass_time(seconds)
    facts = replace(scene.facts(), rolling=False, memory=replace(scene.memory, growth=growth))
    load, _ = read_load(facts, scene.history, scene.now)
    assert load is not None
    return brake.judge(facts, load, scene.now)


@pytest.mark.parametrize(("commits", "back"), [(90.0, 2), (100.0, 2), (115.0, 3), (151.0, None), (300.0, None)])
def test_growth_has_to_gain_a_quarter_of_what_was_expected(commits: float, back: int | None) -> None:
    """Three times the workers: two hundred records a second more were expected."""
    verdict = judged(commits)
    assert verdict is not None
    assert (verdict.bound.count if verdict.bound is not None else None) == back


def test_growth_is_not_judged_before_its_workers_have_worked_for_a_while() -> None:
    assert judged(100.0, seconds=25.0) is None


def test_thousandth_try_in_a_row_leaves_a_state_that_can_be_read() -> None:
    """A fleet may be behind for months, with a dependency at its limit."""
    scene = Scene(current=6, arrival=100.0, handled=100.0, lag=100_000)
    last = Bound(count=2, until=NOW, reached=100.0, tries=TRIES_MAX)
    memory = replace(scene.memory, growth=GREW, bound=last)
    scene.changes = {"memory": memory, "rolling": True}
    scene.pass_time(60)
    facts = replace(scene.facts(), rolling=False)
    load, _ = read_load(facts, scene.history, scene.now)
    assert load is not None
    verdict = brake.judge(facts, load, scene.now)
    assert verdict is not None
    document = write_state(GroupState(sizing=SizingState(bound=verdict.bound)), {})
    assert read_state(GroupState, document, "orders").sizing.bound == verdict.bound


def test_workers_without_a_backlog_have_no_fault() -> None:
    verdict = judged(100.0, lag=0)
    assert verdict is not None
    assert verdict.bound is None


@pytest.mark.parametrize("growth", [replace(GREW, before=0), replace(GREW, commits=0.0), replace(GREW, after=12), None])
def test_growth_that_nothing_is_expected_of_is_not_judged(growth: Growth | None) -> None:
    """A fleet that woke, one whose bounds were changed, and one that has taken another step since."""
    scene = Scene(current=6, arrival=100.0, handled=100.0, lag=100_000)
    scene.changes = {"memory": SizingState(growth=growth), "rolling": True}
    scene.pass_time(60)
    load, _ = read_load(scene.facts(), scene.history, scene.now)
    assert load is not None
    assert brake.judge(scene.facts(), load, scene.now) is None


def test_growth_stays_where_the_topics_are_gone_since() -> None:
    """As those of a pattern may be: no number of workers is useful then."""
    scene = Scene(current=6, lag=100_000)
    scene.pass_time(60)
    load, _ = read_load(scene.facts(), scene.history, scene.now)
    assert load is not None
    gone = replace(load, counts=useful_counts({}, "cooperative-sticky"))
    assert brake.enough_for(90.0, GREW, gone) == GREW.after


def test_growth_is_judged_after_its_own_rebalance_was_seen() -> None:
    """A poll between the two generations of a cooperative rebalance sees a Stable group with all new members, and none
    of the states between; what was measured until then is the work of the old ones."""
    scene = Scene(current=2, arrival=600.0, handled=120.0, rebalance_seen=False)
    scene.pass_time(60)
    assert scene.current == 12
    scene.pass_time(120)
    assert scene.current == 12
    scene.see_rebalance()
    scene.pass_time(90)
    assert scene.current == 2


def test_bound_from_before_does_not_hold_without_the_brake() -> None:
    bound = SizingState(bound=Bound(count=2, until=NOW + 3600, reached=200.0, tries=5))
    scene = Scene(spec={"downstreamBrake": "Disabled"}, current=2, arrival=600.0, handled=120.0, memory=bound)
    scene.pass_time(65)
    assert scene.current == 12
