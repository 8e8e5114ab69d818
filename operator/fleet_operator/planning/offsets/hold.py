"""The OffsetReset that keeps the main workers of a fleet stopped. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.offsets.records import ResetPhase

HELD_PHASES: Final = frozenset({ResetPhase.STOPPING_WORKERS, ResetPhase.COMMITTING})
UNDECIDED: Final = frozenset({conditions.NOT_AFTER_PASSED, conditions.MEMORY_LOST})
"""If a reset failed for one of these reasons, it does not keep a new fleet stopped, because the reset may be older than
the fleet."""
ON_ITS_WAY: Final = frozenset({"", conditions.STOPPING_WORKERS, conditions.NOT_YET_OBSERVED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An OffsetReset during which no main worker may run. `reason` and `message`: the reset's obstacle; empty without
    one."""

    name: str
    reason: str = ""
    message: str = ""

    @property
    def waits(self) -> bool:
        """True if the reset waits for something outside the operator."""
        return self.reason not in ON_ITS_WAY

    @property
    def text(self) -> str:
        waits = f": {self.message}" if self.message else ""
        return f"the main workers are stopped until OffsetReset {self.name!r} is done{waits}"


def hold_of(name: str, facts: Mapping[str, Any], *, begun: bool) -> Hold | None:
    """Return the hold of a reset that is not a dry run; None if the reset stops no workers. `facts`: from the reset's
    state. `begun`: False if the group never had workers.

    A reset whose state is unreadable also stops workers, because it may be in the middle of its commits. In a group
    that never had workers, no worker starts before a reset is done, even if the reset was refused. Otherwise workers
    would handle records that the reset is meant to leave out."""
    phase, reason = facts.get("phase", ""), str(facts.get("reason") or "")
    first = not begun and phase not in ("Succeeded", "Cancelled") and reason not in UNDECIDED
    if phase in HELD_PHASES or reason == conditions.STATE_UNREADABLE or first:
        return Hold(name=name, reason=reason, message=str(facts.get("message") or ""))
    return None
