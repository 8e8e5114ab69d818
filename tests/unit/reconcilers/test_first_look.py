"""An object waits for the first look of a process, within a limit."""

from __future__ import annotations

from fleet_operator.reconcilers.context import FIRST_LOOK_SECONDS, FirstLook
from tests.support.clock import StillClock


def test_wait_for_a_first_look_ends_with_patience() -> None:
    clock = StillClock()
    look = FirstLook(clock)
    assert look.awaits(coming=True)
    clock.now += FIRST_LOOK_SECONDS - 1
    assert look.awaits(coming=True)
    clock.now += 1
    assert not look.awaits(coming=True)


def test_wait_begins_again_after_a_look() -> None:
    clock = StillClock()
    look = FirstLook(clock)
    assert look.awaits(coming=True)
    clock.now += FIRST_LOOK_SECONDS
    assert not look.awaits(coming=False)
    assert look.awaits(coming=True)
