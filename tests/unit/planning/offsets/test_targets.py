"""New offsets of a reset, as `kafka-consumer-groups` would choose them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from fleet_consumer.contract.patterns import compile_pattern
from fleet_operator.api.v1alpha1.offsetreset import OffsetResetSpec
from fleet_operator.planning.offsets.records import PARTITIONS_MAX, list_offsets
from fleet_operator.planning.offsets.targets import GroupOffsets, Targets, find_targets, time_ms
from fleet_operator.planning.problem import Problem, Refused

KEYS = [("orders", 0), ("orders", 1), ("returns", 0)]
SOURCES = ("orders", "returns")
READ = GroupOffsets(
    state="Empty",
    counts={"orders": 2, "returns": 1},
    committed={("orders", 0): 50, ("returns", 0): 7},
    starts=dict.fromkeys(KEYS, 10),
    ends=dict.fromkeys(KEYS, 90),
    found={("orders", 0): 33, ("orders", 1): None, ("returns", 0): 10},
)


def wanted(to: str, **fields: Any) -> OffsetResetSpec:
    return OffsetResetSpec.model_validate({"groupRef": {"name": "orders"}, "to": to, **fields})


def at(topic: str, number: int, offset: int) -> dict[str, Any]:
    """An entry of `spec.offsets`."""
    return {"topic": topic, "partition": number, "offset": offset}


def targets(to: str, read: GroupOffsets = READ, **fields: Any) -> Targets:
    found = find_targets(wanted(to, **fields), SOURCES, read)
    assert isinstance(found, Targets), found
    return found


def test_all_partitions_of_all_source_topics_are_set() -> None:
    assert targets("Earliest").offsets == dict.fromkeys(KEYS, 10)
    assert targets("Latest").offsets == dict.fromkeys(KEYS, 90)
    assert targets("Latest").previous == READ.committed, "what has no commit is absent"


def test_time_after_the_last_record_is_the_end_and_is_said() -> None:
    found = targets("Time", time="2026-11-23T08:00:00Z")
    assert found.offsets == dict(zip(KEYS, (33, 90, 10), strict=True))
    assert found.note.startswith("1 of 3 partitions have no record at or after spec.time")


def test_offsets_out_of_range_become_the_nearest_and_that_is_said() -> None:
    found = targets("Offsets", offsets=[at("orders", 0, 3), at("orders", 1, 1000), at("returns", 0, 44)])
    assert found.offsets == dict(zip(KEYS, (10, 90, 44), strict=True))
    assert found.note.startswith("2 of 3 offsets were out of range")


def test_only_named_topics_and_partitions_are_set() -> None:
    assert targets("Earliest", topics=["returns"]).offsets == {("returns", 0): 10}
    assert targets("Offsets", offsets=[at("orders", 1, 20)]).offsets == {("orders", 1): 20}


def test_previous_offsets_undo_a_reset() -> None:
    undone = targets("Offsets", offsets=list_offsets(targets("Latest").previous))
    assert undone.offsets == {("orders", 0): 50, ("returns", 0): 10}, "as far as the log still goes back"


@pytest.mark.parametrize(
    ("to", "fields"), [("Earliest", {"topics": ["other"]}), ("Offsets", {"offsets": [at("other", 0, 1)]})]
)
def test_topic_that_the_group_does_not_read_is_refused(to: str, fields: dict[str, Any]) -> None:
    found = find_targets(wanted(to, **fields), SOURCES, READ)
    assert isinstance(found, Refused)
    assert "topic 'other' is not a source topic" in found.problem.message


def test_more_partitions_than_a_status_holds_are_refused() -> None:
    read = GroupOffsets(state="Empty", counts={"orders": PARTITIONS_MAX + 1, "returns": 1})
    found = find_targets(wanted("Latest"), SOURCES, read)
    assert isinstance(found, Refused)


def test_unknown_is_never_taken_for_an_offset() -> None:
    """A partition without a leader answers nothing: neither its end nor "no record at or after that time"."""
    lacking: list[tuple[str, Any]] = [
        ("Latest", {"ends": dict.fromkeys(KEYS[1:], 90)}),
        ("Earliest", {"starts": dict.fromkeys(KEYS[1:], 10)}),
        ("Time", {"found": dict.fromkeys(KEYS[1:], 10)}),
    ]
    for to, fields in lacking:
        base = {"counts": READ.counts, "starts": READ.starts, "ends": READ.ends, "found": READ.found}
        read = GroupOffsets(state="Empty", **{**base, **fields})
        time = {"time": "2026-11-23T08:00:00Z"} if to == "Time" else {}
        found = find_targets(wanted(to, **time), SOURCES, read)
        assert isinstance(found, Problem)
        assert found.reason == "PartitionsUnknown"
        assert "orders-0" in found.message
    missing = find_targets(wanted("Latest"), SOURCES, GroupOffsets(state="Empty", counts={"orders": 2}))
    assert isinstance(missing, Problem)
    assert missing.reason == "TopicNotFound"


def test_times_are_read_with_their_zone_and_fraction() -> None:
    assert time_ms(wanted("Time", time="1970-01-01T01:00:00.250+01:00")) == 250
    assert time_ms(wanted("Time", time="1970-01-01t00:00:01z")) == 1000, "RFC 3339 allows small letters"
    assert time_ms(wanted("Earliest")) is None


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "0001-01-01T00:00:00Z"])
def test_time_before_the_epoch_is_no_word_of_kafka(text: str) -> None:
    """-1 asks for the end of a partition, -2 for its beginning."""
    assert time_ms(wanted("Time", time=text)) == 0


def test_topic_and_partition_that_the_asked_broker_does_not_know_yet_are_waited_for() -> None:
    """It may be one that has just started, or the topic has just been made or grown."""
    pattern, later = compile_pattern("orders|returns|later"), wanted("Earliest", topics=["later"])
    found = find_targets(later, SOURCES, READ, pattern)
    assert isinstance(found, Problem)
    assert (found.reason, "'later'" in found.message) == ("TopicNotFound", True)
    never = find_targets(wanted("Earliest", topics=["later", "never"]), SOURCES, READ, pattern)
    assert isinstance(never, Refused)
    grown = find_targets(wanted("Offsets", offsets=[at("orders", 2, 1)]), SOURCES, READ)
    assert isinstance(grown, Problem)
    assert grown == Problem("PartitionsUnknown", "topic 'orders' has 2 partitions, and none with the number 2")


def test_pattern_without_a_topic_is_waited_for() -> None:
    found = find_targets(wanted("Latest"), (), GroupOffsets(state="Empty"))
    assert isinstance(found, Problem)
    assert found.reason == "TopicNotFound"


def ends_of(topics: Iterable[str], count: int) -> GroupOffsets:
    """A group that has committed the far ends of these topics."""
    keys = [(topic, number) for topic in topics for number in range(count)]
    far = dict.fromkeys(keys, 10**12)
    return GroupOffsets(state="Empty", counts=dict.fromkeys(topics, count), committed=far, starts=far, ends=far)


def test_offsets_that_do_not_fit_into_a_status_are_refused_before_anything_is_stopped() -> None:
    topics = tuple(f"{'orders.' * 12}{number:04}" for number in range(4000))
    found = find_targets(wanted("Latest"), topics, ends_of(topics, 1))
    assert isinstance(found, Refused)
    assert "of 4000 partitions need" in found.problem.message


def test_all_partitions_of_a_large_topic_fit_into_a_status() -> None:
    topic = "orders-of-all-shops-in-europe"
    found = find_targets(wanted("Latest"), (topic,), ends_of([topic], PARTITIONS_MAX))
    assert isinstance(found, Targets)
