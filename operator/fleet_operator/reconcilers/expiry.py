"""Time left of runs that have ended and are to be deleted, by clocks that may jump."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1.model import CustomResource
from fleet_operator.planning import times
from fleet_operator.runtime.cache import Key


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run (monotonic seconds), or the first look of a process that did not see it end."""

    uid: str
    at: float
    seen: bool


class Expiry:
    """Ends of Redrives or Backfills. An operator that saw an end measures from it; one that was started since believes
    the status.

    So a wall clock that jumps ahead deletes nothing that this process saw end. One that jumps back, and leaves ends in
    the future, delays a deletion by the whole time at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[Key, End] = {}

    def ended(self, key: Key, run: CustomResource) -> None:
        """Remember that a run has ended just now."""
        known = self._ends.get(key)
        if known is None or known.uid != run.metadata.uid:
            self._ends[key] = End(run.metadata.uid, self._clock.monotonic(), seen=True)

    def seconds_left(self, key: Key, run: CustomResource, ttl_seconds: int) -> float:
        """Seconds until a run that has ended may be deleted; none are left at 0 and below."""
        end = self._ends.get(key)
        if end is None or end.uid != run.metadata.uid:
            end = self._ends[key] = End(run.metadata.uid, self._clock.monotonic(), seen=False)
        left = end.at + ttl_seconds - self._clock.monotonic()
        finished = times.from_text(run.status.get("finishedAt"))
        if end.seen or finished is None:
            return left
        return min(left, finished + ttl_seconds - self._clock.wall())

    def forget(self, key: Key) -> None:
        self._ends.pop(key, None)
