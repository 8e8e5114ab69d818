"""Schedules of scaling for the rules of the CRDs."""

from __future__ import annotations

from typing import Any, Final

from tests.unit.api.crd_objects import JsonObject, consumer_group

CRON_REFUSED: Final = "cron in spec.scaling.schedules must have five fields"


def scheduled(**changes: Any) -> JsonObject:
    """A ConsumerGroup with one schedule."""
    schedule = {"cron": "0 8 * * MON-FRI", "durationSeconds": 3600, "minReplicas": 2} | changes
    return consumer_group({"spec.scaling": {"schedules": [schedule]}})


SCALING_RULES: Final[list[tuple[str, JsonObject, str]]] = [
    (
        "a schedule's bounds the wrong way round",
        scheduled(maxReplicas=1),
        "maxReplicas of a schedule in spec.scaling.schedules must not be less than its minReplicas",
    ),
    ("four fields of cron", scheduled(cron="0 8-17 * *"), CRON_REFUSED),
    ("six fields of cron", scheduled(cron="0 0 8 * * *"), CRON_REFUSED),
    ("a short name for a cron text", scheduled(cron="@midnight"), CRON_REFUSED),
    ("a minute beyond the hour", scheduled(cron="60 8 * * *"), CRON_REFUSED),
    ("an hour beyond the day", scheduled(cron="0 24 * * *"), CRON_REFUSED),
    ("day 0 of a month", scheduled(cron="0 8 0 * *"), CRON_REFUSED),
    ("month 13", scheduled(cron="0 8 1 13 *"), CRON_REFUSED),
    ("a day that no week has", scheduled(cron="0 8 * * FUN"), CRON_REFUSED),
    ("a step of 0", scheduled(cron="*/0 8 * * *"), CRON_REFUSED),
    ("the last day of a month", scheduled(cron="0 8 L * *"), CRON_REFUSED),
]

SCALING_SCHEMA: Final[list[tuple[str, JsonObject, str]]] = [
    ("a schedule without a cron text", consumer_group({"spec.scaling": {"schedules": [{"minReplicas": 2}]}}), "cron"),
    ("a time zone that is a path", scheduled(timeZone="../etc/passwd"), "timeZone"),
    ("a time zone with a blank", scheduled(timeZone="Europe/ Berlin"), "timeZone"),
    ("a schedule of less than a minute", scheduled(durationSeconds=59), "durationSeconds"),
    ("a schedule of more than a week", scheduled(durationSeconds=604_801), "durationSeconds"),
    ("a schedule with a name of two words", scheduled(name="office hours"), "name"),
    ("a brake of an unknown kind", consumer_group({"spec.scaling": {"downstreamBrake": "Off"}}), "downstreamBrake"),
    (
        "more schedules than anybody reads",
        consumer_group(
            {"spec.scaling": {"schedules": [{"cron": "0 8 * * *", "durationSeconds": 60, "minReplicas": 1}] * 21}}
        ),
        "spec.scaling.schedules",
    ),
]

SCALING_ACCEPTED: Final[list[tuple[str, JsonObject]]] = [
    ("a schedule for office hours", scheduled(name="office-hours", timeZone="Europe/Berlin", maxReplicas=24)),
    ("a schedule with every form of cron", scheduled(cron="*/15,7 0-23/2 1,15 jan-mar,12 0,7,fri")),
    ("a schedule that only lowers the maximum", scheduled(minReplicas=0, maxReplicas=1)),
    ("a fleet that is paused", consumer_group({"spec.scaling": {"paused": True}})),
]
