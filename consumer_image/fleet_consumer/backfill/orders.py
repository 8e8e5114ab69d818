"""The operator's orders as the driver follows them: go, pause, or stop. Pure: `now` is any clock's seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from fleet_consumer.contract.backfill_ledger import Control

LOOK_AGE_MAX_S: Final = 90.0
"""A guard that has not looked for so long knows nothing."""
POLL_S: Final = 2.0
"""Interval of the looks at the control while paused."""


class Course(Enum):
    """The possible courses before the next slice."""

    GO = "go"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Order:
    """The course and, for a pause, its reason for people."""

    course: Course
    message: str = ""


class Orders:
    """Judges each state of the control; remembers when the guard's look changed last."""

    def __init__(self) -> None:
        self._look: str | None = None
        self._changed_at = 0.0

    def judge(self, control: Control, now: float) -> Order:
        """The order of this control, read at `now`."""
        guard = control.guard
        if guard is None or guard.look != self._look:
            self._look, self._changed_at = None if guard is None else guard.look, now
        if control.suspend:
            return Order(Course.STOP)
        if guard is None:
            return Order(Course.GO)
        if guard.pause:
            return Order(Course.PAUSE, guard.message)
        if now - self._changed_at >= LOOK_AGE_MAX_S:
            # Without the age: the text is written to the ledger when it changes.
            seen = f"the operator has not looked at the live group for {LOOK_AGE_MAX_S:.0f} s: its state is unknown"
            return Order(Course.PAUSE, f"{seen}; see that the operator runs and reaches the brokers")
        return Order(Course.GO)
