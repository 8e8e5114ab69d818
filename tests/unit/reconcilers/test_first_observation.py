"""An object waits for the first observation of a process, within a limit."""

from __future__ import annotations

from fleet_operator.reconcilers.context import FIRST_OBSERVATION_SECONDS, FirstObservation
from tests.support.clock import StillClock


def test_wait_for_a_first_observation_ends_with_patience() -> None:
    clock = StillClock()
    wait = FirstObservation(clock)
    assert wait.awaits(coming=True)
    clock.now += FIRST_OBSERVATION_SECONDS - 1
    assert wait.awaits(coming=True)
    clock.now += 1
    assert not wait.awaits(coming=True)


def test_wait_begins_again_after_an_observation() -> None:
    clock = StillClock()
    wait = FirstObservation(clock)
    assert wait.awaits(coming=True)
    clock.now += FIRST_OBSERVATION_SECONDS
    assert not wait.awaits(coming=False)
    assert wait.awaits(coming=True)
