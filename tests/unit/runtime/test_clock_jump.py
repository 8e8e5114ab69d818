"""Jumps of the wall clock, found against the seconds for which the machine has run."""

from __future__ import annotations

from fleet_operator.runtime.clock_jump import ClockJumps


class TwoClocks:
    """A wall clock and the seconds of a machine, which move apart as a test says."""

    def __init__(self) -> None:
        self.walls, self.runs = 1000.0, 50.0

    def wall(self) -> float:
        return self.walls

    def running(self) -> float:
        return self.runs

    def pass_by(self, wall: float, run: float) -> None:
        self.walls += wall
        self.runs += run


def test_suspended_machine_is_a_jump() -> None:
    clock = TwoClocks()
    jumps = ClockJumps(clock.wall, clock.running)
    clock.pass_by(60.0, 60.0)
    assert jumps.last() == 0.0
    clock.pass_by(3600.0, 0.5)
    assert jumps.last() == 4660.0
    clock.pass_by(60.0, 60.0)
    assert jumps.last() == 4660.0, "the jump is over"


def test_clock_that_is_set_back_is_a_jump_and_a_small_correction_is_none() -> None:
    clock = TwoClocks()
    jumps = ClockJumps(clock.wall, clock.running)
    clock.pass_by(2.0, 1.0)
    assert jumps.last() == 0.0
    clock.pass_by(-300.0, 1.0)
    assert jumps.last() == 702.0
