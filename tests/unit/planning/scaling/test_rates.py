"""Rates, capacity and stuck partitions from samples of a group's progress."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_operator.planning.observation import GroupTransition, MemberObservation, ProgressSample, WorkerObservation
from fleet_operator.planning.scaling.capacity import (
    SETTLED_S,
    Measurement,
    busy_capacity,
    measure_fleet,
    percentile,
    with_reports,
)
from fleet_operator.planning.scaling.facts import ENOUGH, rates_from, rates_over, window
from fleet_operator.planning.scaling.load import find_stuck
from fleet_operator.planning.work import RecordInHand, WorkObservation
from tests.unit.planning.scaling.scenes import Scene

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
    """A topic that was created again, or offsets that were reset."""
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


def measure(
    samples: list[ProgressSample], members: list[MemberObservation], *, stable_since: float, commit_interval_s: float
) -> Measurement | None:
    facts = replace(Scene().facts(), members=tuple(members), commit_interval_s=commit_interval_s)
    assert facts.observed is not None
    stable = GroupTransition(before="Unknown", after="Stable", at=stable_since - SETTLED_S)
    return measure_fleet(
        replace(facts, observed=replace(facts.observed, samples=tuple(samples), transitions=(stable,)))
    )


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


def stuck(
    samples: list[ProgressSample],
    *members: MemberObservation,
    reports: tuple[WorkerObservation, ...] = (),
    timeout_s: float = 60.0,
) -> frozenset[tuple[str, int]]:
    facts = replace(Scene().facts(), members=members, reports=reports, timeout_s=timeout_s)
    assert facts.observed is not None
    return find_stuck(facts, replace(facts.observed, samples=tuple(samples)))


def reported(busy_s: float, records: int, *in_hand: int, at: float = 0.0, pod: str = "orders-0") -> WorkerObservation:
    hands = tuple(RecordInHand("orders", number, 0, at) for number in in_hand)
    work = WorkObservation(busy_seconds=busy_s, records=records, slots=1, in_hand=hands)
    return WorkerObservation(pod=pod, work=work, heard_at=at)


def test_stuck_partition_has_a_lag_and_no_commit_while_its_worker_keeps_up_with_the_rest() -> None:
    moving = [sample(5.0 * n, (100, 50 * n), (200 + n, 50 * n + 9)) for n in range(14)]
    assert stuck(moving, member(0, 1)) == {A}
    assert stuck(moving, member(0), member(1)) == {A}
    assert stuck(moving[:6], member(0, 1)) == frozenset(), "not for long enough"
    still = [sample(5.0 * n, (100, 50), (200 + n, 60 * n)) for n in range(14)]
    assert stuck(still, member(0, 1)) == frozenset(), "nothing moves: the whole group makes no progress"
    quiet = [sample(5.0 * n, (100, 50 * n), (100, 60 * n)) for n in range(14)]
    assert stuck(quiet, member(0, 1)) == frozenset(), "nothing waits"
    assert stuck(moving) == frozenset(), "nobody owns it"


def test_partition_that_waits_behind_others_of_a_busy_worker_is_load_and_not_stuck() -> None:
    """A worker that cannot keep up hands out one partition's backlog after the other's."""
    starving = [sample(5.0 * n, (100, 50 * n), (200 + n, 50 * n + 5000)) for n in range(14)]
    assert stuck(starving, member(0, 1)) == frozenset()
    assert stuck(starving, member(0), member(1)) == {A}


def test_record_that_its_worker_has_in_hand_is_not_stuck() -> None:
    moving = [sample(5.0 * n, (100, 50 * n), (200 + n, 50 * n + 9)) for n in range(14)]
    assert stuck(moving, member(0, 1), reports=(reported(65.0, 1, 0),)) == frozenset()
    assert stuck(moving, member(0, 1), reports=(reported(1.0, 99),)) == {A}


def test_record_may_take_its_time_where_no_worker_is_heard() -> None:
    moving = [sample(5.0 * n, (100, 50 * n), (200 + n, 50 * n + 9)) for n in range(40)]
    assert stuck(moving[:14], member(0, 1), timeout_s=120.0) == frozenset()
    assert stuck(moving, member(0, 1), timeout_s=120.0) == {A}


def test_capacity_is_records_by_busy_second_without_any_backlog() -> None:
    samples = with_reports({}, [reported(10.0, 500, at=100.0)], 100.0)
    assert busy_capacity(samples, 100.0) is None, "one sample is no rate"
    samples = with_reports(samples, [reported(13.0, 680, at=130.0)], 130.0)
    assert busy_capacity(samples, 130.0) == 60.0


def test_capacity_of_slow_records_takes_a_longer_window() -> None:
    samples = dict[str, tuple[object, ...]]()
    for step in range(31):
        reports = [reported(24.0 * step, step, at=30.0 * step)]
        samples = with_reports(samples, reports, 30.0 * step)  # type: ignore[arg-type,assignment]
    assert busy_capacity(samples, 900.0) == pytest.approx(1.0 / 24.0)  # type: ignore[arg-type]
    assert len(samples["orders-0"]) < 20


def test_handler_that_became_slower_shows_within_half_a_minute() -> None:
    samples = with_reports({}, [reported(0.0, 0, at=0.0)], 0.0)
    for second in range(10, 610, 10):
        records = 60 * second if second <= 570 else 60 * 570 + 12 * (second - 570)
        samples = with_reports(samples, [reported(float(second), records, at=float(second))], float(second))
    assert busy_capacity(samples, 600.0) == 12.0


def test_worker_that_began_again_is_measured_from_its_beginning() -> None:
    samples = with_reports({}, [reported(500.0, 30_000, at=0.0)], 0.0)
    samples = with_reports(samples, [reported(1.0, 20, at=10.0)], 10.0)
    assert busy_capacity(samples, 10.0) is None
    samples = with_reports(samples, [reported(11.0, 220, at=20.0)], 20.0)
    assert busy_capacity(samples, 20.0) == 20.0


def test_worker_that_is_gone_is_forgotten() -> None:
    samples = with_reports({}, [reported(1.0, 20, at=0.0), reported(1.0, 20, at=0.0, pod="orders-1")], 0.0)
    samples = with_reports(samples, [reported(2.0, 40, at=1000.0)], 1000.0)
    assert set(samples) == {"orders-0"}


def test_rate_of_few_records_is_that_of_a_longer_window_and_near_the_mean() -> None:
    slow = [sample(10.0 * n, (0, 0), (n, 0)) for n in range(31)]
    rates = rates_from(slow, 10.0)
    assert rates is not None
    assert sum(rates.values()) == pytest.approx(0.1)
    assert 0.0 < rates[B] < rates[A]
    fast = [sample(5.0 * n, (0, 0), (100 * n, 0)) for n in range(20)]
    rates = rates_from(fast, 5.0)
    assert rates is not None
    assert (rates[A] + rates[B], rates[A]) == pytest.approx((20.0, 19.4), rel=0.01)


def test_rate_follows_a_change_within_its_least_window() -> None:
    ends = [0, *(10 * n for n in range(1, 10)), 90 + 10 * ENOUGH]
    changed = [sample(5.0 * n, (0, 0), (end, 0)) for n, end in enumerate(ends)]
    rates = rates_from(changed, 5.0)
    assert rates is not None
    assert sum(rates.values()) == pytest.approx(2.0 * ENOUGH)
