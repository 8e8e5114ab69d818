"""Clocks for tests: a manual one, and one of a suspended machine."""

from __future__ import annotations

from fleet_consumer.clock import SystemClock


class StillClock:
    """A clock that only a test, or a waiting component, advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


class SuspendedClock(SystemClock):
    """The machine's clock as programs see it during a suspend: it stops, and then jumps.

    A thread waiting for time to pass waits meanwhile; nothing else is stopped.
    """

    def __init__(self) -> None:
        self._asleep_since: float | None = None

    def monotonic(self) -> float:
        asleep_since = self._asleep_since
        return super().monotonic() if asleep_since is None else asleep_since

    def suspend(self) -> None:
        """Stop the clock."""
        self._asleep_since = super().monotonic()

    def resume(self) -> None:
        """Run again, at the time that it would have without the stop."""
        self._asleep_since = None
