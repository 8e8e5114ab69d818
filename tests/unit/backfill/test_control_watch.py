"""The operator's control: the guard's pause, and a guard that checks no more."""

from __future__ import annotations

from fleet_consumer.backfill.run import GUARD_AGE_MAX_S, ControlWatch
from fleet_consumer.contract.backfill_ledger import Control, GuardWord


def guard(checked: str, *, pause: bool = False) -> Control:
    return Control(guard=GuardWord(pause=pause, message="live is 80 s behind", checked=checked))


def test_without_a_guard_it_goes_on_indefinitely() -> None:
    watch = ControlWatch()
    assert [watch.pause(Control(), now) for now in (0.0, 1e6)] == [None, None]


def test_guard_pauses_and_releases() -> None:
    watch = ControlWatch()
    assert watch.pause(guard("1", pause=True), 0.0) == "live is 80 s behind"
    assert watch.pause(guard("2"), 5.0) is None


def test_check_that_stays_the_same_pauses_until_it_changes() -> None:
    watch = ControlWatch()
    assert watch.pause(guard("1"), 100.0) is None
    assert watch.pause(guard("1"), 100.0 + GUARD_AGE_MAX_S - 1) is None
    stale = watch.pause(guard("1"), 100.0 + GUARD_AGE_MAX_S)
    assert stale is not None
    assert "unknown" in stale
    assert watch.pause(guard("2"), 100.0 + GUARD_AGE_MAX_S + 1) is None


def test_long_slice_with_a_new_check_behind_it_goes_on() -> None:
    watch = ControlWatch()
    watch.pause(guard("1"), 0.0)
    assert watch.pause(guard("9"), 500.0) is None
