"""Clocks for tests that own time: one that stands still, one of a machine that is suspended."""

from __future__ import annotations

from fleet_consumer.clock import SystemClock


class StillClock:
    """Time that stands still until a test, or something that waits, moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


class SuspendedClock(SystemClock):
    """The machine's clock as its programs see it when the machine sleeps: it stands still, and then has jumped.

    A thread that waits for time to pass waits meanwhile; nothing else is stopped.
    """

    def __init__(self) -> None:
        self._asleep_since: float | None = None

    def monotonic(self) -> float:
        asleep_since = self._asleep_since
        return super().monotonic() if asleep_since is None else asleep_since

    def suspend(self) -> None:
        """Stand still from now on."""
        self._asleep_since = super().monotonic()

    def resume(self) -> None:
        """Tell the time again, as if it had never stood still."""
        self._asleep_since = None
