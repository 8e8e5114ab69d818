"""Orders to a running driver: suspend, rate, and the guard of the live group. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract.backfill_ledger import Control, GuardWord
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.planning import times
from fleet_operator.planning.lag import Behind

RELEASE: Final = 0.8
"""Share of the limit below which the pause ends, so that it does not begin anew at once."""
LOOK_S: Final = 15.0
"""Steps of the observation's time in the control. A driver that sees it stand still pauses."""


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """The live group as observed at `at` (epoch seconds). `behind` is None while nobody knows it."""

    at: float
    behind: Behind | None = None


def control_of(backfill: Backfill, live: LiveGroup | None, *, stop: bool, paused: bool) -> Control:
    """The orders. `stop` ends the run after its slice; `paused` is the guard's word before. Without a guard `live`
    does not count."""
    guard = None
    if backfill.spec.guard is not None:
        limit = backfill.spec.guard.max_live_behind_seconds
        at = live.at if live is not None else 0.0
        pause, message = _word(limit, live.behind if live is not None else None, paused)
        guard = GuardWord(pause=pause, message=message, look=times.to_text(at - at % LOOK_S))
    return Control(suspend=stop, records_per_second=backfill.rate, guard=guard)


def _word(limit: int, behind: Behind | None, paused: bool) -> tuple[bool, str]:
    if behind is None:
        return True, "it is not known how far the live group is behind"
    if behind.at_least and behind.seconds <= limit:
        return True, "the live group is behind, and it is not known how far"
    bound = limit * RELEASE if paused else limit
    if behind.seconds > bound:
        return True, f"the live group is more than {bound:.0f} s behind"
    return False, ""
