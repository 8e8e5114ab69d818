"""Time as a collaborator.

Pure code takes `now`; the threads that own time read it from a `Clock`, so that a test can own time instead.
Nothing here may sleep or schedule.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of both kinds of time, in seconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin; never goes back. For deadlines and intervals."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump. For what people and other machines read."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
