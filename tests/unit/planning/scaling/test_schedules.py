"""Schedules: other bounds while an occurrence is under way, also over the changes of a zone's clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from fleet_operator.api.v1alpha1.consumergroup import Scaling
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.schedules import Bounds, bounds_at, find_refused
from tests.unit.planning.scaling.scenes import NOW, Scene

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    """Epoch seconds of a time with its offset."""
    return datetime.fromisoformat(text).timestamp()


def scaling(*schedules: dict[str, Any], **spec: Any) -> Scaling:
    return Scaling.model_validate({"schedules": schedules, **spec})


def schedule(cron: str = "0 8 * * *", hours: float = 2.0, least: int = 5, **more: Any) -> dict[str, Any]:
    return {"cron": cron, "durationSeconds": round(hours * 3600), "minReplicas": least, **more}


def starts(cron: str, begin: str, end: str, *, zone: str = "Europe/Berlin", seconds: int = 60) -> list[str]:
    """The UTC times at which an occurrence begins, minute by minute."""
    wanted = scaling({"cron": cron, "durationSeconds": seconds, "minReplicas": 5, "timeZone": zone})
    times = [at(begin) + 60.0 * number for number in range(round((at(end) - at(begin)) / 60))]
    high = [bounds_at(wanted, time).least == 5 for time in times]
    begun = [time for time, (before, now) in zip(times[1:], pairwise(high), strict=True) if now and not before]
    return [datetime.fromtimestamp(time, ZoneInfo("UTC")).strftime("%H:%M") for time in begun]


def test_bounds_are_those_of_the_spec_without_schedules() -> None:
    assert bounds_at(scaling(minReplicas=2, maxReplicas=9), NOW) == Bounds(least=2, most=9)


@pytest.mark.parametrize(
    ("time", "least", "until"),
    [
        ("2027-01-15T07:59:59Z", 1, "2027-01-15T08:00:00Z"),
        ("2027-01-15T08:00:00Z", 5, "2027-01-15T10:00:00Z"),
        ("2027-01-15T09:59:59.5Z", 5, "2027-01-15T10:00:00Z"),
        ("2027-01-15T10:00:00Z", 1, "2027-01-16T08:00:00Z"),
    ],
)
def test_schedule_holds_from_its_start_until_its_duration_is_over(time: str, least: int, until: str) -> None:
    found = bounds_at(scaling(schedule(name="peak")), at(time))
    assert (found.least, found.until) == (least, at(until))
    assert found.least_by == ("peak" if least == 5 else "")


def test_schedule_without_a_name_is_named_by_its_place() -> None:
    found = bounds_at(scaling(schedule(least=0), schedule()), at("2027-01-15T09:00:00Z"))
    assert found.least_by == "spec.scaling.schedules[1]"


def test_smaller_minimum_of_a_schedule_lowers_nothing() -> None:
    found = bounds_at(scaling(schedule(least=2), minReplicas=3), at("2027-01-15T09:00:00Z"))
    assert (found.least, found.least_by) == (3, "")


@pytest.mark.parametrize(("own", "given"), [(4, 8), (8, 4), (None, 6)])
def test_maximum_of_a_schedule_replaces_that_of_the_spec(own: int | None, given: int) -> None:
    wanted = scaling(schedule(least=0, maxReplicas=given, name="quiet"), maxReplicas=own)
    under_way = bounds_at(wanted, at("2027-01-15T09:00:00Z"))
    assert (under_way.most, under_way.most_by) == (given, "quiet")
    assert bounds_at(wanted, at("2027-01-15T11:00:00Z")).most == own


def test_largest_minimum_and_smallest_maximum_of_several_schedules_hold() -> None:
    wanted = scaling(
        schedule(least=2, maxReplicas=20, name="a"),
        schedule(least=6, maxReplicas=30, name="b"),
        schedule(least=4, maxReplicas=10, name="c"),
        maxReplicas=5,
    )
    found = bounds_at(wanted, at("2027-01-15T09:00:00Z"))
    assert (found.least, found.least_by, found.most, found.most_by) == (6, "b", 10, "c")


def test_minimum_beats_maximum() -> None:
    wanted = scaling(schedule(least=8), schedule(least=0, maxReplicas=3), maxReplicas=5)
    found = bounds_at(wanted, at("2027-01-15T09:00:00Z"))
    assert (found.least, found.most) == (8, 8)


def test_occurrences_that_overlap_are_one_stretch() -> None:
    wanted = scaling(schedule(cron="0 * * * *", hours=1.5))
    assert starts("0 * * * *", "2027-01-15T06:00:00Z", "2027-01-15T12:00:00Z", seconds=5400) == []
    assert bounds_at(wanted, at("2027-01-15T09:15:00Z")).until == at("2027-01-15T11:30:00Z")


def test_end_follows_the_last_of_many_starts() -> None:
    """All sixty starts of an hour hold for two hours each."""
    wanted = scaling(schedule(cron="* 8 * * *", hours=2.0))
    assert bounds_at(wanted, at("2027-01-15T09:59:00Z")) == Bounds(
        least=5, until=at("2027-01-15T10:59:00Z"), least_by="spec.scaling.schedules[0]"
    )


def test_days_and_hours_are_those_of_the_zone() -> None:
    weekdays = scaling(schedule(cron="0 8 * * MON-FRI", timeZone="America/New_York"))
    assert bounds_at(weekdays, at("2027-01-15T13:00:00Z")).least == 5, "a Friday"
    assert bounds_at(weekdays, at("2027-01-16T13:00:00Z")).least == 1, "a Saturday"


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 2 * * *", "0,30 2 * * *"])
def test_start_in_the_skipped_hour_begins_once_at_its_end(cron: str) -> None:
    assert starts(cron, "2027-03-28T00:00:00Z", "2027-03-28T04:00:00Z") == ["01:00"]


@pytest.mark.parametrize(("cron", "begun"), [("30 2 * * *", "00:30"), ("0 2 * * *", "00:00"), ("59 2 * * *", "00:59")])
def test_start_in_the_repeated_hour_begins_once_in_the_first(cron: str, begun: str) -> None:
    assert starts(cron, "2027-10-30T23:00:00Z", "2027-10-31T03:00:00Z") == [begun]


def test_hourly_start_begins_in_both_of_the_repeated_hours() -> None:
    assert starts("15 * * * *", "2027-10-30T23:30:00Z", "2027-10-31T03:00:00Z") == ["00:15", "01:15", "02:15"]


def test_duration_is_time_that_passes_where_the_clock_changes() -> None:
    night = scaling(schedule(cron="0 22 * * *", hours=8.0, timeZone="Europe/Berlin"))
    for day, ends in (("2027-03-27", "07:00"), ("2027-10-30", "05:00")):
        begins = datetime.fromisoformat(f"{day}T22:00:00").replace(tzinfo=BERLIN).timestamp()
        until = bounds_at(night, begins + 5 * 3600).until
        assert until == begins + 8 * 3600
        assert datetime.fromtimestamp(until, BERLIN).strftime("%H:%M") == ends


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/30 * * * *", "* 2 * * *", "0 0 * * SUN", "0 3 28,31 * *"])
@pytest.mark.parametrize("day", ["2027-03-28", "2027-10-31"])
@pytest.mark.parametrize("seconds", [60, 3000])
def test_bounds_stay_until_the_time_that_is_named(cron: str, day: str, seconds: int) -> None:
    wanted = scaling({"cron": cron, "durationSeconds": seconds, "minReplicas": 5, "timeZone": "Europe/Berlin"})
    begin = at(f"{day}T00:00:00Z") - 2 * 3600
    seen = bounds_at(wanted, begin)
    for step in range(5 * 20):
        now = begin + 180.0 * step
        found = bounds_at(wanted, now)
        assert found.until is not None
        assert found.until > now
        if seen.until is not None and now < seen.until:
            assert found.least == seen.least, datetime.fromtimestamp(now, BERLIN).isoformat()
        else:
            seen = found


def test_start_on_a_leap_day_is_awaited_for_years() -> None:
    assert bounds_at(scaling(schedule(cron="0 0 29 2 *")), NOW).until == at("2028-02-29T00:00:00Z")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cron": "10-5 * * * *"}, "cron '10-5 * * * *' has a bad minute"),
        ({"cron": "0 0 30 2 *"}, "cron '0 0 30 2 *' has a bad day-of-month"),
        ({"cron": "0 0 * * FRI-SUN"}, "cron '0 0 * * FRI-SUN' has a bad day-of-week"),
        ({"cron": "0 0 8 * * *"}, "cron '0 0 8 * * *' needs five fields"),
        ({"timeZone": "Europe/Bielefeld"}, "timeZone 'Europe/Bielefeld' is not a time zone"),
        ({"timeZone": "Europe"}, "timeZone 'Europe' is not a time zone"),
    ],
)
def test_schedule_that_cannot_be_read_is_named_and_bounds_nothing(changes: dict[str, Any], named: str) -> None:
    wanted = scaling(schedule(), {**schedule(least=9), **changes})
    refused = find_refused(wanted)
    assert refused is not None
    assert refused.startswith(f"spec.scaling.schedules[1]: {named}")
    assert bounds_at(wanted, at("2027-01-15T09:00:00Z")).least == 5


def test_readable_schedules_are_not_refused() -> None:
    assert (
        find_refused(scaling(schedule(cron="*/5 0-23/2 1,15 jan-mar 0", timeZone="America/Argentina/Ushuaia"))) is None
    )


def test_many_dense_schedules_are_read_quickly() -> None:
    """A tenant chooses them, and the event loop waits: the limit is far above what is needed."""
    wanted = scaling(*[schedule(cron="* 0-22 1-27 * *", hours=168.0, timeZone="Europe/Berlin")] * 20)
    began = datetime.now(BERLIN)
    bounds_at(wanted, NOW)
    assert datetime.now(BERLIN) - began < timedelta(seconds=2)


def peak(**more: Any) -> dict[str, Any]:
    """A schedule that is under way from `NOW` (08:00 UTC) on."""
    return schedule(name="peak", **more)


def test_fleet_grows_to_the_minimum_of_a_schedule_and_names_it() -> None:
    scene = Scene(spec={"schedules": [peak(least=6)]}, current=2, arrival=10.0)
    decided = scene.pass_time(5)
    assert (decided.replicas, decided.limit) == (6, limits.MIN_REPLICAS)
    assert "the schedule peak" in decided.reason
    stays = scene.pass_time(600)
    assert (stays.replicas, stays.limit) == (6, limits.MIN_REPLICAS)
    assert "the schedule peak" in stays.reason


def test_sleeping_fleet_wakes_for_a_schedule() -> None:
    scene = Scene(spec={"minReplicas": 0, "schedules": [peak(least=3)]}, current=0, arrival=0.0)
    assert scene.decide().replicas == 3


def test_fleet_shrinks_to_the_maximum_of_a_schedule_and_names_it() -> None:
    scene = Scene(spec={"schedules": [peak(least=0, maxReplicas=3)]}, current=6, arrival=300.0)
    decided = scene.pass_time(5)
    assert (decided.replicas, decided.limit) == (3, limits.MAX_REPLICAS)
    assert "the schedule peak" in decided.reason


def test_growth_by_load_ends_at_the_maximum_of_a_schedule() -> None:
    scene = Scene(spec={"schedules": [peak(least=0, maxReplicas=6)]}, current=4, arrival=600.0, handled=240.0)
    assert scene.pass_time(30).replicas == 6


def test_fleet_shrinks_by_its_load_after_a_schedule() -> None:
    spec = {"schedules": [peak(least=6, hours=0.25)], "scaleDownStabilizationSeconds": 60}
    scene = Scene(spec=spec, current=6, arrival=60.0)
    assert scene.pass_time(890).replicas == 6
    assert scene.pass_time(180).replicas == 2
