"""Objects wait for the first look of a process, but not for ever."""

from __future__ import annotations

from fleet_operator.reconcilers.context import FIRST_LOOK_SECONDS, FirstLooks
from tests.support.clock import StillClock

KEY, OTHER = ("ns", "flights"), ("ns", "trips")


def test_wait_for_a_first_look_ends_with_the_look_and_with_patience() -> None:
    clock = StillClock()
    looks = FirstLooks(clock)
    assert looks.awaits(KEY, coming=True)
    clock.now += FIRST_LOOK_SECONDS - 1
    assert looks.awaits(KEY, coming=True)
    assert looks.awaits(OTHER, coming=True)
    assert not looks.awaits(OTHER, coming=False)
    clock.now += 1
    assert not looks.awaits(KEY, coming=True)
    assert looks.awaits(OTHER, coming=True), "its wait begins anew"


def test_forgotten_object_waits_anew() -> None:
    clock = StillClock()
    looks = FirstLooks(clock)
    assert looks.awaits(KEY, coming=True)
    clock.now += FIRST_LOOK_SECONDS
    looks.forget(KEY)
    assert looks.awaits(KEY, coming=True)
