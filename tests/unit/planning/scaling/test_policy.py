"""Decisions of the scaling policy, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from fleet_operator.planning.observation import MemberObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.history import ScalingHistory
from fleet_operator.planning.state.sizing import Bound, Growth, SizingState, Step
from tests.unit.planning.scaling.scenes import NOW, TOPIC, Scene, words


def test_fleet_that_carries_its_load_stays() -> None:
    """120 records a second take 2.5 workers of 60 with a fifth in reserve, so three are useful."""
    scene = Scene(current=3)
    assert words(scene, 900) == (3, limits.NO_LIMIT)
    assert scene.memory.steps == ()


def test_growth_is_one_step_to_the_final_useful_number() -> None:
    scene = Scene(current=2, handled=120.0)
    scene.pass_time(90)
    scene.arrival = 420.0
    scene.pass_time(40)
    assert (scene.current, len(scene.memory.steps)) == (12, 1)


def test_fleet_grows_once_workers_were_behind_at_two_polls() -> None:
    scene = Scene(current=2, handled=120.0)
    scene.pass_time(90)
    scene.arrival = 420.0
    assert words(scene, 5) == (2, limits.NO_LIMIT)
    assert words(scene, 10)[0] == 12


def test_burst_that_workers_catch_up_with_changes_nothing() -> None:
    scene = Scene(current=4, handled=240.0)
    for _ in range(6):
        scene.arrival = 400.0
        scene.pass_time(5)
        scene.arrival = 120.0
        scene.pass_time(55)
    assert (scene.current, scene.memory.steps) == (4, ())


def test_fleet_shrinks_after_the_stabilization_window_in_one_step() -> None:
    scene = Scene(current=12)
    assert words(scene, 295) == (12, limits.COOLDOWN)
    assert words(scene, 60) == (3, limits.NO_LIMIT)
    assert len(scene.memory.steps) == 1


def test_one_burst_within_the_window_keeps_the_fleet() -> None:
    scene = Scene(current=6)
    for _ in range(7):
        scene.pass_time(200)
        scene.arrival = 250.0
        scene.pass_time(20)
        scene.arrival = 120.0
    assert (scene.current, scene.memory.steps) == (6, ())


def test_restarted_operator_goes_on_with_the_window() -> None:
    scene = Scene(current=12)
    scene.pass_time(280)
    scene.history, scene.samples = ScalingHistory(), []
    assert words(scene, 15) == (12, limits.COOLDOWN)
    assert words(scene, 60) == (3, limits.NO_LIMIT)


def test_operator_that_was_away_waits_a_whole_window_before_it_shrinks() -> None:
    """Nobody knows the load of the time between."""
    scene = Scene(current=12)
    scene.pass_time(280)
    scene.history, scene.samples = ScalingHistory(), []
    scene.now += 400.0
    scene._since = scene.now
    assert words(scene, 280) == (12, limits.COOLDOWN)
    assert words(scene, 60) == (3, limits.NO_LIMIT)


def test_level_that_is_no_longer_enough_is_not_remembered() -> None:
    scene = Scene(current=12)
    scene.pass_time(280)
    assert scene.memory.levels
    scene.arrival = 420.0
    scene.pass_time(60)
    scene.arrival, scene.history = 120.0, ScalingHistory()
    assert words(scene, 200)[0] == 12


@pytest.mark.parametrize(
    "unknown",
    [{"observed": None}, {"lag": None}, {"partition_counts": None}],
    ids=["group not observed", "lag unknown", "topics unknown"],
)
def test_unknown_load_changes_nothing_and_forgets_what_was_wanted(unknown: dict[str, Any]) -> None:
    scene = Scene(current=12)
    scene.pass_time(290)
    scene.changes = unknown
    assert words(scene, 600) == (12, limits.UNKNOWN)
    scene.changes = {}
    assert words(scene, 280) == (12, limits.COOLDOWN)


@pytest.mark.parametrize("word", [limits.ROLLOUT, limits.BREAKER_OPEN, limits.GROUP_SHARED, limits.UNKNOWN])
@pytest.mark.parametrize("load", [{"arrival": 600.0, "handled": 120.0, "current": 2}, {"current": 12}, {"current": 0}])
def test_hold_keeps_the_number_whatever_the_load(word: str, load: dict[str, Any]) -> None:
    scene = Scene(spec={"minReplicas": 0}, **load)
    scene.changes = {"hold": Problem(word, "because")}
    assert words(scene, 900) == (load["current"], word)


def test_group_that_rebalances_is_left_alone() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0, state="PreparingRebalance")
    assert words(scene, 600) == (2, limits.REBALANCING)


@pytest.mark.parametrize("missing", [{"ready": 1}, {"members": ()}, {"found": 1}])
def test_fleet_does_not_grow_before_the_workers_of_the_last_step_are_there(missing: dict[str, Any]) -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    scene.changes = missing
    assert words(scene, 300) == (2, limits.STARTING)


def test_fleet_stays_within_the_bounds_of_the_spec() -> None:
    scene = Scene(spec={"maxReplicas": 5, "minReplicas": 2}, current=2, arrival=600.0, handled=120.0)
    assert words(scene, 20) == (4, limits.MAX_REPLICAS), "five of twelve partitions have the busiest worker of four"
    scene.arrival, scene.handled = 1.0, 300.0
    assert words(scene, 900) == (2, limits.MIN_REPLICAS)


@pytest.mark.parametrize(("current", "spec", "wanted"), [(1, {"minReplicas": 3}, 3), (9, {"maxReplicas": 4}, 4)])
def test_changed_bounds_hold_at_once_even_while_the_load_is_unknown(
    current: int, spec: dict[str, int], wanted: int
) -> None:
    scene = Scene(spec=spec, current=current)
    scene.changes = {"observed": None}
    assert scene.decide().replicas == wanted


@pytest.mark.parametrize("unknown", [{"leaderless": frozenset({7})}, {"uncommitted": frozenset({7})}])
@pytest.mark.parametrize("capacity", [60.0, None])
def test_fleet_grows_by_what_is_known_of_its_load(unknown: dict[str, Any], capacity: float | None) -> None:
    scene = Scene(current=2, handled=120.0, capacity=capacity)
    scene.pass_time(90)
    for name, value in unknown.items():
        setattr(scene, name, value)
    assert words(scene, 90) == (2, limits.UNKNOWN)
    assert scene.decision is not None
    assert f"{TOPIC}-7" in scene.decision.reason
    scene.arrival = 420.0
    assert words(scene, 60)[0] == 12
    scene.handled = 440.0
    scene.pass_time(900)
    assert words(scene, 60) == (12, limits.UNKNOWN)


@pytest.mark.parametrize("unknown", [{"leaderless": frozenset({7})}, {"uncommitted": frozenset({7})}])
def test_fleet_shrinks_a_whole_window_after_all_of_its_load_is_known_again(unknown: dict[str, Any]) -> None:
    scene = Scene(current=12, **unknown)
    assert words(scene, 900) == (12, limits.UNKNOWN)
    scene.leaderless = scene.uncommitted = frozenset()
    assert words(scene, 280)[0] == 12
    assert words(scene, 150)[0] == 3


def test_growth_is_not_judged_by_a_part_of_the_load() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    scene.pass_time(90)
    scene.leaderless = frozenset({7})
    scene.pass_time(300)
    assert scene.current == 12


def test_sleeping_fleet_wakes_for_records_next_to_a_partition_without_a_leader() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=0, arrival=0.0, leaderless=frozenset({7}))
    assert words(scene, 60) == (0, limits.UNKNOWN), "records may wait"
    scene.arrival, scene.handled = 30.0, 0.0
    assert words(scene, 10)[0] == 1


def test_fleet_does_not_sleep_while_a_partition_is_unknown() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=1, arrival=0.0, leaderless=frozenset({7}))
    assert words(scene, 1800) == (1, limits.UNKNOWN)


@pytest.mark.parametrize("there", [3, 4])
def test_lag_that_grows_is_answered_while_workers_of_a_revision_are_on_their_way(there: int) -> None:
    """They may wait for a node without end."""
    scene = Scene(current=4, arrival=100.0)
    scene.changes = {"rolling": True, "ready": there, "revision": None}
    assert words(scene, 600) == (4, limits.ROLLOUT)
    scene.arrival, scene.handled = 420.0, 180.0
    scene.pass_time(150)
    assert scene.current == 12


def test_rollout_shrinks_nothing_and_takes_no_growth_back() -> None:
    scene = Scene(current=12, memory=SizingState(growth=Growth(before=2, after=12, commits=120.0, at=NOW)))
    scene.changes = {"rolling": True}
    assert words(scene, 1800) == (12, limits.ROLLOUT)


def test_capacity_of_another_revision_is_forgotten() -> None:
    scene = Scene(current=12, arrival=420.0)
    known = scene.pass_time(60).inputs
    scene.changes = {"revision": None}
    rolling = scene.pass_time(60).inputs
    scene.changes = {"revision": "another"}
    new = scene.pass_time(10).inputs
    assert known is not None
    assert rolling is not None
    assert new is not None
    assert (known.capacity, rolling.capacity, new.capacity) == (60.0, 60.0, None)
    scene._done = {key: end - 30_000.0 for key, end in scene._ends.items()}
    scene.handled = 3600.0
    scene.pass_time(60)
    assert scene.memory.capacity is not None
    assert (round(scene.memory.capacity.rate, -1), scene.memory.capacity.revision) == (300.0, "another")


def test_capacity_that_decisions_use_is_kept_for_the_next_process() -> None:
    scene = Scene(current=6, arrival=400.0, handled=330.0, capacity=100.0, spec={"maxReplicas": 6})
    scene.pass_time(400)
    assert scene.memory.capacity is not None
    assert scene.memory.capacity.rate == pytest.approx(55.0, rel=0.1)
    scene.history, scene.capacity = ScalingHistory(), None
    scene.arrival = 240.0
    scene.pass_time(1200)
    assert scene.current == 6


def test_clock_that_was_set_back_holds_nothing() -> None:
    scene = Scene(current=2, arrival=100.0)
    scene.pass_time(120)
    scene.memory = SizingState(
        count=2,
        capacity=scene.memory.capacity,
        steps=(Step(at=scene.now - 30, cost=1.0),),
        growth=Growth(before=1, after=2, commits=50.0, at=scene.now - 30),
        bound=Bound(count=2, until=scene.now + 3500, reached=100.0, tries=3),
    )
    scene.now -= 3600.0
    scene.samples = []
    scene.arrival, scene.handled = 600.0, 120.0
    scene.pass_time(40)
    assert scene.current == 12


def test_time_without_decisions_proves_nothing() -> None:
    """A suspended machine: its clock jumps, and nobody knows what was wanted in between."""
    scene = Scene(current=12)
    scene.pass_time(120)
    scene.now += 1200.0
    scene.samples = [scene._sample()]
    assert words(scene, 280) == (12, limits.COOLDOWN)
    assert words(scene, 90) == (3, limits.NO_LIMIT)


def test_window_of_no_length_still_takes_a_minute() -> None:
    scene = Scene(spec={"scaleDownStabilizationSeconds": 0}, current=12)
    assert words(scene, 55) == (12, limits.COOLDOWN)
    assert words(scene, 30) == (3, limits.NO_LIMIT)


def test_workers_that_never_start_do_not_keep_a_fleet_large() -> None:
    scene = Scene(current=12)
    scene.changes = {"ready": 5, "members": scene.facts().members[:5]}
    assert words(scene, 360) == (3, limits.NO_LIMIT)


def test_unknown_capacity_shrinks_nothing() -> None:
    scene = Scene(current=6, capacity=None)
    assert words(scene, 1800) == (6, limits.NO_LIMIT)
    assert scene.memory.steps == ()


def test_rate_that_workers_have_proven_is_enough_to_shrink_on() -> None:
    scene = Scene(current=6, capacity=None, arrival=240.0)
    scene.pass_time(60)
    scene.arrival = 30.0
    assert words(scene, 700)[0] == 1


def test_backlog_without_any_commit_is_answered_by_one_step_and_no_more() -> None:
    scene = Scene(current=2, capacity=None, arrival=60.0, handled=0.0)
    assert words(scene, 1800) == (3, limits.LEARNING)
    assert len(scene.memory.steps) == 1
    assert scene.memory.probed


def test_capacity_is_learnt_while_workers_have_a_backlog() -> None:
    scene = Scene(current=2, capacity=None, arrival=140.0, handled=120.0, spec={"maxReplicas": 2})
    scene.pass_time(120)
    assert scene.decision is not None
    assert scene.decision.inputs is not None
    assert scene.decision.inputs.capacity == pytest.approx(60.0, rel=0.02)


def test_growth_without_effect_is_taken_back_and_tried_again_after_twice_the_time() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    tried = []
    for _ in range(720):
        before = scene.current
        scene.pass_time(5)
        if scene.current > before:
            tried.append(scene.now)
    assert scene.decision is not None
    assert (scene.current, scene.decision.limit) == (2, limits.DOWNSTREAM)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert [round(pause / 60) for pause in pauses] == [3, 5, 9, 17]


def test_bound_lifts_as_soon_as_workers_handle_more_again() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    while scene.memory.bound is None:
        scene.pass_time(5)
    assert words(scene, 30) == (2, limits.DOWNSTREAM)
    scene.handled = 240.0
    began = scene.now
    while scene.current == 2:
        scene.pass_time(5)
    assert scene.now - began <= 40.0


def test_brake_that_is_disabled_takes_nothing_back() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0, spec={"downstreamBrake": "Disabled"})
    scene.pass_time(600)
    assert scene.current == 12


def test_growth_is_taken_back_to_what_handles_the_rate_that_was_reached() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    scene.pass_time(20)
    assert scene.current == 12
    scene.handled = 150.0
    scene.pass_time(60)
    assert scene.current == 3


def test_growth_that_helped_stays() -> None:
    scene = Scene(current=2, arrival=600.0, handled=120.0)
    scene.pass_time(20)
    scene.handled = 500.0
    scene.pass_time(600)
    assert scene.current == 12


def test_hot_partition_is_named_and_not_chased() -> None:
    """Half of the records are of one partition, which one worker of 60 records a second cannot handle."""
    weights = {0: 6.0, **dict.fromkeys(range(1, 12), 6.0 / 11.0)}
    scene = Scene(current=4, arrival=160.0, weights=weights)
    decision = scene.pass_time(600)
    assert (decision.replicas, decision.limit) == (4, limits.HOT_PARTITION)
    assert f"{TOPIC}-0" in decision.reason


def test_stuck_partition_is_left_out_of_the_load() -> None:
    scene = Scene(current=4)
    scene.pass_time(60)
    scene.changes = {"reported_stuck": frozenset({(TOPIC, 3)})}
    scene._done[TOPIC, 3] -= 500_000.0
    decision = scene.pass_time(600)
    assert (decision.replicas, decision.limit) == (4, limits.STUCK_PARTITION)
    assert f"{TOPIC}-3" in decision.reason


def test_idle_fleet_sleeps_and_wakes_for_the_first_record() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=3, arrival=0.0)
    assert words(scene, 295) == (3, limits.COOLDOWN)
    assert words(scene, 30) == (0, limits.SCALED_TO_ZERO)
    assert words(scene, 600) == (0, limits.SCALED_TO_ZERO)
    scene.arrival, scene.handled = 3.0, 0.0
    assert words(scene, 5) == (1, limits.NO_LIMIT)


def test_sleeping_fleet_wakes_with_as_many_workers_as_the_backlog_takes() -> None:
    scene = Scene(spec={"minReplicas": 0, "catchUpSeconds": 60}, current=0, arrival=120.0, handled=0.0, lag=20_000)
    assert scene.pass_time(10).replicas == 12


def test_fleet_does_not_sleep_while_a_partition_has_no_commit() -> None:
    """With autoOffsetReset Latest, records that arrive before the fleet wakes would be skipped."""
    scene = Scene(spec={"minReplicas": 0}, current=1, arrival=0.0)
    scene.pass_time(100)
    facts = scene.facts()
    assert facts.observed is not None
    committed = {key: offset for key, offset in facts.observed.committed.items() if key != (TOPIC, 0)}
    scene.changes = {"observed": replace(facts.observed, committed=committed)}
    for _ in range(100):
        scene.now += 5
        scene.decide()
    assert (scene.current, scene.decide().limit) == (1, limits.OFFSETS_MISSING)
    scene.changes["from_start"] = True
    assert scene.decide().replicas == 0


def test_sleeping_fleet_stays_asleep_while_nothing_is_known() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=0, arrival=5.0, handled=0.0)
    scene.changes = {"observed": None}
    assert words(scene, 60) == (0, limits.UNKNOWN)


def test_acceptable_lag_is_no_backlog() -> None:
    """Lag of forty seconds would take a worker more to be worked off within a minute."""
    spec = {"catchUpSeconds": 60}
    assert words(Scene(spec=spec, current=3, arrival=150.0, lag=6000), 15)[0] > 3
    assert words(Scene(spec={**spec, "maxLagSeconds": 60}, current=3, arrival=150.0, lag=6000), 90)[0] == 3


def test_growth_is_remembered_with_the_rate_before_it() -> None:
    scene = Scene(current=2, arrival=420.0, handled=120.0)
    while scene.current == 2:
        scene.pass_time(5)
    growth = scene.memory.growth
    assert growth is not None
    assert replace(growth, commits=0.0) == Growth(before=2, after=12, commits=0.0, at=scene._since)
    assert growth.commits == pytest.approx(120.0, rel=0.05)


def test_foreign_member_owns_nothing_of_the_measurement() -> None:
    scene = Scene(current=2, capacity=None, arrival=140.0, handled=120.0)
    foreign = MemberObservation(member_id="java", instance_id=None, client_id="java", host="", partitions={})
    scene.changes = {"members": (*scene.facts().members, foreign)}
    scene.pass_time(120)
    assert scene.history.measured
