"""The budget of rebalances: its price, its third for growth, and a lag that cannot wait."""

from __future__ import annotations

import pytest

from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.state.sizing import SizingState, Step
from tests.unit.planning.scaling.scenes import NOW, Scene, words

SPENT = SizingState(count=2, steps=tuple(Step(at=NOW - 60.0 * number, cost=1.0) for number in range(12, 0, -1)))


def test_lag_that_grows_waits_for_minutes_only_once_the_budget_is_spent() -> None:
    scene = Scene(current=2, arrival=420.0, handled=120.0, memory=SPENT)
    assert words(scene, 100) == (2, limits.REBALANCE_BUDGET)
    while scene.current == 2:
        scene.pass_time(5)
    assert scene.now <= NOW + 240
    assert len(scene.memory.steps) == 13, "the group lives"


def test_spent_budget_of_rebalances_holds_a_lag_that_shrinks_until_the_hour_has_passed() -> None:
    """A hundred thousand records are not worked off within ten minutes, and less arrives than is handled."""
    scene = Scene(current=2, arrival=100.0, handled=110.0, lag=100_000, memory=SPENT)
    assert words(scene, 1200) == (2, limits.REBALANCE_BUDGET)
    while scene.current == 2:
        scene.pass_time(5)
    assert NOW + 2880 <= scene.now <= NOW + 2900


def test_wakes_and_falling_asleep_cost_nothing_of_the_budget() -> None:
    scene = Scene(spec={"minReplicas": 0, "scaleDownStabilizationSeconds": 60}, current=0, arrival=30.0)
    for _ in range(14):
        scene.arrival, scene.handled = 30.0, 0.0
        scene.pass_time(30)
        scene.arrival, scene.handled = 0.0, 600.0
        scene.pass_time(170)
        assert scene.current == 0
    assert scene.memory.steps == ()


def test_growth_after_a_wake_settles_as_any_other() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=0, arrival=0.0)
    scene.pass_time(90)
    scene.arrival, scene.handled = 600.0, 60.0
    woken = words(scene, 5)[0]
    assert woken > 0
    assert words(scene, 30)[0] == woken


@pytest.mark.parametrize(("most", "shrinks"), [(12, 8), (3, 2), (2, 1), (1, 1)])
def test_a_third_of_the_budget_is_kept_for_growth(most: int, shrinks: int) -> None:
    def fleet(made: int) -> Scene:
        steps = tuple(Step(at=NOW - 60.0 * number, cost=1.0) for number in range(made, 0, -1))
        return Scene(spec={"maxRebalancesPerHour": most}, current=12, memory=SizingState(count=12, steps=steps))

    assert words(fleet(shrinks), 600) == (12, limits.COOLDOWN)
    assert words(fleet(shrinks - 1), 600)[0] == 3
