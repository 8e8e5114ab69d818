"""Bounds of the number of workers at a given time: those of `spec.scaling`, and of the schedules that are in force.

Pure, except for the time zone data, which is read once for each zone.

Schedules handle daylight saving time like Debian's cron. A fixed time in the hour that the clock skips in spring starts
at the end of that hour. A fixed time in the hour that repeats in autumn starts only once, in the first of the two
hours. If the minutes or hours of an expression begin with an asterisk, its starts follow the elapsed time.

Only cronsim's forward search is used, because its backward search loses the first of two repeated hours. So the last
start before a time is found by bisection with forward searches. Evaluating twenty schedules for weekdays takes 12 ms.

Decision: docs/decisions/0055-schedules.md.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fleet_operator.api.v1alpha1.consumergroup import Scaling, ScalingSchedule
from fleet_operator.planning.scaling.decision import MAX_REPLICAS, MIN_REPLICAS

CRON_FIELDS: Final = 5
PRECISION_S: Final = 30.0
"""Width in seconds at which the bisection stops. It may exceed a second because all starts are at whole minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the number of workers. `most` is never less than `least`; None for as many workers as are useful.
    `until`: epoch seconds until which these bounds apply at least; None if they never change. `least_by`, `most_by`:
    the name of the schedule that sets the bound; empty if `spec.scaling` itself sets it."""

    least: int
    most: int | None = None
    until: float | None = None
    least_by: str = ""
    most_by: str = ""

    def explain(self, limit: str, reason: str) -> str:
        """Return the reason of a decision; if a schedule set its limit, the reason names the schedule."""
        name = {MIN_REPLICAS: self.least_by, MAX_REPLICAS: self.most_by}.get(limit)
        return f"{reason}; the schedule {name} sets this bound" if name else reason


def bounds_at(scaling: Scaling, now: float) -> Bounds:
    """The largest minimum applies, and the smallest maximum of the schedules in force or, without one, the spec's. If
    the minimum is larger, it is the maximum too. `find_refused` reports unreadable schedules; they are ignored here."""
    least, least_by = scaling.min_replicas, ""
    most, most_by = scaling.max_replicas, ""
    changes, replaced = [], False
    for place, schedule in enumerate(scaling.schedules):
        name, zone = schedule.name or _path(place), _read(schedule)
        if isinstance(zone, str):
            continue
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
    """Return the path of the first unreadable schedule with the reason; None if all schedules are readable."""
    read = ((place, _read(schedule)) for place, schedule in enumerate(scaling.schedules))
    return next((f"{_path(place)}: {found}" for place, found in read if isinstance(found, str)), None)


def _path(place: int) -> str:
    return f"spec.scaling.schedules[{place}]"


def _read(schedule: ScalingSchedule) -> ZoneInfo | str:
    """Return the time zone of a readable schedule, or a text with the error in its cron expression or time zone."""
    try:
        zone = ZoneInfo(schedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a directory, or a path outside of the data
        return f"timeZone {schedule.time_zone!r} is not a time zone: use a name such as Europe/Berlin, or UTC"
    if len(schedule.cron.split()) != CRON_FIELDS:
        return f"cron {schedule.cron!r} needs five fields: minute, hour, day of month, month and day of week"
    try:
        CronSim(schedule.cron, datetime.fromtimestamp(0.0, zone))
    except CronSimError as error:
        seen = str(error).lower()
        return f"cron {schedule.cron!r} has a {seen}: use values within its range, and ascending ranges"
    return zone


def _phase(schedule: ScalingSchedule, zone: ZoneInfo, now: float) -> tuple[bool, float | None]:
    """Return whether the schedule is in force at `now`, and until when that stays so; None if it never changes."""
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
    """Return the first start after the time `at`; None if there is none within 50 years."""
    for start in CronSim(schedule.cron, datetime.fromtimestamp(at, zone)):
        begins = start.timestamp()
        if begins > at:  # a search from inside the second of two repeated hours goes back to the first
            return begins
    return None


def _last_start(schedule: ScalingSchedule, zone: ZoneInfo, known: float, now: float) -> float:
    """Return the last start up to `now`, found by bisection; `known` is any start up to `now`."""
    early, late = known, now
    while late - early > PRECISION_S:
        middle = (early + late) / 2
        start = _start_after(schedule, zone, middle)
        if start is None or start > now:
            late = middle
        else:
            early = start
    return early
