"""View model of one fleet's scaling: the last decision in words, and plots of values such as lag and workers."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fleet_operator.console.views.fleets import FleetRow
from fleet_operator.console.views.plot import Line, step_line, upper_edge
from fleet_operator.planning import times

POINTS_MAX: Final = 90
"""Maximum number of points that are kept for a fleet; they take about 4 KiB. A point is recorded when one of the
plotted values changes."""
UNKNOWN: Final = -1.0


class Point(NamedTuple):
    """The plotted values of a fleet at the time `at` (epoch seconds). UNKNOWN stands for a value that is not known."""

    at: float
    target: float
    ready: float
    raw: float
    arrival: float
    lag: float


class History:
    """The last points of one fleet, oldest first, stored in one array."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = array("d")

    def record(self, row: FleetRow, at: float) -> None:
        """Append the values of a row as a point, unless they equal those of the last point."""
        numbers = (row.target, row.ready, row.raw, row.arrival, row.lag_records)
        point = [UNKNOWN if each is None else float(each) for each in numbers]
        if len(self._numbers) and list(self._numbers[-len(point) :]) == point:
            return
        self._numbers.extend((at, *point))
        del self._numbers[: -POINTS_MAX * len(Point._fields)]

    def points(self) -> Iterator[Point]:
        size = len(Point._fields)
        numbers = self._numbers[:]  # a copy, because another thread may append
        return (Point(*numbers[start : start + size]) for start in range(0, len(numbers), size))


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines that share a vertical axis from 0 to `most`."""

    title: str
    most: float
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingView:
    """Scaling of a fleet. `plots` is empty while no number is known. `facts` has the inputs of the last decision."""

    enabled: bool
    limit: str
    decision: str
    reason: str
    at: str
    facts: tuple[tuple[str, str], ...]
    step: str
    step_reason: str
    plots: tuple[Plot, ...]
    since: str
    points: tuple[Point, ...]


FACTS: Final = (
    ("arrivalPerSecond", "Arrival, records per second"),
    ("perReplicaPerSecond", "Capacity of one worker, records per second"),
    ("rawReplicas", "Workers for the load, with reserve"),
    ("usefulReplicas", "Workers at which the busiest one keeps up"),
    ("proposedReplicas", "Workers that the dry run proposes"),
)


def scaling_view(body: Mapping[str, Any], history: History | None, now: float) -> ScalingView:
    """Build the view of the last decision, with plots of the recorded points until `now` (epoch seconds)."""
    status, spec = body.get("status") or {}, body["spec"].get("scaling")
    scaling = status.get("scaling") or {}
    points = tuple(history.points()) if history is not None else ()
    since = points[0].at if points else now
    last = scaling.get("lastStep") or {}
    bounds = [
        (f"spec.scaling.{name}", str(spec[name])) for name in ("minReplicas", "maxReplicas") if name in (spec or ())
    ]
    return ScalingView(
        enabled=spec is not None,
        limit=str(status.get("limit") or ""),
        decision=str(scaling.get("decision") or ""),
        reason=str(scaling.get("reason") or ""),
        at=str(scaling.get("at") or ""),
        facts=(*((label, str(scaling[name])) for name, label in FACTS if name in scaling), *bounds),
        step=f"{last['from']} to {last['to']} workers at {last['at']}" if last else "",
        step_reason=str(last.get("reason") or ""),
        plots=_plots(points, now),
        since=times.to_text(since),
        points=tuple(reversed(points)),
    )


def _plots(points: tuple[Point, ...], now: float) -> tuple[Plot, ...]:
    series = (
        ("Workers", (("wanted", "target"), ("ready", "ready"), ("for the load", "raw"))),
        ("Arrival, records per second", (("arrival", "arrival"),)),
        ("Lag, records", (("lag", "lag"),)),
    )
    found = []
    for title, names in series:
        read = {name: [(each.at, _known(getattr(each, field))) for each in points] for name, field in names}
        known = [value for values in read.values() for _, value in values if value is not None]
        if not known:
            continue
        most = upper_edge(known)
        lines = [
            step_line(name, values, points[0].at, now, most)
            for name, values in read.items()
            if any(value is not None for _, value in values)
        ]
        found.append(Plot(title, most, tuple(lines)))
    return tuple(found)


def _known(value: float) -> float | None:
    return value if value >= 0 else None
