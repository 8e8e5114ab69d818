"""Orders of the operator: the guard's pause, and a guard that looks no more."""

from __future__ import annotations

from fleet_consumer.backfill.run import LOOK_AGE_MAX_S, Orders
from fleet_consumer.contract.backfill_ledger import Control, GuardWord


def guard(look: str, *, pause: bool = False) -> Control:
    return Control(guard=GuardWord(pause=pause, message="live is 80 s behind", look=look))


def test_without_a_guard_it_goes_on_for_ever() -> None:
    orders = Orders()
    assert [orders.pause(Control(), now) for now in (0.0, 1e6)] == [None, None]


def test_guard_pauses_and_releases() -> None:
    orders = Orders()
    assert orders.pause(guard("1", pause=True), 0.0) == "live is 80 s behind"
    assert orders.pause(guard("2"), 5.0) is None


def test_look_that_stays_the_same_pauses_until_it_changes() -> None:
    orders = Orders()
    assert orders.pause(guard("1"), 100.0) is None
    assert orders.pause(guard("1"), 100.0 + LOOK_AGE_MAX_S - 1) is None
    stale = orders.pause(guard("1"), 100.0 + LOOK_AGE_MAX_S)
    assert stale is not None
    assert "unknown" in stale
    assert orders.pause(guard("2"), 100.0 + LOOK_AGE_MAX_S + 1) is None


def test_long_slice_with_a_new_look_behind_it_goes_on() -> None:
    orders = Orders()
    orders.pause(guard("1"), 0.0)
    assert orders.pause(guard("9"), 500.0) is None
