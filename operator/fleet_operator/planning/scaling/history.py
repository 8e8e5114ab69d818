"""Recent history of a fleet that is scaled by load: the numbers of workers that would have been enough, and the
workers' rates.

The history is kept in memory only. After a restart of the operator, decisions use the levels (`ScalingHistory.levels`)
and the capacity from the group's stored state.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleet_operator.planning.observation import WorkerObservation
from fleet_operator.planning.scaling.capacity import (
    KEPT,
    MEASURE_S,
    BusySample,
    Measurement,
    busy_capacity,
    percentile,
    with_reports,
)
from fleet_operator.planning.state.sizing import Level, SizingState


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingHistory:
    """The data that later decisions need. Times are epoch seconds; rates are records per second of a worker.

    - `known_since`: the time since which the load has been known; None while it is unknown.
    - `levels`: numbers of workers that are enough, in ascending order. Each has the time since which it has been
      enough. A larger number has been enough for longer.
    - `measured`: capacities measured from the commits of workers with a backlog, the newest last. `measured_at`: the
      time of the newest measurement.
    - `proven`: the largest measured mean rate of the workers, with or without a backlog.
    - `revision`: the revision of the workers that were measured.
    """

    decided_at: float | None = None
    known_since: float | None = None
    levels: tuple[Level, ...] = ()
    busy_samples: Mapping[str, tuple[BusySample, ...]] = field(default_factory=dict)
    measured: tuple[float, ...] = ()
    measured_at: float = 0.0
    proven: float = 0.0
    revision: str | None = None

    @classmethod
    def restored(cls, memory: SizingState, now: float) -> "ScalingHistory":
        """The history in a new process. The stored capacity is entered as `KEPT` equal measurements, so that the first
        new measurements change the result only a little."""
        kept = memory.capacity
        if kept is None:
            return cls(levels=memory.levels_at(now))
        return cls(levels=memory.levels_at(now), measured=(kept.rate,) * KEPT, revision=kept.revision)

    def after_gap(self) -> "ScalingHistory":
        """Return the history after a period with an unknown load. Its levels are removed, because they may be
        obsolete."""
        return replace(self, known_since=None, levels=())

    def of_revision(self, revision: str | None) -> "ScalingHistory":
        """Return the history without measurements of another revision. `revision`: the revision that all workers run;
        None while one revision replaces another. If it is None, nothing is dropped."""
        if revision in (None, self.revision):
            return self
        if self.revision is None:
            return replace(self, revision=revision)
        return replace(self, busy_samples={}, measured=(), proven=0.0, revision=revision)

    def with_reports(self, reports: Iterable[WorkerObservation], now: float) -> "ScalingHistory":
        return replace(self, busy_samples=with_reports(self.busy_samples, reports, now))

    def with_measurement(self, found: Measurement | None) -> "ScalingHistory":
        """Return the history with this measurement added. At most one measurement is stored every `MEASURE_S`
        seconds."""
        proven = self.proven if found is None else max(self.proven, found.mean)
        history = replace(self, proven=proven)
        if found is None or found.busy is None or 0.0 <= found.at - history.measured_at < MEASURE_S:
            return history
        return replace(history, measured=(*history.measured, found.busy)[-KEPT:], measured_at=found.at)

    def capacity(self, now: float) -> float | None:
        """Records per second of one worker; None while unknown. The value comes from the workers' reported busy times
        or, without reports, from the commits of workers with a backlog."""
        return busy_capacity(self.busy_samples, now) or percentile(self.measured)

    def with_want(self, count: int, at: float) -> "ScalingHistory":
        """Return the history in which `count` is the smallest number of workers that is enough now."""
        larger = tuple(level for level in self.levels if level.count > count)
        since = self.enough_since(count)
        kept = Level(count=count, since=at if since is None else since)
        return replace(self, known_since=at if self.known_since is None else self.known_since, levels=(kept, *larger))

    def enough_since(self, count: int) -> float | None:
        """Return the time since which this number of workers has been enough; None if it is not enough."""
        return next((level.since for level in reversed(self.levels) if level.count <= count), None)
