"""Bounds of the number of workers at a time: those of `spec.scaling`, and of its schedules that are under way.

Pure, but for the data of time zones, which is read once for each zone.

Occurrences begin as with Debian's cron. One of a fixed time in the hour that a clock skips begins at the end of that
hour, and one in the hour that a clock repeats begins in the first of both. One whose minutes or hours begin with an
asterisk follows the time that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fleet_operator.api.v1alpha1.consumergroup import Scaling, ScalingSchedule
from fleet_operator.planning.scaling.decision import MAX_REPLICAS, MIN_REPLICAS

CRON_FIELDS: Final = 5
PRECISION_S: Final = 30.0
"""Width within which a start is found: all of them are whole minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the number of workers.

    - `most`: None for as many as are useful; never less than `least`.
    - `until`: the time (epoch seconds) until which the schedules say the same; None for bounds that never change.
    - `least_by`, `most_by`: the schedule that sets a bound; empty for `spec.scaling` itself.
    """

    least: int
    most: int | None = None
    until: float | None = None
    least_by: str = ""
    most_by: str = ""

    def explain(self, limit: str, reason: str) -> str:
        """The reason of a decision, with the schedule that its limit is from."""
        name = {MIN_REPLICAS: self.least_by, MAX_REPLICAS: self.most_by}.get(limit)
        return f"{reason}; the bound is that of the schedule {name}" if name else reason


class ScheduleRefused(Exception):
    """A schedule's cron text or time zone cannot be read; the text names what was seen."""


def bounds_at(scaling: Scaling, now: float) -> Bounds:
    """The bounds at a time in epoch seconds. A schedule that cannot be read bounds nothing: `find_refused` names it.

    The largest minimum and the smallest maximum of the schedules under way hold, and a minimum beats a maximum.
    """
    least, least_by = scaling.min_replicas, ""
    most, most_by = scaling.max_replicas, ""
    changes, replaced = [], False
    for name, schedule, zone in _readable(scaling):
        is_under_way, until = _phase(schedule, zone, now)
        if until is not None:
            changes.append(until)
        if not is_under_way:
            continue
        if schedule.min_replicas > least:
            least, least_by = schedule.min_replicas, name
        given = schedule.max_replicas
        if given is not None and (not replaced or most is None or given < most):
            most, most_by, replaced = given, name, True
    return Bounds(
        least=least,
        most=most if most is None else max(most, least),
        until=min(changes, default=None),
        least_by=least_by,
        most_by=most_by,
    )


def find_refused(scaling: Scaling) -> str | None:
    """The first schedule that cannot be read, with the reason; None where all can."""
    for place, schedule in enumerate(scaling.schedules):
        try:
            _read(schedule)
        except ScheduleRefused as refused:
            return f"{_path(place)}: {refused}"
    return None


def _path(place: int) -> str:
    return f"spec.scaling.schedules[{place}]"


def _readable(scaling: Scaling) -> Iterator[tuple[str, ScalingSchedule, ZoneInfo]]:
    for place, schedule in enumerate(scaling.schedules):
        try:
            zone = _read(schedule)
        except ScheduleRefused:
            continue
        yield schedule.name or _path(place), schedule, zone


def _read(schedule: ScalingSchedule) -> ZoneInfo:
    """The time zone of a schedule whose cron text can be read, too. Raises ScheduleRefused."""
    try:
        zone = ZoneInfo(schedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder of the data, or a path out of it
        message = f"timeZone {schedule.time_zone!r} is no time zone: use a name such as Europe/Berlin, or UTC"
        raise ScheduleRefused(message) from None
    if len(schedule.cron.split()) != CRON_FIELDS:
        message = f"cron {schedule.cron!r} needs five fields: minute, hour, day of month, month and day of week"
        raise ScheduleRefused(message)
    try:
        CronSim(schedule.cron, datetime.fromtimestamp(0.0, zone))
    except CronSimError as error:
        seen = str(error).lower()
        message = f"cron {schedule.cron!r} has a {seen}: use values of its range, and ranges that go upwards"
        raise ScheduleRefused(message) from None
    return zone


def _phase(schedule: ScalingSchedule, zone: ZoneInfo, now: float) -> tuple[bool, float | None]:
    """True if an occurrence is under way, and the time until which that stays so, at least."""
    duration_s = float(schedule.duration_seconds)
    first = _start_after(schedule, zone, now - duration_s)
    if first is None or first > now:
        return False, first
    last, following = first, _start_after(schedule, zone, first)
    if following is not None and following <= now:
        last, following = _last_start(schedule, zone, following, now), _start_after(schedule, zone, now)
    end = last + duration_s
    if following is not None and following <= end:
        end = following + duration_s
    return True, end


def _start_after(schedule: ScalingSchedule, zone: ZoneInfo, at: float) -> float | None:
    """The first start after a time; None where none comes within 50 years."""
    for start in CronSim(schedule.cron, datetime.fromtimestamp(at, zone)):
        begins = start.timestamp()
        if begins > at:  # in the hour that is repeated, the search goes back to the first of both
            return begins
    return None


def _last_start(schedule: ScalingSchedule, zone: ZoneInfo, known: float, now: float) -> float:
    """The last start up to a time; `known` is one of them.

    Bisected from searches forward: backward, the library misses a start in the hour that is repeated.
    """
    early, late = known, now
    while late - early > PRECISION_S:
        middle = (early + late) / 2
        start = _start_after(schedule, zone, middle)
        if start is None or start > now:
            late = middle
        else:
            early = start
    return early
