"""Time and rate of a task."""

from __future__ import annotations

from fleet_consumer.backfill.work import Pacer
from tests.support.clock import StillClock


def pacer(clock: StillClock, seconds: float = 10.0, rate: float | None = None) -> Pacer:
    def wait(seconds: float) -> None:
        clock.now += seconds

    return Pacer(seconds, rate, clock, wait)


def test_first_record_is_taken_although_the_time_is_over() -> None:
    clock = StillClock()
    one = pacer(clock, seconds=1.0)
    clock.now += 60
    assert one.may_take()
    assert not one.may_take()


def test_records_are_taken_until_the_deadline() -> None:
    clock = StillClock()
    one = pacer(clock, seconds=3.0)
    taken = 0
    while one.may_take():
        taken += 1
        clock.now += 1.0
    assert taken == 3
    assert clock.now == one.deadline


def test_rate_spreads_records_and_ends_at_the_deadline() -> None:
    clock = StillClock()
    one = pacer(clock, seconds=2.0, rate=10.0)
    taken = 0
    while one.may_take():
        taken += 1
    assert taken == 20
    assert 1.8 < one.waited < 2.01


def test_unused_time_does_not_come_back_as_a_burst() -> None:
    clock = StillClock()
    one = pacer(clock, seconds=100.0, rate=10.0)
    assert one.may_take()
    clock.now += 50
    began = clock.now
    for _ in range(11):
        assert one.may_take()
    assert clock.now - began >= 0.99


def test_groups_grow_with_the_speed_and_shrink_towards_the_end() -> None:
    clock = StillClock()
    one = pacer(clock, seconds=10.0)
    sizes = []
    while one.may_take(size := one.group(500)):
        sizes.append(size)
        clock.now += 0.001 * size
    assert sizes[0] == 1
    assert sizes[1] == 2
    assert max(sizes) == 250, "as many as a quarter of a second takes"
    slow = pacer(clock, seconds=10.0)
    sizes = []
    while slow.may_take(size := slow.group(500)):
        sizes.append(size)
        clock.now += 2.0 * size
    assert sizes == [1] * 5
