"""Durations of a handler's calls, for the histogram, where the consume loop calls the handler itself.

A clock around each call would cost a handler that does nothing a tenth of its throughput. So records of a long run are
timed one by one only while they take longer than the clock matters; otherwise the run is, and each of its records
counts as taking its share.
"""

from __future__ import annotations

from typing import Any, Final

from fleet_consumer.clock import Clock
from fleet_consumer.record import Record
from fleet_consumer.worker.consume.outcomes import Handle
from fleet_consumer.worker.stats import Histogram

TIMED_FROM_S: Final = 100e-6
"""The mean of a run from which on the next one's records are timed one by one: the clock is below a hundredth."""
SHORT_RUN: Final = 16
"""Runs up to this length are always timed one by one: the poll before them costs much more."""


class CallTimes:
    """Times the runs of one loop. Used by its thread only."""

    def __init__(self, handle: Handle, histogram: Histogram, clock: Clock) -> None:
        self._handle = handle
        self._histogram = histogram
        self._now = clock.monotonic
        self._slow = True
        self._each = self._counts = True
        self._began = 0.0

    def begin(self, count: int, instead: Handle | None = None) -> Handle:
        """Begin a run of so many records; returns what to call for each: the handler, or the untimed `instead`."""
        self._counts = instead is None
        self._each = self._slow or count <= SHORT_RUN
        self._began = self._now()
        return instead or (self._timed if self._each else self._handle)

    def pause(self) -> float:
        """The loop is about to do something else than handling: the time, for `resume`."""
        return self._now()

    def resume(self, paused: float) -> None:
        """Leave out the time since then."""
        self._began += self._now() - paused

    def end(self, count: int) -> None:
        """The run is over, `count` records of it were handled."""
        if not (count and self._counts):
            return
        mean = (self._now() - self._began) / count
        self._slow = mean >= TIMED_FROM_S
        if not self._each:
            self._histogram.observe(mean, count)

    def _timed(self, record: Record) -> Any:
        before = self._now()
        try:
            return self._handle(record)
        finally:
            self._histogram.observe(self._now() - before)
