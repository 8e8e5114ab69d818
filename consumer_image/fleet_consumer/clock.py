"""Time as a dependency.

Pure code takes `now`; the threads that own time read it from a `Clock`, so that a test can own time instead.
Nothing here may sleep or schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


def _steady() -> Callable[[], float]:
    """The clock that goes on while the machine is suspended.

    Linux's CLOCK_MONOTONIC stands still then. A member that woke would take its session for young, though the broker
    has long given its partitions to others. Those of macOS and Windows, which has no `clock_gettime`, go on.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None or not hasattr(time, "clock_gettime"):
        return time.monotonic
    return lambda: time.clock_gettime(boot)


_now = _steady()


class Clock(Protocol):
    """A source of both kinds of time, in seconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin, those of a suspended machine included; never goes back.

        For deadlines and intervals.
        """

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump. For what people and other machines read."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return _now()

    def wall(self) -> float:
        return time.time()
