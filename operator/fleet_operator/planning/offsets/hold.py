"""A fleet that an OffsetReset holds down. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.offsets.records import DOWN

HELD_PHASES: Final = frozenset(phase.value for phase in DOWN)
UNDECIDED: Final = frozenset({conditions.NOT_AFTER_PASSED, conditions.MEMORY_LOST})
"""Reasons of a reset that is not done and holds up no group, for it may be one of long ago."""
ON_ITS_WAY: Final = frozenset({"", conditions.STOPPING_WORKERS, conditions.NOT_YET_OBSERVED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An OffsetReset for which no main worker may run, and what it waits for, if anything."""

    name: str
    reason: str = ""
    message: str = ""

    @property
    def waits(self) -> bool:
        """True if it waits for something outside of the operator."""
        return self.reason not in ON_ITS_WAY

    @property
    def text(self) -> str:
        waits = f": {self.message}" if self.message else ""
        return f"the main workers are stopped until OffsetReset {self.name!r} is done{waits}"


def hold_of(name: str, facts: Mapping[str, Any], *, begun: bool) -> Hold | None:
    """The hold of a reset that is no dry run, by what is remembered of it.

    One that cannot be read may be in the middle of its commits.
    The workers of a group that never had any (not `begun`) do not start before its reset is done, also if that was
    refused: they would handle what it leaves out.
    """
    phase, reason = facts.get("phase", ""), str(facts.get("reason") or "")
    first = not begun and phase not in ("Succeeded", "Cancelled") and reason not in UNDECIDED
    if phase in HELD_PHASES or reason == conditions.STATE_UNREADABLE or first:
        return Hold(name=name, reason=reason, message=str(facts.get("message") or ""))
    return None
