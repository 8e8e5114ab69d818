"""Clocks are objects passed as arguments, so that tests can control time.

Pure code gets the time as an argument; threads read it from a `Clock`. Nothing in this module may sleep or schedule.
"""

import time
from collections.abc import Callable
from typing import Protocol


def _steady() -> Callable[[], float]:
    """Return a monotonic clock that also runs while the machine is suspended.

    Linux's CLOCK_MONOTONIC stops during suspension. After resuming, a member would assume that its session is valid,
    although its partitions belong to other members. The monotonic clocks of macOS and of Windows (which has no
    `clock_gettime`) do not stop.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None or not hasattr(time, "clock_gettime"):
        return time.monotonic
    return lambda: time.clock_gettime(boot)


_now = _steady()


class Clock(Protocol):
    """Monotonic and wall-clock time, in seconds."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary origin, for deadlines and intervals. The result never decreases, and
        includes the time of a suspended machine."""

    def wall(self) -> float:
        """Return seconds since the Unix epoch, for people and other machines. The clock may be adjusted in both
        directions."""


class SystemClock:
    def monotonic(self) -> float:
        return _now()

    def wall(self) -> float:
        return time.time()
