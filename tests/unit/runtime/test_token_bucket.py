"""A budget of writes: those who wait come one after the other, and an urgent change runs up a debt that they pay."""

from __future__ import annotations

import pytest

from fleet_operator.runtime.status_writer import TokenBucket


def test_waiters_get_different_times_at_the_rate() -> None:
    """Were all told the same time, a hundred would come back for each token."""
    bucket = TokenBucket(rate=5.0, burst=10.0)
    waits = [bucket.reserve(0.0) for _ in range(15)]
    assert waits[:10] == [0.0] * 10
    assert waits[10:] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_reserved_token_is_not_given_twice() -> None:
    bucket = TokenBucket(rate=2.0, burst=1.0)
    assert bucket.reserve(0.0) == 0.0
    assert bucket.reserve(0.0) == 0.5
    assert bucket.reserve(0.5) == 0.5
    assert bucket.reserve(5.0) == 0.0


def test_urgent_writes_go_at_once_and_routine_ones_pay_for_them() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0, debt_max=10.0)
    for _ in range(5):
        bucket.take_now(0.0)
    assert bucket.reserve(0.0) == 5.0
    assert bucket.reserve(6.0) == 0.0


def test_debt_of_urgent_writes_is_bounded_and_takes_no_reservation_away() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0, debt_max=10.0)
    for _ in range(1000):
        bucket.take_now(0.0)
    assert bucket.reserve(0.0) == 11.0
    bucket.take_now(0.0)
    assert bucket.reserve(0.0) == 12.0
