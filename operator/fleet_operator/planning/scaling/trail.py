"""The recent past of a scaled fleet, in memory only: what was wanted within the window, and what workers handled.

After a restart it begins anew, and a fleet stays as large as it is for a whole stabilization window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet_operator.planning.scaling.capacity import KEPT, MEASURE_S, Measurement
from fleet_operator.planning.state.sizing import Capacity


@dataclass(frozen=True, slots=True)
class Want:
    """A number of workers that was wanted at a time, epoch seconds."""

    at: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """The memory between two decisions; times in epoch seconds.

    - `decided_at`: time of the last decision.
    - `known_since`: since when the load has been known without a break, None while it is unknown.
    - `wants`: the largest numbers within the stabilization window: none is followed by one that is as large.
    - `exceeded_since`: since when the load has exceeded the fleet; `rising` are the numbers that the last two looks
      asked for since then.
    - `falling_since`: since when all wanted numbers have been smaller than the fleet.
    - `idle_since`: since when nothing has arrived and nothing has waited.
    - `measured`: capacities, newest last; `measured_at` the time of the last one, `newest` the last measurement.
    - `proven`: the largest rate that one worker handled on average, busy or not.
    - `judged`: time of the growth whose effect has been judged.
    - `revision`: the revision whose workers were measured.
    """

    decided_at: float | None = None
    known_since: float | None = None
    wants: tuple[Want, ...] = ()
    exceeded_since: float | None = None
    rising: tuple[Want, ...] = ()
    falling_since: float | None = None
    idle_since: float | None = None
    measured: tuple[float, ...] = ()
    measured_at: float = 0.0
    newest: Measurement | None = None
    proven: float = 0.0
    judged: float | None = None
    revision: str | None = None

    def forgotten(self) -> Trail:
        """The trail after the load was unknown: nothing that was wanted before proves anything now."""
        return Trail(
            decided_at=self.decided_at,
            measured=self.measured,
            measured_at=self.measured_at,
            proven=self.proven,
            judged=self.judged,
            revision=self.revision,
        )

    def of_revision(self, revision: str | None, kept: Capacity | None) -> Trail:
        """The trail for workers of a revision, None while one replaces another: what those of another one could do is
        forgotten. `kept` is what an earlier process had learnt."""
        trail = self
        if trail.revision is None and not trail.measured and kept is not None:
            trail = replace(trail, measured=(kept.rate,), revision=kept.revision)
        if revision in (None, trail.revision):
            return trail
        if trail.revision is None:
            return replace(trail, revision=revision)
        return replace(trail, measured=(), newest=None, proven=0.0, revision=revision)

    def with_measurement(self, found: Measurement | None) -> Trail:
        """The trail with a measurement. Those of one length of time count once."""
        proven = self.proven if found is None else max(self.proven, found.mean)
        trail = replace(self, newest=found, proven=proven)
        if found is None or found.busy is None or 0.0 <= found.at - trail.measured_at < MEASURE_S:
            return trail
        return replace(trail, measured=(*trail.measured, found.busy)[-KEPT:], measured_at=found.at)

    def with_want(self, count: int, at: float, window_s: float, *, current: int, idle: bool) -> Trail:
        """The trail with a wanted number, for a fleet of `current` workers."""
        kept = [want for want in self.wants if want.count > count and at - want.at <= window_s]
        wants = (*kept, Want(at, count))
        return replace(
            self,
            known_since=_since(self.known_since, at, True),
            wants=wants,
            falling_since=_since(self.falling_since, at, wants[0].count < current),
            idle_since=_since(self.idle_since, at, idle),
        )

    def with_excess(self, count: int | None, seen_at: float) -> Trail:
        """The trail with the number that a look asks for, made at `seen_at`; None where the fleet carries the load.

        Deciding twice on one look says no more than once.
        """
        if count is None:
            return replace(self, exceeded_since=None, rising=())
        before = [want for want in self.rising if want.at < seen_at][-1:]
        since = _since(self.exceeded_since, seen_at, True)
        return replace(self, exceeded_since=since, rising=(*before, Want(seen_at, count)))

    @property
    def still_rises(self) -> bool:
        """True until two looks in a row have asked for the same number, or the second for fewer."""
        return len(self.rising) < 2 or self.rising[-1].count > self.rising[-2].count

    @property
    def peak(self) -> int | None:
        """The largest number that was wanted within the window."""
        return self.wants[0].count if self.wants else None


def _since(before: float | None, now: float, holds: bool) -> float | None:
    """The time since which something holds; None while it does not."""
    if not holds:
        return None
    return now if before is None else before
