"""Managed topics keep what waits until it is due, and let every record pass its retry publishes."""

from __future__ import annotations

from fleet_consumer.contract.managed_topics import (
    RETENTION,
    SEGMENT_MS_DEFAULT,
    SIZE,
    TopicShape,
    drifted,
    segment_ms,
)

DAY_MS = 86_400_000
COMMON = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}


def test_flow_is_a_topic_for_each_delay_then_redrive() -> None:
    shape = TopicShape(partitions=3, source_max_message_bytes=2_000_000)
    flow = list(shape.flow("orders", ["5s", "7d"], total_seconds=10 * 86_400))
    assert [topic.name for topic in flow] == [
        "_fleet.orders.retry.5s",
        "_fleet.orders.retry.7d",
        "_fleet.orders.redrive",
    ]
    assert {(topic.partitions, topic.replication_factor) for topic in flow} == {(3, -1)}
    size = {"retention.bytes": "-1", "max.message.bytes": "2065536"}
    assert flow[0].configs == {**COMMON, **size, "retention.ms": str(30 * DAY_MS)}
    assert flow[2].configs == {**COMMON, **size, "retention.ms": str((30 + 7 + 1) * DAY_MS)}


def test_failed_topic_takes_the_largest_record_of_a_retry_topic() -> None:
    shape = TopicShape(partitions=1, source_max_message_bytes=1000)
    assert shape.failed_topic("bad").configs == {
        **COMMON,
        "max.message.bytes": str(1000 + 2 * 65_536),
        "retention.ms": str(30 * DAY_MS),
    }
    assert SIZE not in TopicShape(partitions=1).failed_topic("bad").configs


def test_size_is_raised_and_never_lowered_and_retention_where_asked() -> None:
    same = dict(TopicShape(partitions=1, source_max_message_bytes=1000).failed_topic("bad").configs)
    assert drifted(same, same) == {}
    high = {**same, RETENTION: "-1", SIZE: "9999999"}
    assert drifted(same, high) == {RETENTION: same[RETENTION]}
    assert drifted(same, high, never_lowered=(RETENTION, SIZE)) == {}
    assert drifted(same, {**same, SIZE: "-1"}) == {SIZE: same[SIZE]}, "no size is unlimited"
    low = {**same, RETENTION: "5", SIZE: "5", "message.timestamp.type": "CreateTime"}
    lacking = {name: value for name, value in same.items() if name != "cleanup.policy"}
    assert drifted(same, low) == drifted(same, low, never_lowered=(RETENTION, SIZE)) == lacking


def test_segment_time_is_at_least_the_default() -> None:
    assert segment_ms({}) == segment_ms({"segment.ms": "1"}) == segment_ms({"segment.ms": "?"}) == SEGMENT_MS_DEFAULT
    assert segment_ms({"segment.ms": str(60 * DAY_MS)}) == 60 * DAY_MS
