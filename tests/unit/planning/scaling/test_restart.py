"""A restart of the operator between any two decisions changes none of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.history import ScalingHistory
from fleet_operator.planning.scaling.policy import decide
from fleet_operator.planning.state.sizing import Capacity
from tests.unit.planning.scaling.scenes import NOW, REVISION, Scene


@dataclass
class Restarted(Scene):
    """A fleet of which a second process decides, too, each time as its first decision. `others` has what it decides
    where that is something else."""

    others: list[tuple[ScaleDecision, ScaleDecision]] = field(default_factory=list)

    def decide(self) -> ScaleDecision:
        first, _ = decide(self.facts(), ScalingHistory(), self.now)
        decision = super().decide()
        if first.replicas != decision.replicas:
            self.others.append((decision, first))
        return decision


STRETCHES: Final = st.tuples(
    st.sampled_from([0.0, 5.0, 60.0, 130.0, 300.0, 700.0]),
    st.sampled_from([None, 0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([5.0, 20.0, 60.0, 200.0, 400.0]),
)
FLEETS: Final = st.builds(
    Restarted,
    spec=st.fixed_dictionaries(
        {"minReplicas": st.sampled_from([0, 1, 3])},
        optional={
            "scaleDownStabilizationSeconds": st.sampled_from([60, 300]),
            "maxRebalancesPerHour": st.sampled_from([2, 12]),
        },
    ),
    current=st.sampled_from([1, 2, 4, 12]),
    weights=st.sampled_from([{}, {0: 3.0}, {0: 5.0, 4: 5.0}]),
)


@settings(max_examples=60, deadline=None)
@given(FLEETS, st.lists(STRETCHES, min_size=1, max_size=8))
def test_process_that_has_just_begun_decides_as_the_one_before_or_waits(
    scene: Restarted, stretches: list[tuple[float, float | None, float]]
) -> None:
    """It waits where the one before shrinks by a number that has been enough for less than a minute before it began."""
    for arrival, share, seconds in stretches:
        scene.arrival = arrival
        scene.handled = None if share is None else share * 60.0 * max(scene.current, 1)
        scene.pass_time(seconds)
    for decision, first in scene.others:
        assert first.replicas == first.current, f"{decision.reason} / {first.reason}"
        assert decision.replicas < (decision.current or 0), f"{decision.reason} / {first.reason}"


LOADS: Final = ((120.0, 120.0, 90), (420.0, 120.0, 20), (420.0, 700.0, 200), (50.0, None, 800))
"""Arrival, what is handled, and for how long."""


def test_restarts_delay_what_a_fleet_does_by_little() -> None:
    times: dict[bool, list[tuple[int, float]]] = {}
    for restarts in (False, True):
        scene, seen = Scene(current=2, handled=120.0), list[tuple[int, float]]()
        for arrival, handled, seconds in LOADS:
            scene.arrival, scene.handled = arrival, handled
            for second in range(0, seconds, 10):
                before = scene.current
                scene.pass_time(10)
                if scene.current != before:
                    seen.append((scene.current, scene.now))
                if restarts and second % 100 == 90:
                    scene.history = ScalingHistory()
        times[restarts] = seen
    assert [count for count, _ in times[True]] == [count for count, _ in times[False]] == [12, 2]
    for (_, late), (_, early) in zip(times[True], times[False], strict=True):
        assert 0.0 <= late - early <= 70.0


def test_process_that_has_just_begun_tries_no_smaller_number_for_a_capacity_of_long_ago() -> None:
    """The process before may have measured it since, and no worker has reported yet."""
    scene = Scene(current=12, arrival=300.0)
    known = Capacity(rate=60.0, revision=REVISION, at=NOW - 7200.0)
    scene.memory = replace(scene.memory, capacity=known)
    assert scene.pass_time(1200).replicas == 12
    scene.pass_time(900)
    assert scene.memory.probed
