"""How fast records may be handled, and what becomes of one that fails just now: the consume loop's view of a breaker.

The loop asks before each poll; whoever judges failures asks at each one that could be tried again. A success costs
nothing here: how many there were is known from counts that the loop keeps for each run of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A retry budget's breaker as others see it; `since` is wall clock seconds, `failure_percent` of its window."""

    state: str
    """"Closed", "Open" or "HalfOpen"."""
    since: float
    failure_percent: float


class Pace(Enum):
    """How many records may be handled now."""

    FULL = "full"
    PROBE = "probe"
    """One at a time: what becomes of it decides how things go on."""
    STOP = "stop"


class Course(Enum):
    """What becomes of a record whose handler failed, and could succeed when it is tried again."""

    ON = "on"
    """On its way: to its next attempt, or to the failed topic when it has none left."""
    STAY = "stay"
    """It stays at its place and is handled again later; no attempt is used up."""
    FAIL = "fail"
    """To the failed topic, attempts left or not."""


class Pacing(Protocol):
    """Used by the consume loop's thread only, except `snapshot`. `succeeded` counts the records whose handlers raised
    nothing, since the loop began."""

    @property
    def mark(self) -> str:
        """What commits carry as metadata now."""
        ...

    @property
    def snapshot(self) -> BreakerSnapshot | None:
        """What others see of it; None without a budget. Any thread."""
        ...

    def pace(self, succeeded: int, *, idle: bool) -> Pace:
        """How things go on from here. `idle`: there was nothing to handle just now, and nothing is being handled."""
        ...

    def failed(self, succeeded: int) -> Course:
        """A handler has failed in a way that another attempt may mend."""
        ...


class NoPacing:
    """Where no policy gives a budget to failures."""

    mark = ""
    snapshot = None

    def pace(self, succeeded: int, *, idle: bool) -> Pace:
        """Always at full speed."""
        return Pace.FULL

    def failed(self, succeeded: int) -> Course:
        """Always on its way."""
        return Course.ON
