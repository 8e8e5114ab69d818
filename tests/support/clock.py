"""A clock for tests that let no time pass."""

from __future__ import annotations


class StillClock:
    """Time that stands still until a test, or something that waits, moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now
