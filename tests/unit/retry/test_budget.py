"""The breaker opens when too much fails, probes after its cooldown, and closes when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract.policies import Budget, BudgetAction
from fleet_consumer.retry.budget import PROBES, Breaker, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState
BUDGET = Budget(max_failure_percent=50, window_s=60, min_records=10, action=BudgetAction.PAUSE, cooldown_s=30)


def opened(at: float = 100.0) -> Breaker:
    breaker = Breaker(BUDGET, 0.0)
    for _ in range(10):
        breaker.failed(at)
    assert breaker.state is OPEN
    return breaker


def test_too_few_records_open_nothing() -> None:
    breaker = Breaker(BUDGET, 0.0)
    assert {breaker.failed(1.0) for _ in range(9)} == {CLOSED}
    assert breaker.failed(1.0) is OPEN


def test_share_of_failures_decides() -> None:
    breaker = Breaker(BUDGET, 0.0)
    for _ in range(100):
        breaker.succeeded(1.0)
        assert breaker.failed(2.0) is CLOSED
    assert breaker.failure_percent(2.0) == 50
    assert breaker.failed(2.0) is OPEN
    assert (breaker.since, breaker.until) == (2.0, 32.0)


@pytest.mark.parametrize("per_second", [0.2, 1, 1000])
def test_hundred_failures_in_a_row_are_an_outage_however_fast_records_come(per_second: float) -> None:
    """The share alone needs 30,000 of them at 1000 a second, and fewer than one in ten seconds prove nothing."""
    breaker = Breaker(replace(BUDGET, min_records=100), 0.0)
    for number in range(int(60 * per_second)):
        breaker.succeeded(number / per_second)
    failed = 1
    while breaker.failed(60.0 + failed / per_second) is CLOSED:
        failed += 1
    assert failed == 100


def test_one_success_between_failures_ends_their_row() -> None:
    breaker = Breaker(replace(BUDGET, min_records=1000), 0.0)
    for _ in range(50):
        assert {breaker.failed(1.0) for _ in range(9)} == {CLOSED}
        breaker.succeeded(1.0)


def test_old_records_leave_the_window() -> None:
    breaker = Breaker(BUDGET, 0.0)
    for _ in range(9):
        breaker.failed(1.0)
    assert breaker.failed(61.5) is CLOSED
    assert breaker.failure_percent(61.5) == 100


def test_open_breaker_is_probed_after_its_cooldown_and_not_before() -> None:
    breaker = opened(100.0)
    assert breaker.state_at(129.9) is OPEN
    assert breaker.state_at(130.0) is HALF_OPEN
    assert (breaker.since, breaker.until) == (130.0, None)


def test_failed_probe_opens_it_again_for_another_cooldown() -> None:
    breaker = opened(100.0)
    assert breaker.failed(130.0) is OPEN
    assert breaker.until == 160.0
    assert breaker.state_at(159.0) is OPEN


def test_consecutive_successes_close_the_breaker_and_reset_its_window() -> None:
    breaker = opened(100.0)
    assert [breaker.succeeded(131.0) for _ in range(PROBES)] == [HALF_OPEN] * (PROBES - 1) + [CLOSED]
    assert breaker.failure_percent(131.0) == 0
    assert breaker.failed(131.0) is CLOSED


def test_failure_between_probes_counts_them_again() -> None:
    breaker = opened(100.0)
    breaker.succeeded(130.0)
    breaker.failed(131.0)
    breaker.succeeded(161.0)
    assert breaker.succeeded(161.0) is HALF_OPEN


def test_every_third_failed_probe_moves_its_record_aside_despite_successes() -> None:
    breaker, made_way = opened(100.0), []
    for n in range(7):
        breaker.succeeded(130.0 + 30 * n)
        breaker.failed(130.0 + 30 * n)
        made_way.append(breaker.makes_way)
    assert made_way == [False, False, True, False, False, True, False]


def test_late_ends_of_an_open_breaker_change_nothing() -> None:
    breaker = opened(100.0)
    assert breaker.succeeded(101.0, 50) is OPEN
    assert breaker.failed(102.0) is OPEN
    assert breaker.until == 130.0


def test_edited_budget_is_used_from_the_next_record_on() -> None:
    breaker = Breaker(BUDGET, 0.0)
    breaker.failed(1.0)
    breaker.budget = replace(BUDGET, min_records=2, cooldown_s=5)
    assert breaker.failed(2.0) is OPEN
    assert breaker.until == 7.0


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 40, allow_nan=False)), max_size=200))
def test_breaker_opens_only_above_the_budget_of_its_window(ends: list[tuple[bool, float]]) -> None:
    """Next to a slow account of the same window, whose granularity is a second."""
    breaker, now, history = Breaker(BUDGET, 0.0), 0.0, list[tuple[float, bool]]()
    for good, pause in ends:
        now += pause
        before = breaker.state_at(now)
        after = breaker.succeeded(now) if good else breaker.failed(now)
        history.append((now, good))
        if before is CLOSED and after is OPEN:
            recent = [each for at, each in history if at > now - BUDGET.window_s - 1]
            assert not good
            assert len(recent) >= BUDGET.min_records
        assert (breaker.until is None) == (breaker.state is not OPEN)
