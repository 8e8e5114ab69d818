"""Jumps of the wall clock: a suspended machine that goes on, or a clock that was set.

Deadlines compare times of the cluster with the wall clock. Time that a machine spent suspended has passed on the clock
and nowhere else, so whatever waits gets its time anew after a jump.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fleet_consumer.clock import running_seconds

JUMP_SECONDS: Final = 10.0
"""Difference between both clocks that is a jump. Clocks that are kept right by NTP move by far less at a time."""


class ClockJumps:
    """The last jump of a wall clock, found by comparing it with the seconds for which the machine has run."""

    def __init__(self, wall: Callable[[], float], running: Callable[[], float] = running_seconds) -> None:
        self._wall = wall
        self._running = running
        self._apart = wall() - running()
        self._jumped_at = 0.0

    def last(self) -> float:
        """The wall-clock time after the last jump, in epoch seconds; 0 without one. Call it often."""
        wall = self._wall()
        apart = wall - self._running()
        if abs(apart - self._apart) >= JUMP_SECONDS:
            self._jumped_at = wall
        self._apart = apart
        return self._jumped_at
