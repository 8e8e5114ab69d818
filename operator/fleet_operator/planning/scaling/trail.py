"""The recent past of a scaled fleet: the numbers that have been enough, and what workers have handled.

In memory. What a decision rests on after a restart is in the state: the levels, and a worker's capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.planning.scaling.capacity import (
    KEPT,
    MEASURE_S,
    BusyReading,
    Measurement,
    busy_capacity,
    percentile,
    with_reports,
)
from fleet_operator.planning.state.sizing import Level, SizingState


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """The memory between two decisions; times in epoch seconds.

    - `decided_at`: time of the last decision, None before the first.
    - `known_since`: since when the load has been known without a break, None while it is unknown.
    - `levels`: the numbers of workers that have been enough, ascending, each larger one for longer.
    - `readings`: what workers said of their work, by pod.
    - `measured`: capacities by commits under backlog, newest last; `measured_at` the time of the last one.
    - `proven`: the largest rate that one worker handled on average, busy or not.
    - `revision`: the revision whose workers were measured.
    """

    decided_at: float | None = None
    known_since: float | None = None
    levels: tuple[Level, ...] = ()
    readings: Mapping[str, tuple[BusyReading, ...]] = field(default_factory=dict)
    measured: tuple[float, ...] = ()
    measured_at: float = 0.0
    proven: float = 0.0
    revision: str | None = None

    @classmethod
    def of(cls, memory: SizingState, now: float) -> Trail:
        """The trail that a new process goes on with: what is remembered counts as if it had been measured often, so
        that one measurement does not outweigh it."""
        kept = memory.capacity
        if kept is None:
            return cls(levels=memory.levels_at(now))
        return cls(levels=memory.levels_at(now), measured=(kept.rate,) * KEPT, revision=kept.revision)

    def forgotten(self) -> Trail:
        """The trail after the load was unknown: nothing that was enough before proves anything now."""
        return replace(self, known_since=None, levels=())

    def of_revision(self, revision: str | None) -> Trail:
        """The trail for workers of a revision, None while one replaces another: what those of another one could do is
        forgotten."""
        if revision in (None, self.revision):
            return self
        if self.revision is None:
            return replace(self, revision=revision)
        return replace(self, readings={}, measured=(), proven=0.0, revision=revision)

    def with_reports(self, reports: Iterable[WorkerObservation], now: float) -> Trail:
        """The trail with what workers say of their work."""
        return replace(self, readings=with_reports(self.readings, reports, now))

    def with_measurement(self, found: Measurement | None) -> Trail:
        """The trail with a measurement. Those of one length of time count once."""
        proven = self.proven if found is None else max(self.proven, found.mean)
        trail = replace(self, proven=proven)
        if found is None or found.busy is None or 0.0 <= found.at - trail.measured_at < MEASURE_S:
            return trail
        return replace(trail, measured=(*trail.measured, found.busy)[-KEPT:], measured_at=found.at)

    def capacity(self, now: float) -> float | None:
        """Records per second of one worker: by its busy time, or else by commits under backlog; None while unknown."""
        return busy_capacity(self.readings, now) or percentile(self.measured)

    def with_want(self, count: int, at: float) -> Trail:
        """The trail with the number of workers that is enough now."""
        passed = [level for level in self.levels if level.count < count]
        larger = tuple(level for level in self.levels if level.count > count)
        exact = next((level for level in self.levels if level.count == count), None)
        since = exact.since if exact is not None else passed[-1].since if passed else at
        kept = Level(count=count, since=since)
        return replace(self, known_since=at if self.known_since is None else self.known_since, levels=(kept, *larger))

    def enough_since(self, count: int) -> float | None:
        """The time since which this number of workers has been enough; None if it is not."""
        return next((level.since for level in reversed(self.levels) if level.count <= count), None)
