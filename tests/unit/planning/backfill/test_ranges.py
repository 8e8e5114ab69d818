"""The range of a Backfill, from its spec and what the brokers have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.backfill.ranges import (
    PARTITIONS_MAX,
    RangeQuestion,
    ResolvedRange,
    TopicOffsets,
    Unresolved,
    ask_range,
    find_other_cluster,
    find_range_refusal,
    range_status,
    read_range,
    resolve,
    take_sample,
)
from fleet_operator.planning.problem import Refused
from tests.unit.planning import builders
from tests.unit.planning.backfill.things import backfill, topic_offsets

TIMES = {"time": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}}


def asked(wanted: dict[str, Any], **spec: Any) -> RangeQuestion:
    return ask_range(backfill(range=wanted, **spec), "orders", read_committed=False, others=(), now=1000.7)


def resolved(wanted: dict[str, Any], read: TopicOffsets, **spec: Any) -> ResolvedRange:
    found = resolve(backfill(range=wanted, **spec), asked(wanted), read)
    assert isinstance(found, ResolvedRange), found
    return found


def refused(wanted: dict[str, Any], read: TopicOffsets, **spec: Any) -> tuple[str, str]:
    found = resolve(backfill(range=wanted, **spec), asked(wanted), read)
    assert isinstance(found, Refused), found
    return found.problem.reason, found.problem.message


def of_offsets(first: int, end: int, **more: Any) -> dict[str, Any]:
    return {"offsets": [{"partition": 0, "from": first, "to": end}], **more}


def test_last_seconds_end_with_the_present_one() -> None:
    question = asked({"last": {"seconds": 60}})
    assert (question.from_ms, question.to_ms) == (940_000, 1_001_000)


def test_last_seconds_are_read_to_the_end_of_the_log() -> None:
    """A producer whose clock is fast is no end: records of the range may be behind its own."""
    assert asked({"last": {"seconds": 60}}).end_ms is None
    assert resolved({"last": {"seconds": 60}}, topic_offsets(end={})).ranges == {0: (20, 100), 1: (20, 100)}


def test_times_are_asked_for_and_offsets_are_not() -> None:
    assert (asked(TIMES).from_ms, asked(TIMES).to_ms) == (1_767_225_600_000, 1_767_312_000_000)
    assert (asked(of_offsets(1, 2)).from_ms, asked(of_offsets(1, 2)).to_ms) == (None, None)


@pytest.mark.parametrize("late", [0, 86_400])
def test_end_is_looked_for_behind_records_that_came_before_late_ones(late: int) -> None:
    wanted = {"time": {**TIMES["time"], "lateSeconds": late}}
    assert asked(wanted).end_ms == 1_767_312_000_000 + late * 1000
    assert asked(wanted).to_ms == 1_767_312_000_000


def test_time_range_ends_with_the_log_whatever_a_fast_clock_says() -> None:
    """Offset 30 may be of the year 2030: no record behind it would be handled."""
    assert asked(TIMES).end_ms is None
    found = resolved(TIMES, topic_offsets(end={0: 30, 1: 90}))
    assert (found.ranges, found.cut) == ({0: (20, 100), 1: (20, 100)}, "")


def test_range_that_ends_at_a_late_record_says_what_it_leaves_out() -> None:
    wanted = {"time": {**TIMES["time"], "lateSeconds": 300}}
    found = resolved(wanted, topic_offsets())
    assert found.ranges == {0: (20, 100), 1: (20, 90)}
    assert "in partition 1, the range ends at offset 90 and the log at 100" in found.cut


OPEN = topic_offsets(starts={0: 0, 1: 0}, ends={0: 300, 1: 1000}, highs={0: 1000, 1: 1000})
BEFORE = replace(OPEN, first={0: 20, 1: 20})


@pytest.mark.parametrize(
    ("wanted", "read"),
    [
        (TIMES, BEFORE),
        (TIMES, replace(OPEN, first={0: None, 1: 20})),
        ({"time": {**TIMES["time"], "lateSeconds": 300}}, replace(BEFORE, end={0: None, 1: 90})),
        ({"last": {"seconds": 60}}, BEFORE),
        (of_offsets(100, 301), OPEN),
    ],
)
def test_range_waits_for_open_transactions_before_its_end(wanted: dict[str, Any], read: TopicOffsets) -> None:
    found = resolve(backfill(range=wanted), asked(wanted), read)
    assert isinstance(found, Unresolved)
    assert found.problem.reason == "OpenTransaction"
    assert "partition 0 of topic 'orders' has an open transaction at offset 300" in found.problem.message
    assert isinstance(resolve(backfill(range=wanted), asked(wanted), replace(read, ends=read.highs)), ResolvedRange)


def test_end_of_a_log_that_is_not_known_is_waited_for() -> None:
    """The last stable offset alone does not tell an open transaction from the end."""
    body = backfill(range=TIMES)
    question = ask_range(body, "orders", read_committed=True, others=(), now=1000.7)
    found = resolve(body, question, replace(BEFORE, highs={1: 1000}))
    assert isinstance(found, Unresolved)
    assert found.problem.reason == "PartitionsUnknown"
    assert isinstance(resolve(body, question, replace(BEFORE, ends=BEFORE.highs)), ResolvedRange)


def test_transaction_behind_the_end_is_none_of_the_range() -> None:
    wanted = {"time": {**TIMES["time"], "lateSeconds": 300}}
    assert resolved(wanted, replace(BEFORE, end={0: 90, 1: 90})).ranges[0] == (20, 90)
    assert resolved(of_offsets(100, 300), OPEN).ranges == {0: (100, 300)}


def test_time_after_all_records_is_an_empty_range() -> None:
    found = resolved(TIMES, topic_offsets(first={0: None, 1: None}, end={0: None, 1: None}))
    assert (found.ranges, found.offsets) == ({}, 0)


def test_only_the_named_partitions_are_taken() -> None:
    assert resolved(TIMES, topic_offsets(), source={"partitions": [1]}).ranges == {1: (20, 100)}


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(topic_offsets(first={0: 10, 1: 20}), id="the oldest record is of the time"),
        pytest.param(topic_offsets(starts={0: 25, 1: 10}), id="retention removed the beginning between the two reads"),
        pytest.param(
            topic_offsets(starts={0: 100, 1: 10}, first={0: None, 1: 20}, end={0: None, 1: None}),
            id="no record is left",
        ),
    ],
)
def test_records_that_may_be_gone_are_not_passed_over(read: TopicOffsets) -> None:
    reason, message = refused(TIMES, read)
    assert (reason, "partition 0" in message, "Ignore" in message) == ("RangeExpired", True, True)
    found = resolved({**TIMES, "expired": "Ignore"}, read)
    assert found.note
    assert all(first >= 10 for first, _ in found.ranges.values())


def test_log_that_has_lost_nothing_is_complete() -> None:
    """At offset 0 there was never an older record."""
    assert resolved(TIMES, topic_offsets(starts={0: 0, 1: 0}, first={0: 0, 1: 0})).note == ""


def test_offsets_are_taken_as_they_are() -> None:
    assert resolved(of_offsets(12, 100), topic_offsets()).ranges == {0: (12, 100)}
    assert resolved(of_offsets(12, 12), topic_offsets()).ranges == {}


def test_offsets_below_the_log_are_gone() -> None:
    assert refused(of_offsets(5, 50), topic_offsets())[0] == "RangeExpired"
    assert resolved(of_offsets(5, 50, expired="Ignore"), topic_offsets()).ranges == {0: (10, 50)}
    assert resolved(of_offsets(3, 7, expired="Ignore"), topic_offsets()).ranges == {}


@pytest.mark.parametrize(("first", "end", "field"), [(101, 200, "from"), (50, 101, "to")])
def test_offsets_behind_the_end_are_refused(first: int, end: int, field: str) -> None:
    reason, message = refused(of_offsets(first, end), topic_offsets())
    assert (reason, f"spec.range.offsets[].{field}" in message) == ("OffsetsBeyondEnd", True)


def test_partition_that_is_not_there_is_refused() -> None:
    assert refused(TIMES, topic_offsets(), source={"partitions": [0, 2]})[0] == "PartitionNotFound"
    wanted = {"offsets": [{"partition": 7, "from": 0, "to": 0}]}
    assert refused(wanted, topic_offsets())[0] == "PartitionNotFound"


def test_topic_that_is_not_there_is_refused() -> None:
    assert refused(TIMES, TopicOffsets(partitions=None))[0] == "SourceTopicNotFound"


def test_partition_without_a_leader_is_waited_for() -> None:
    wanted = {"time": {**TIMES["time"], "lateSeconds": 300}}
    for read in (
        topic_offsets(starts={0: 10}),
        topic_offsets(ends={1: 100}),
        topic_offsets(first={0: 20}),
        topic_offsets(end={1: 90}),
    ):
        found = resolve(backfill(range=wanted), asked(wanted), read)
        assert isinstance(found, Unresolved)
        assert found.problem.reason == "PartitionsUnknown"


def test_more_partitions_than_a_status_holds_are_refused() -> None:
    assert refused(TIMES, topic_offsets(partitions=PARTITIONS_MAX + 1))[0] == "RangeTooLarge"


def test_status_holds_the_range() -> None:
    wanted = {"last": {"seconds": 60}}
    found = resolved(wanted, topic_offsets())
    status = range_status(found)
    assert status["resolvedRange"] == [{"partition": number, "from": 20, "to": 100} for number in (0, 1)]
    assert read_range(backfill(status, range=wanted)) == found


def test_range_names_the_cluster_and_the_topic_that_its_offsets_are_of() -> None:
    found = resolved(TIMES, topic_offsets(cluster_id="cluster-a", topic_id="t-1"))
    status = range_status(found)
    assert (status["clusterId"], status["topicId"]) == ("cluster-a", "t-1")
    assert read_range(backfill(status, range=TIMES)) == found


def test_range_of_brokers_without_topic_ids_names_none() -> None:
    status = range_status(resolved(TIMES, topic_offsets(cluster_id="cluster-a")))
    assert "topicId" not in status
    again = read_range(backfill({**status, "clusterId": 5}, range=TIMES))
    assert again is not None
    assert (again.cluster_id, again.topic_id) == (None, None)


def test_offsets_of_another_cluster_are_those_of_other_records() -> None:
    found = resolved(TIMES, topic_offsets(cluster_id="cluster-a", topic_id="t-1"))
    problem = find_other_cluster(found, builders.observation(cluster_id="cluster-b"))
    assert problem is not None
    assert (problem.reason, "cluster-a" in problem.message, "cluster-b" in problem.message) == ("RangeLost", True, True)
    assert find_other_cluster(found, builders.observation(cluster_id="cluster-a")) is None


def test_cluster_that_nobody_knows_is_no_other_one() -> None:
    found = resolved(TIMES, topic_offsets(cluster_id="cluster-a"))
    for seen in (
        None,
        builders.observation(cluster_id=None),
        builders.observation(cluster_id="cluster-b", identified=False),
    ):
        assert find_other_cluster(found, seen) is None
    earlier = resolved(TIMES, topic_offsets())
    assert find_other_cluster(earlier, builders.observation(cluster_id="cluster-b")) is None, "resolved without an id"


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        ("1%", {0: 10, 1: 1, 2: 1}),
        ("0.001%", {0: 1, 1: 1, 2: 1}),
        ("50%", {0: 500, 1: 2, 2: 5}),
        ("100", {0: 88, 1: 3, 2: 9}),
        ("3", {0: 1, 1: 1, 2: 1}),
        ("2", {0: 1, 2: 1}),
        ("20", {0: 9, 1: 3, 2: 8}),
        ("5000", {0: 1000, 1: 3, 2: 9}),
    ],
)
def test_sample_is_the_beginning_of_each_partition_s_range(size: str, taken: dict[int, int]) -> None:
    """Small partitions leave to others what they do not have."""
    whole = ResolvedRange(topic="orders", ranges={0: (500, 1500), 1: (7, 10), 2: (0, 9)})
    found = take_sample(whole, size)
    assert {number: end - first for number, (first, end) in found.ranges.items()} == taken
    assert all(first == whole.ranges[number][0] for number, (first, _) in found.ranges.items())
    assert list(found.ranges) == sorted(found.ranges)
    assert found.sampled_from == 1012


def test_sample_of_nothing_is_nothing() -> None:
    for size in ("1%", "100"):
        found = take_sample(ResolvedRange(topic="orders", ranges={}), size)
        assert (found.ranges, found.sampled_from) == ({}, 0)


def test_sample_is_taken_of_a_resolved_range_and_kept_in_the_status() -> None:
    wanted = {"last": {"seconds": 60}, "sample": "10%"}
    found = resolved(wanted, topic_offsets())
    assert (found.ranges, found.sampled_from) == ({0: (20, 28), 1: (20, 28)}, 160)
    status = range_status(found)
    assert status["sampledFrom"] == 160
    assert read_range(backfill(status, range=wanted)) == found
    assert "sampledFrom" not in range_status(resolved({"last": {"seconds": 60}}, topic_offsets()))


def test_times_with_fractions_stay_exact() -> None:
    wanted = {"time": {"from": "2026-01-01T00:00:00.250Z", "to": "2026-01-02T00:00:00Z"}}
    found = resolved(wanted, topic_offsets())
    again = read_range(backfill(range_status(found), range=wanted))
    assert again is not None
    assert again.from_ms == 1_767_225_600_250


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"topic": "orders"},
        {"topic": "orders", "resolvedRange": [{"partition": 0, "from": 5}]},
        {"topic": "orders", "resolvedRange": [{"partition": "a", "from": 5, "to": 9}]},
        {"topic": "orders", "resolvedRange": [None]},
        {"topic": 5, "resolvedRange": []},
    ],
)
def test_range_that_cannot_be_read_is_none(status: dict[str, Any]) -> None:
    assert read_range(backfill(status)) is None


def test_time_that_is_none_is_refused() -> None:
    """The CRD's format accepts some strings that are no times."""
    wanted = {"time": {"from": "2026-13-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}}
    problem = find_range_refusal(backfill(range=wanted))
    assert problem is not None
    assert problem.reason == "RangeRefused"
