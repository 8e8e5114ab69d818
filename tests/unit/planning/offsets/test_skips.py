"""Publishing of the records that workers pass by, and what the status says about each of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fleet_consumer.contract.skips import PassedBy, Place, parse_skips
from fleet_operator.planning.observation import GroupObservation, TopicObservation, WorkerObservation
from fleet_operator.planning.offsets.skips import (
    awaits_skips,
    flow_topics,
    places_of,
    pods_with_old_skips,
    skip_config_map,
    skipped_status,
)
from fleet_operator.planning.retry.intent import RetryIntent
from tests.unit.planning.builders import NOW, consumer_group, observed_group

SKIP = [
    {"topic": "orders", "partition": 1, "offset": 60},
    {"topic": "_fleet.orders.retry.5m", "partition": 0, "offset": 7},
    {"topic": "orders", "partition": 9, "offset": 0},
]
GROUP = consumer_group(offsets={"skip": SKIP})
COUNTS = {"orders": 4}
MAIN_PLACE = Place("orders", 1, 60)
NOW_TEXT = "2027-01-15T08:00:00Z"


def states(
    observed: GroupObservation | None,
    *reported: Place,
    counts: dict[str, int] | None = COUNTS,
    previous: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    worker = WorkerObservation(pod="orders-0", skipped=dict.fromkeys(reported, PassedBy(NOW)))
    return skipped_status(GROUP, counts, observed, [worker], previous or [])


def state(found: list[dict[str, Any]], place: Place = MAIN_PLACE) -> tuple[str, str | None]:
    (entry,) = (each for each in found if (each["topic"], each["partition"], each["offset"]) == place)
    return entry["state"], entry.get("at")


def committed(offset: int | None) -> GroupObservation:
    return observed_group(committed={("orders", 1): offset} if offset is not None else {})


def test_config_map_holds_what_workers_read() -> None:
    body = skip_config_map(GROUP)
    assert body["metadata"]["name"] == "orders-fleet-offsets"
    assert parse_skips(json.loads(body["data"]["skip.json"]), GROUP.metadata.uid) == frozenset(places_of(GROUP))
    none = json.loads(skip_config_map(consumer_group())["data"]["skip.json"])
    assert parse_skips(none, GROUP.metadata.uid) == frozenset()


def test_pods_hear_of_a_list_once_and_of_its_end_and_others_of_nothing() -> None:
    pod: dict[str, Any] = {"metadata": {"name": "orders-0", "namespace": "shop", "uid": "p0"}}
    assert pods_with_old_skips([pod], consumer_group()) == {}
    told = pods_with_old_skips([pod], GROUP)
    assert list(told) == ["p0"]
    knows = {"metadata": pod["metadata"] | {"annotations": dict(told["p0"])}}
    assert pods_with_old_skips([knows], GROUP) == {}
    assert list(pods_with_old_skips([knows], consumer_group())) == ["p0"]


def test_record_counts_as_skipped_when_reported_and_committed() -> None:
    assert state(states(committed(60))) == ("Waiting", None)
    assert state(states(committed(None))) == ("Waiting", None)
    assert state(states(committed(60), MAIN_PLACE)) == ("Waiting", None), "written, but another worker may repeat it"
    skipped = states(committed(61), MAIN_PLACE)
    assert state(skipped) == ("Skipped", NOW_TEXT)
    assert state(states(committed(61), previous=skipped)) == ("Skipped", NOW_TEXT), "its worker is gone"


def test_record_that_was_committed_without_a_report_is_passed() -> None:
    assert state(states(committed(61))) == ("Passed", None)
    passed = states(committed(61))
    assert state(states(committed(61), MAIN_PLACE, previous=passed)) == ("Skipped", NOW_TEXT)


def test_record_waits_again_after_a_reset() -> None:
    skipped = states(committed(61), MAIN_PLACE)
    assert state(states(committed(10), previous=skipped)) == ("Waiting", None)


def test_last_state_stands_while_nothing_is_known() -> None:
    skipped = states(committed(61), MAIN_PLACE)
    assert state(states(None, previous=skipped)) == ("Skipped", NOW_TEXT)
    assert state(states(committed(10), counts=None, previous=skipped)) == ("Skipped", NOW_TEXT)
    assert state(states(None)) == ("Waiting", None)
    forged = [{**MAIN_PLACE._asdict(), "state": "Nonsense"}]
    assert state(states(None, previous=forged)) == ("Waiting", None)


def test_places_that_the_group_does_not_read_are_named() -> None:
    assert state(states(committed(61)), Place("orders", 9, 0)) == ("NotRead", None)


def test_record_of_a_retry_topic_counts_by_reports_only() -> None:
    place = Place("_fleet.orders.retry.5m", 0, 7)
    assert state(states(committed(61)), place) == ("Waiting", None)
    assert state(states(committed(61), place), place) == ("Skipped", NOW_TEXT)


def test_place_outside_of_the_retry_flow_is_named() -> None:
    retry = RetryIntent(policy="standard", current="r1", delays=("5m",), drained_delays=("1h",))
    place = Place("_fleet.orders.retry.5m", 0, 7)

    def seen(intent: RetryIntent | None, topics: dict[str, TopicObservation], *reported: Place) -> str:
        worker = WorkerObservation(pod="orders-0", skipped=dict.fromkeys(reported, PassedBy(NOW)))
        flow = flow_topics(GROUP, intent, topics)
        return state(skipped_status(GROUP, COUNTS, committed(61), [worker], [], flow), place)[0]

    there = {place.topic: TopicObservation(partitions=1)}
    assert seen(retry, there) == "Waiting"
    assert seen(replace(retry, delays=("1h",), drained_delays=("5m",)), there) == "Waiting", "drained, not gone"
    assert seen(replace(retry, delays=("10m",)), there) == "NotRead"
    assert seen(replace(retry, delays=("10m",)), there, place) == "Skipped", "it was read once"
    assert seen(retry, {place.topic: TopicObservation(partitions=0)}) == "NotRead"
    assert seen(retry, {}) == "Waiting", "the number of partitions is unknown"
    assert seen(replace(retry, delays=(), searched=False), {}) == "Waiting"
    assert seen(None, {}) == "Waiting"


def test_workers_are_asked_while_a_record_waits() -> None:
    assert awaits_skips(states(committed(60)))
    assert not awaits_skips([{"state": "Skipped"}, {"state": "Passed"}, {"state": "NotRead"}])


def test_removed_entries_leave_the_status() -> None:
    assert skipped_status(consumer_group(), COUNTS, committed(61), [], states(committed(61))) == []
