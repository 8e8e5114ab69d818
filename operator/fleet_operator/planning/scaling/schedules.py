"""Bounds of the number of workers at a given time: the bounds of `spec.scaling` and of the schedules in force.

Pure, except that the data of each time zone is read once.

Schedules handle daylight saving time like Debian's cron. A fixed time in the hour that the clock skips in spring starts
at the end of that hour. A fixed time in the hour that repeats in autumn starts only once, in the first of the two
hours. If the minute or hour field of an expression begins with an asterisk, the schedule is not fixed to clock times:
its starts follow the elapsed time.

Only cronsim's forward search is used, because its backward search misses the first of two repeated hours. So the last
start before a given time is found by bisection with forward searches. Evaluating twenty schedules for weekdays takes 12
ms.

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
"""The bisection stops at an interval of this many seconds. More than a second is enough, because all starts are at
whole minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the number of workers.

    - `most`: never less than `least`; None without an upper bound.
    - `until`: the time, in epoch seconds, before which the bounds do not change; None if they never change.
    - `least_by`, `most_by`: the name of the schedule that sets the bound; empty if `spec.scaling` itself sets it.
    """

    least: int
    most: int | None = None
    until: float | None = None
    least_by: str = ""
    most_by: str = ""

    def explain(self, limit: str, reason: str) -> str:
        """Return the reason of a decision. If a schedule sets the limit, its name is added."""
        name = {MIN_REPLICAS: self.least_by, MAX_REPLICAS: self.most_by}.get(limit)
        return f"{reason}; the schedule {name} sets this bound" if name else reason


def bounds_at(scaling: Scaling, now: float) -> Bounds:
    """Return the bounds at `now` (epoch seconds).

    The minimum is the largest of the spec's minimum and those of the schedules in force. The maximum is the smallest of
    the schedules in force or, if they set none, the spec's maximum. If the minimum exceeds the maximum, the minimum is
    also used as the maximum. Unreadable schedules are ignored here; `find_refused` reports them."""
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
    """Return the path of the first unreadable schedule, with the reason; None if all schedules are readable."""
    read = ((place, _read(schedule)) for place, schedule in enumerate(scaling.schedules))
    return next((f"{_path(place)}: {found}" for place, found in read if isinstance(found, str)), None)


def _path(place: int) -> str:
    return f"spec.scaling.schedules[{place}]"


def _read(schedule: ScalingSchedule) -> ZoneInfo | str:
    """Return the time zone of a readable schedule, or else a message about the error in its cron expression or time
    zone."""
    try:
        zone = ZoneInfo(schedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a directory, or a path outside the time zone data
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
    """Return a pair: True if the schedule is in force at `now`, and the time of the next change in epoch seconds (None
    if there is no further change)."""
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
        if begins > at:  # cronsim may return an earlier start if `at` is in the second of two repeated hours
            return begins
    return None


def _last_start(schedule: ScalingSchedule, zone: ZoneInfo, known: float, now: float) -> float:
    """Return the last start at or before `now`, found by bisection. `known`: any start at or before `now`."""
    early, late = known, now
    while late - early > PRECISION_S:
        middle = (early + late) / 2
        start = _start_after(schedule, zone, middle)
        if start is None or start > now:
            late = middle
        else:
            early = start
    return early
