"""Rates, capacity and stuck partitions from samples of a group's progress."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.observation import GroupTransition, MemberObservation, ProgressSample
from fleet_operator.planning.scaling.capacity import measure, percentile
from fleet_operator.planning.scaling.facts import rates_over, window
from fleet_operator.planning.scaling.load import REBALANCE_S, Demand, demand, find_stuck, rebalance_seconds

A, B = ("orders", 0), ("orders", 1)


def sample(at: float, committed: tuple[int, int], ends: tuple[int, int]) -> ProgressSample:
    return ProgressSample(at, dict(zip((A, B), committed, strict=True)), dict(zip((A, B), ends, strict=True)))


def member(*partitions: int) -> MemberObservation:
    return MemberObservation(
        member_id=f"m{partitions}", instance_id=None, client_id="", host="", partitions={"orders": partitions}
    )


def test_rates_are_those_from_the_first_sample_to_the_last() -> None:
    rates = rates_over([sample(0, (0, 0), (100, 0)), sample(5, (9, 9), (101, 1)), sample(10, (50, 10), (200, 20))])
    assert rates is not None
    assert (rates.arrival, rates.commits, rates.seconds) == ({A: 10, B: 2}, {A: 5, B: 1}, 10)


def test_offsets_that_go_back_have_no_rate() -> None:
    """A topic that was made anew, or offsets that were reset."""
    rates = rates_over([sample(0, (50, 0), (100, 0)), sample(10, (0, 10), (5, 20))])
    assert rates is not None
    assert (rates.arrival, rates.commits) == ({B: 2}, {B: 1})


def test_one_sample_has_no_rate() -> None:
    assert rates_over([sample(0, (0, 0), (1, 1))]) is None
    assert rates_over([]) is None


def test_window_is_the_shortest_that_spans_the_time() -> None:
    samples = [sample(float(at), (0, 0), (0, 0)) for at in (0, 5, 10, 15, 22)]
    assert [each.at for each in window(samples, 10)] == [10, 15, 22]
    assert [each.at for each in window(samples, 15)] == [5, 10, 15, 22]
    assert [each.at for each in window(samples, 100)] == [0, 5, 10, 15, 22]


def backlog(step: int) -> list[ProgressSample]:
    """Worker of A handles 50 records a second of a backlog, B has nothing to do but what arrives."""
    return [sample(5.0 * n, (250 * n, 100 * n), (10_000 + 500 * n, 100 * n + (50 if step else 0))) for n in range(9)]


def test_capacity_is_that_of_the_workers_with_a_backlog() -> None:
    found = measure(backlog(1), [member(0), member(1)], stable_since=0.0, commit_interval_s=5.0)
    assert found is not None
    assert (found.busy, found.commits, found.mean, found.mostly_busy) == (50.0, 70.0, 35.0, True)


def test_lag_that_the_commit_interval_explains_is_no_backlog() -> None:
    found = measure(backlog(1), [member(1)], stable_since=0.0, commit_interval_s=5.0)
    assert found is not None
    assert found.busy is None


def test_partition_that_stands_keeps_no_worker_busy() -> None:
    samples = [sample(5.0 * n, (0, 100 * n), (50_000, 100 * n + 20)) for n in range(9)]
    found = measure(samples, [member(0, 1)], stable_since=0.0, commit_interval_s=5.0)
    assert found is not None
    assert found.busy is None


def test_worker_that_starves_counts_as_busy_and_teaches_nothing() -> None:
    """A database at its limit may answer some workers and not others."""
    samples = [sample(5.0 * n, (0, 100 * n), (50_000, 100 * n + 20)) for n in range(9)]
    found = measure(samples, [member(0), member(1)], stable_since=0.0, commit_interval_s=5.0)
    assert found is not None
    assert (found.busy, found.mostly_busy) == (None, True)


def test_nothing_is_measured_across_a_rebalance() -> None:
    assert measure(backlog(1), [member(0)], stable_since=30.0, commit_interval_s=5.0) is None
    assert measure(backlog(1), [member(0)], stable_since=20.0, commit_interval_s=5.0) is not None


def test_measurement_spans_several_commit_intervals() -> None:
    assert measure(backlog(1), [member(0)], stable_since=0.0, commit_interval_s=10.0) is not None
    assert measure(backlog(1), [member(0)], stable_since=0.0, commit_interval_s=15.0) is None


def test_capacity_is_a_high_percentile() -> None:
    assert percentile([]) is None
    assert percentile([40.0]) == 40.0
    assert percentile([10.0] * 6 + [60.0]) == 60.0
    assert percentile([10.0] * 10 + [60.0, 500.0]) == 60.0, "one outlier of twelve is none"


def stuck(samples: list[ProgressSample], *members: MemberObservation) -> frozenset[tuple[str, int]]:
    return find_stuck(samples, members, commit_interval_s=5.0)


def test_stuck_partition_has_a_lag_and_no_commit_while_its_worker_keeps_up_with_the_rest() -> None:
    moving = [sample(5.0 * n, (100, 50 * n), (200 + n, 50 * n + 9)) for n in range(14)]
    assert stuck(moving, member(0, 1)) == {A}
    assert stuck(moving, member(0), member(1)) == {A}
    assert stuck(moving[:6], member(0, 1)) == frozenset(), "not for long enough"
    standing = [sample(5.0 * n, (100, 50), (200 + n, 60 * n)) for n in range(14)]
    assert stuck(standing, member(0, 1)) == frozenset(), "nothing moves: the group stands"
    quiet = [sample(5.0 * n, (100, 50 * n), (100, 60 * n)) for n in range(14)]
    assert stuck(quiet, member(0, 1)) == frozenset(), "nothing waits"
    assert stuck(moving) == frozenset(), "nobody owns it"


def test_partition_that_waits_behind_others_of_a_busy_worker_is_load_and_not_stuck() -> None:
    """A worker that cannot keep up hands out one partition's backlog after the other's."""
    starving = [sample(5.0 * n, (100, 50 * n), (200 + n, 50 * n + 5000)) for n in range(14)]
    assert stuck(starving, member(0, 1)) == frozenset()
    assert stuck(starving, member(0), member(1)) == {A}


def workers(*args: Any, **kwargs: Any) -> Demand:
    found = demand(*args, **kwargs)
    assert found is not None, "the capacity is known"
    return found


def test_no_partition_asks_for_more_than_one_worker() -> None:
    found = workers(
        {A: 90.0, B: 10.0},
        {A: 60_000, B: 0},
        50.0,
        catch_up_s=600.0,
        acceptable_s=0.0,
        rebalance_s=0.0,
        stuck=frozenset(),
    )
    assert (found.growth, found.wanted, found.hot, found.capped) == (1.2, 1.25, (A,), True)


def test_partitions_that_all_have_too_much_are_not_hot() -> None:
    """More partitions are missing, and no key is to blame."""
    rates = {A: 90.0, B: 85.0}
    found = workers(rates, {A: 0, B: 0}, 50.0, catch_up_s=600.0, acceptable_s=0.0, rebalance_s=0.0, stuck=frozenset())
    assert (found.hot, found.capped, found.growth) == ((), True, 2.0)


def test_rebalance_itself_is_part_of_the_load() -> None:
    costs = [
        workers(
            {A: 40.0, B: 0.0}, {A: 0, B: 0}, 50.0, catch_up_s=60.0, acceptable_s=0, rebalance_s=pause, stuck=frozenset()
        ).wanted
        for pause in (0.0, 15.0)
    ]
    assert costs == [1.0, 1.0] or costs[1] >= costs[0]
    light = [
        workers({A: 20.0}, {A: 0}, 50.0, catch_up_s=60.0, acceptable_s=0, rebalance_s=pause, stuck=frozenset()).wanted
        for pause in (0.0, 15.0)
    ]
    assert light == pytest.approx([0.5, 0.6])


def test_stuck_or_hot_partition_counts_a_whole_worker_against_shrinking_only() -> None:
    found = workers(
        {A: 20.0, B: 20.0}, {A: 9_000, B: 0}, 50.0, catch_up_s=60.0, acceptable_s=0, rebalance_s=0, stuck=frozenset({A})
    )
    assert (found.growth, found.wanted, found.floor) == pytest.approx((0.4, 0.5, 1.5))
    hot = workers(
        {A: 45.0, B: 5.0}, {A: 0, B: 0}, 50.0, catch_up_s=60.0, acceptable_s=0, rebalance_s=0, stuck=frozenset()
    )
    assert (hot.wanted, hot.floor) == pytest.approx((1.125, 2.125))


def change(before: str, after: str, at: float) -> GroupTransition:
    return GroupTransition(before=before, after=after, at=at)


def test_rebalance_is_measured_from_stable_to_stable() -> None:
    whole = (
        change("Unknown", "Stable", 0),
        change("Stable", "PreparingRebalance", 10),
        change("PreparingRebalance", "CompletingRebalance", 12),
        change("CompletingRebalance", "Stable", 13.5),
    )
    assert rebalance_seconds(whole) == 3.5
    assert rebalance_seconds(whole[:3]) == REBALANCE_S
    assert rebalance_seconds(()) == REBALANCE_S


def test_group_that_was_empty_in_between_is_no_rebalance() -> None:
    emptied = (
        change("Unknown", "Stable", 0),
        change("Stable", "Empty", 10),
        change("Empty", "PreparingRebalance", 500),
        change("PreparingRebalance", "Stable", 503),
    )
    assert rebalance_seconds(emptied) == REBALANCE_S
