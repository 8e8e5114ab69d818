"""Retry workers follow the main workers while these publish a state, and their own counts next to a quiet source."""

from __future__ import annotations

from typing import Any

from fleet_consumer.contract.breaker_state import Breakers, read_breaker_state, read_closed_breaker_state
from fleet_consumer.record import Record
from fleet_consumer.retry.budget import PROBES, PROBES_IN_VAIN
from fleet_consumer.worker.breaker.pacing import (
    OWN_RECORDS_MAX,
    TRIAL_S,
    BudgetPacing,
    FailureAction,
    FollowingPacing,
    Pace,
)
from tests.support.clock import StillClock
from tests.unit.retry.policies import policies
from tests.unit.worker.consume.test_retry_intake import PAUSE, START_MS, Shop, waiting_headers

WAITING = 60
COOLDOWN_S = 30
HOUR_S = 3600


class Following:
    """A retry worker's pacing, the main workers' breakers as a test says, and a clock that only a test moves."""

    def __init__(self, budget: dict[str, Any] | None = PAUSE) -> None:
        self.clock = StillClock()
        self.breakers = Breakers()
        found = policies("5s", budget=budget)
        self.pacing = FollowingPacing(lambda: found, lambda: self.breakers, lambda wanted: None, self.clock)

    def pace(self, *, idle: bool = False, after: float = 0.0) -> Pace:
        self.clock.now += after
        return self.pacing.pace(idle=idle)

    def fail(self, times: int = 1) -> list[FailureAction]:
        return [self.pacing.failed() for _ in range(times)]

    def say(self, *, opened: float = 0.0, closed: float = 0.0) -> None:
        """The main workers' state, valid for so many seconds from now."""
        now = self.clock.wall()
        self.breakers = Breakers(now + opened if opened else 0.0, now + closed if closed else 0.0)

    @property
    def state(self) -> str:
        assert self.pacing.snapshot is not None
        return self.pacing.snapshot.state


def test_next_to_a_silent_source_the_own_breaker_opens_after_few_records() -> None:
    here = Following()
    assert here.pace() is Pace.FULL
    assert here.fail(OWN_RECORDS_MAX) == [FailureAction.PROCEED] * (OWN_RECORDS_MAX - 1) + [FailureAction.STAY]
    assert here.pace() is Pace.STOP
    assert here.pace(after=COOLDOWN_S) is Pace.PROBE
    here.pacing.succeeded(PROBES)
    assert here.pace() is Pace.FULL


def test_without_a_budget_in_the_policy_retry_workers_follow_and_never_stop_by_themselves() -> None:
    """Records that never succeed are ordinary, and must not crawl next to a quiet topic."""
    here = Following(budget=None)
    assert set(here.fail(5000)) == {FailureAction.PROCEED}
    assert here.pace() is Pace.FULL
    here.say(opened=5)
    assert here.pace() is Pace.STOP
    assert here.fail() == [FailureAction.STAY]
    here.say(closed=5)
    assert here.pace() is Pace.FULL
    assert set(here.fail(5000)) == {FailureAction.PROCEED}


def test_failures_are_the_records_own_while_main_workers_succeed() -> None:
    """Records that wait next to a poisoned topic are mostly poison: they pass at full speed."""
    here = Following()
    here.say(closed=1000)
    assert set(here.fail(500)) == {FailureAction.PROCEED}
    assert here.pace() is Pace.FULL
    here.say()
    assert here.fail() == [FailureAction.PROCEED], "what failed meanwhile is not held against the next"


def test_after_the_main_workers_breakers_single_records_are_tried_first() -> None:
    """They close as soon as their source is quiet, whether or not the outage is over."""
    here = Following()
    here.say(opened=5)
    assert here.pace() is Pace.STOP
    assert here.fail() == [FailureAction.STAY]
    assert here.pace(after=6) is Pace.PROBE
    assert here.fail() == [FailureAction.STAY]
    assert here.pace() is Pace.STOP
    assert here.pace(after=COOLDOWN_S) is Pace.PROBE
    here.say(closed=15)
    assert here.pace() is Pace.FULL


def test_main_workers_stop_retries_for_a_bounded_time() -> None:
    here = Following()
    for _ in range(int(TRIAL_S // 10)):
        here.say(opened=60)
        assert here.pace(after=10, idle=True) is Pace.STOP
    here.say(opened=60)
    assert here.pace(after=10, idle=True) is Pace.PROBE
    here.pacing.succeeded(PROBES)
    assert here.pace() is Pace.FULL
    here.say()
    assert here.pace() is Pace.FULL
    here.say(opened=60)
    assert here.pace() is Pace.STOP, "a new outage counts again"


def test_breaker_that_has_nothing_to_try_is_shown_closed_and_still_tries_first() -> None:
    here = Following()
    here.say(opened=5)
    here.pace()
    assert here.pace(after=6, idle=True) is Pace.PROBE
    assert here.state == "HalfOpen"
    assert here.pace(after=COOLDOWN_S, idle=True) is Pace.PROBE
    assert here.state == "Closed"
    assert here.pace(after=1) is Pace.PROBE
    assert here.state == "HalfOpen"


def test_waiting_records_outlast_an_outage_next_to_a_quiet_source() -> None:
    """Of what waits, hardly anything uses up an attempt, however long it lasts; and then all of it is done."""
    down = True

    def handle(record: Record) -> None:
        if down:
            raise ConnectionError("down")

    found = policies("5s", "5s", "5s", budget=PAUSE)
    shop = Shop(handle, [(START_MS + 100 * n, waiting_headers(n)) for n in range(WAITING)], found=found)
    shop.pass_time(HOUR_S)
    burnt = len(shop.bench.producer.written)
    assert burnt <= OWN_RECORDS_MAX + HOUR_S / COOLDOWN_S / PROBES_IN_VAIN
    down = False
    shop.pass_time(120)
    assert (shop.bench.stats.done, burnt + shop.bench.stats.done) == (WAITING - burnt, WAITING)


def test_main_worker_marks_its_breaker_closed_only_while_records_succeed() -> None:
    clock, found = StillClock(), policies("5s", budget=PAUSE)
    pacing = BudgetPacing(lambda: found, clock)
    pacing.pace(idle=True)
    assert pacing.breaker_state == "", "silence says nothing"
    pacing.succeeded(1)
    pacing.pace(idle=False)
    until_ms = read_closed_breaker_state(pacing.breaker_state)
    assert until_ms is not None
    assert 0 < until_ms / 1000 - clock.wall() <= 15
    clock.now += 60
    pacing.pace(idle=True)
    assert read_closed_breaker_state(pacing.breaker_state) == until_ms, "it expires on its own"
    for _ in range(3):
        pacing.failed()
    pacing.succeeded(1)
    pacing.pace(idle=False)
    assert read_closed_breaker_state(pacing.breaker_state) == until_ms, "most records fail"
    assert read_breaker_state(pacing.breaker_state) is None
