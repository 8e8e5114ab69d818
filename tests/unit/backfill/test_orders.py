"""Orders of the operator: suspend, the guard's pause, and a guard that looks no more."""

from __future__ import annotations

from fleet_consumer.backfill.run import LOOK_AGE_MAX_S, Course, Orders
from fleet_consumer.contract.backfill_ledger import Control, GuardWord


def guard(look: str, *, pause: bool = False) -> Control:
    return Control(guard=GuardWord(pause=pause, message="live is 80 s behind", look=look))


def test_without_a_guard_it_goes_on_for_ever() -> None:
    orders = Orders()
    assert [orders.judge(Control(), now).course for now in (0.0, 1e6)] == [Course.GO, Course.GO]


def test_suspend_wins_over_a_pause() -> None:
    control = Control(suspend=True, guard=GuardWord(pause=True, message="behind", look="1"))
    assert Orders().judge(control, 0.0).course is Course.STOP


def test_guard_pauses_and_releases() -> None:
    orders = Orders()
    paused = orders.judge(guard("1", pause=True), 0.0)
    assert (paused.course, paused.message) == (Course.PAUSE, "live is 80 s behind")
    assert orders.judge(guard("2"), 5.0).course is Course.GO


def test_look_that_stays_the_same_pauses_until_it_changes() -> None:
    orders = Orders()
    assert orders.judge(guard("1"), 100.0).course is Course.GO
    assert orders.judge(guard("1"), 100.0 + LOOK_AGE_MAX_S - 1).course is Course.GO
    stale = orders.judge(guard("1"), 100.0 + LOOK_AGE_MAX_S)
    assert stale.course is Course.PAUSE
    assert "unknown" in stale.message
    assert orders.judge(guard("2"), 100.0 + LOOK_AGE_MAX_S + 1).course is Course.GO


def test_long_slice_with_a_new_look_behind_it_goes_on() -> None:
    orders = Orders()
    orders.judge(guard("1"), 0.0)
    assert orders.judge(guard("9"), 500.0).course is Course.GO
