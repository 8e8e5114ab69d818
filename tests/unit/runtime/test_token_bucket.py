"""One budget for status writes: routine news waits, urgent news does not, and routine makes room for it."""

from __future__ import annotations

from fleet_operator.runtime.token_bucket import TokenBucket


def spend(bucket: TokenBucket, seconds: int) -> int:
    return sum(1 for tick in range(seconds * 10) if bucket.wait(tick / 10) == 0.0)


def test_routine_writes_keep_to_the_rate_after_the_burst() -> None:
    assert 10 + 5 * 59 <= spend(TokenBucket(rate=5.0, burst=10.0, debt_max=100.0), 60) <= 10 + 5 * 60


def test_refusal_says_how_long_to_wait_and_takes_nothing() -> None:
    bucket = TokenBucket(rate=2.0, burst=1.0, debt_max=10.0)
    assert bucket.wait(0.0) == 0.0
    assert bucket.wait(0.0) == 0.5
    assert bucket.wait(0.0) == 0.5
    assert bucket.wait(0.5) == 0.0


def test_urgent_writes_go_at_once_and_routine_ones_pay_for_them() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0, debt_max=10.0)
    for _ in range(5):
        bucket.take_now(0.0)
    assert bucket.wait(0.0) == 5.0
    assert bucket.wait(5.0) == 0.0


def test_debt_is_bounded() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0, debt_max=10.0)
    for _ in range(1000):
        bucket.take_now(0.0)
    assert bucket.wait(0.0) == 11.0
