"""Time as a dependency.

Pure code takes `now`; the threads that own time read it from a `Clock`, so that a test can own time instead.
Nothing here may sleep or schedule.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol

# Linux's CLOCK_MONOTONIC stands still while the machine is suspended. A member that woke would take its session for
# young, though the broker has long given its partitions to others. CLOCK_MONOTONIC of other systems goes on.
_STEADY = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


class Clock(Protocol):
    """A source of both kinds of time, in seconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin, those of a suspended machine included; never goes back.

        For deadlines and intervals.
        """
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump. For what people and other machines read."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.clock_gettime(_STEADY)

    def wall(self) -> float:
        return time.time()
