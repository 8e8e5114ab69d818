"""Any sequence of facts: every one has a decision, and an unknown load never takes a worker away."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_operator.planning.problem import Problem
from tests.unit.planning.scaling.scenes import TOPIC, Scene

SPECS: Final = st.builds(
    lambda least, more, spec: {"minReplicas": least, **({"maxReplicas": max(1, least + more)} if more else {}), **spec},
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([0, 1, 5, 30]),
    st.fixed_dictionaries(
        {},
        optional={
            "scaleDownStabilizationSeconds": st.sampled_from([0, 20, 300]),
            "maxLagSeconds": st.sampled_from([1, 60]),
            "catchUpSeconds": st.sampled_from([1, 60]),
            "maxRebalancesPerHour": st.sampled_from([1, 2]),
        },
    ),
)
FLEETS: Final = st.builds(
    Scene,
    spec=SPECS,
    current=st.sampled_from([0, 1, 2, 4, 12, 20]),
    arrival=st.sampled_from([0.0, 1.0, 100.0]),
    partitions=st.sampled_from([1, 3, 12]),
    capacity=st.sampled_from([None, 0.001, 20.0]),
    lag=st.sampled_from([0, 5, 10_000]),
)
CHANGES: Final = st.fixed_dictionaries(
    {},
    optional={
        "observed": st.none(),
        "lag": st.none(),
        "members": st.just(()),
        "ready": st.just(0),
        "found": st.sampled_from([None, 0, 3]),
        "partition_counts": st.sampled_from([None, {}, {TOPIC: 2}, {TOPIC: 12, "payments": 3}]),
        "assignor": st.sampled_from(["range", "", "a class of the user's"]),
        "reported_stuck": st.just(frozenset({(TOPIC, 0), ("gone", 1)})),
        "hold": st.just(Problem("Rollout", "a rollout")),
    },
)
STATES: Final = st.sampled_from(
    [*["Stable"] * 4, "PreparingRebalance", "CompletingRebalance", "Empty", "Dead", "Unknown"]
)
STRETCHES: Final = st.tuples(
    st.sampled_from([0.0, 0.1, 100.0, 1e6]),
    st.sampled_from([None, 0.0, 5.0, 1e4]),
    STATES,
    st.one_of(st.just({}), CHANGES),
    st.sampled_from([0.0, 0.0, 0.0, -50.0, 500.0, 1e5]),
    st.sampled_from([5.0, 60.0, 200.0]),
    st.sampled_from([frozenset[int](), frozenset[int](), frozenset({0})]),
)


@settings(max_examples=60, deadline=None)
@given(FLEETS, st.lists(STRETCHES, min_size=1, max_size=12))
def test_every_facts_have_a_decision_and_unknown_load_takes_no_worker_away(
    scene: Scene, stretches: list[tuple[float, float | None, str, dict[str, Any], float, float, frozenset[int]]]
) -> None:
    """Clocks go back and jump, topics vanish, members are unknown, offsets are more than workers can have handled."""
    for arrival, handled, state, changes, jump, seconds, leaderless in stretches:
        scene.arrival, scene.handled, scene.state, scene.changes = arrival, handled, state, changes
        scene.now += jump
        scene.leaderless = leaderless
        before = scene.current
        scene.pass_time(seconds)
        if "observed" in changes or "lag" in changes or leaderless:
            most = scene.spec.get("maxReplicas", before)
            assert scene.current >= min(before, most)
