"""The consume loop's view of a breaker: how fast to handle records, and what to do with one that fails.

The loop asks before each poll, `outcomes` at each failure that another attempt may mend. Successes are counted by run,
not by record, but always before a failure behind them is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A retry budget's breaker as others see it; `since` is wall clock seconds, `failure_percent` of its window."""

    state: str
    """"Closed", "Open" or "HalfOpen"."""
    since: float
    failure_percent: float


class Pace(Enum):
    """The speed at which records may be handled."""

    FULL = "full"
    PROBE = "probe"
    """One at a time: what becomes of it decides how things go on."""
    STOP = "stop"


class Course(Enum):
    """The way of a record whose handler failed, and could succeed when it is tried again."""

    ON = "on"
    """On its way: to its next attempt, or to the failed topic when it has none left."""
    STAY = "stay"
    """It stays at its place and is handled again later; no attempt is used up."""
    FAIL = "fail"
    """To the failed topic, attempts left or not."""


class Pacing:
    """A breaker as the consume loop uses it: on the loop's thread only, except `snapshot`.

    This one is always at full speed: no policy gives failures a budget.
    """

    mark = ""
    """The breaker's mark in the metadata of commits."""
    snapshot: BreakerSnapshot | None = None
    """The breaker as shown to others, replaced as a whole; None without a budget. Any thread."""

    def succeeded(self, count: int) -> None:
        """Count records whose handlers raised nothing."""

    def pace(self, *, idle: bool) -> Pace:
        """The pace to go on at. `idle`: there was nothing to handle just now, and nothing is being handled."""
        return Pace.FULL

    def failed(self) -> Course:
        """Count a failure that another attempt may mend; returns what becomes of its record."""
        return Course.ON
