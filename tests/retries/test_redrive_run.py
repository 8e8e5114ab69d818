"""A run of a Redrive moves the records of its filter, once, to its own group, and reports its counts."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from fleet_consumer.contract import naming
from tests.broker.retry_fleet import MESSAGE_BYTES_MAX, SIZES
from tests.broker.workers import Kafka
from tests.retries.redrives import PARTITIONS, FailedTopic, failed_record
from tests.support.waiting import eventually

SOURCE_BYTES_MAX = MESSAGE_BYTES_MAX - 64 * 1024
"""The largest record of a source topic with Kafka's default limit."""


@pytest.fixture
def topic(kafka: Kafka, tmp_path: Path) -> FailedTopic:
    return FailedTopic(kafka, tmp_path)


def test_every_failed_record_begins_again_in_the_redrive_topic(topic: FailedTopic) -> None:
    topic.write(range(40))
    settings = topic.settings()
    ended = topic.start(settings).end()
    assert (ended.code, ended.result["ok"], ended.counts) == (0, True, (40, 40, 0))
    moved = topic.moved()
    assert topic.moved_numbers() == list(range(40))
    sources = {(each.partition, each.offset): each for each in topic.kafka.read(topic.failed)}
    for each in moved:
        number = json.loads(each.value or b"")["n"]
        partition, offset = (each.headers["kr-redrive-source"] or b"").decode().split(":")
        source = sources.pop((int(partition), int(offset)))
        assert (each.key, each.value) == (source.key, source.value)
        values = {name: (value or b"").decode() for name, value in each.headers.items()}
        at = int(values.pop("kr-redriven-at"))
        assert at > 1_700_000_000_000
        assert values == {
            "traceparent": f"00-{number}",
            "kr-group": topic.group,
            "kr-attempt": "0",
            "kr-first-failed-at": "1700000000000",
            "kr-origin-topic": "flights",
            "kr-origin-partition": str(number % 7),
            "kr-origin-offset": str(number),
            "kr-origin-timestamp": "1357034400000",
            "kr-redrive-id": settings["id"],
            "kr-redrive-count": "1",
            "kr-redrive-source": f"{partition}:{offset}",
        }
    assert sources == {}


def test_dry_run_selects_the_records_moved_by_the_run(topic: FailedTopic) -> None:
    topic.write(range(30))
    topic.write(range(30, 50), reason="timeout")
    topic.write(range(50, 60), reason="timeout", error_message="no route")
    topic.write(range(30, 35), reason="timeout")  # copies
    chosen: dict[str, Any] = {"reasons": ["timeout"], "errorRegex": "cancelled", "keyRegex": "^key-[345]"}
    dry = topic.run(dryRun=True, **chosen)
    assert dry.counts == (20, 0, 0)
    assert topic.moved() == []
    assert topic.run(**chosen).counts == (20, 20, 0)
    assert topic.moved_numbers() == list(range(30, 50))


def test_only_the_named_records_are_moved(topic: FailedTopic) -> None:
    topic.write(range(60))
    lie = {(each.partition, each.offset): json.loads(each.value or b"")["n"] for each in topic.kafka.read(topic.failed)}
    named = sorted(lie)[3::20]
    records = [{"partition": partition, "offset": offset} for partition, offset in named]
    ended = topic.run(records=[*records, {"partition": 0, "offset": 10_000}])
    assert ended.counts == (len(named), len(named), 0)
    assert topic.moved_numbers() == sorted(lie[place] for place in named)
    again = topic.run(records=records)
    assert (again.counts, again.result["movedBefore"]) == ((0, 0, 0), len(named))
    assert topic.run().counts == (60 - len(named), 60 - len(named), 0)


def test_redriven_records_are_counted_from_the_log_start(topic: FailedTopic) -> None:
    """For any filter of the counting run, and also by a run that was killed on its way."""
    topic.write(range(60))
    topic.write(range(10))  # copies
    assert topic.run(dryRun=True).result["redrivenTo"] == 0
    run = topic.start(settings := topic.settings(recordsPerSecond=50, keyRegex="^key-[1234]"))
    topic.wait_moved(10)
    run.kill()
    moved = topic.run(settings)
    assert moved.counts == (44, 44, 0)
    assert moved.result["redrivenTo"] == 44 + 4, "the copies of 1 to 4, too"
    assert topic.run(dryRun=True, reasons=["poison"]).result["redrivenTo"] == 44 + 4
    assert topic.run().result["redrivenTo"] == 70


def test_all_partitions_are_moved_at_the_same_time(topic: FailedTopic) -> None:
    """Not one after the other: each retry worker has work from the beginning. How evenly, nobody promises."""
    topic.write(range(800))
    run = topic.start(topic.settings(recordsPerSecond=100))
    topic.wait_moved(100)
    run.kill()
    moved = Counter(each.partition for each in topic.moved())
    assert len(moved) == PARTITIONS, "one after the other, the first partition alone has a hundred"


def test_limit_on_records_is_the_same_for_the_dry_run_and_the_run(topic: FailedTopic) -> None:
    topic.write(range(100))
    assert topic.run(dryRun=True, maxRecords=30).counts == (30, 0, 0)
    assert topic.run(maxRecords=30).counts == (30, 30, 0)
    assert len(topic.moved()) == 30
    assert topic.run().counts == (70, 70, 0)
    assert topic.moved_numbers() == list(range(100))


def test_second_run_selects_none_and_a_run_that_is_done_moves_none_when_started_again(topic: FailedTopic) -> None:
    topic.write(range(50))
    settings = topic.settings()
    assert topic.run(settings).counts == (50, 50, 0)
    assert topic.run().counts == (0, 0, 0)
    assert topic.run(settings).counts == (50, 50, 0)
    assert topic.moved_numbers() == list(range(50))


def test_only_the_group_sees_a_redrive(topic: FailedTopic) -> None:
    """The source topic has other readers: nothing is ever written to it, for any claimed origin of a record."""
    topic.kafka.produce(topic.group, [b"1", b"2"])
    before = topic.kafka.end_offsets(topic.group)
    topic.write(range(20), origin_topic=topic.group)
    topic.run()
    assert topic.kafka.end_offsets(topic.group) == before
    assert sum(topic.kafka.end_offsets(topic.redrive).values()) == 20


def test_only_times_from_the_first_to_before_the_second_are_selected(topic: FailedTopic) -> None:
    """The time is the broker's append time in the failed topic, which no client can forge."""
    for number in range(6):
        topic.write([number], partition=number % PARTITIONS, failed_at=5)
    times = appended(topic.kafka, topic.failed)
    first, second = times[2], times[4]
    expected = [number for number, at in times.items() if first <= at < second]
    assert topic.run(fromTime=first, toTime=second).counts[1] == len(expected)
    assert topic.moved_numbers() == expected


def test_record_at_the_redrive_limit_or_of_this_run_is_left_alone(topic: FailedTopic) -> None:
    settings = topic.settings(maxRedrives=2)
    topic.write(range(10), redrive_count=1, redrive_id="an-older-run")
    topic.write(range(10, 20), redrive_count=2, redrive_id="an-older-run")
    topic.write(range(20, 25), redrive_count=1, redrive_id=settings["id"])
    assert topic.run(settings).counts == (10, 10, 15)
    assert topic.moved_numbers() == list(range(10))
    assert {each.headers["kr-redrive-count"] for each in topic.moved()} == {b"2"}


def test_rate_is_kept(topic: FailedTopic) -> None:
    """300 records at 100 a second. A slow first batch may shorten the observed rate on its own and the last."""
    topic.write(range(300))
    assert topic.run(recordsPerSecond=100).counts == (300, 300, 0)
    times = appended(topic.kafka, topic.redrive)
    assert max(times.values()) - min(times.values()) >= 1_000


def test_damaged_records_are_moved_once_like_all_others(topic: FailedTopic) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    garbage: list[bytes | None] = [
        None,
        b"",
        b"\xff\xfe",
        b"-1",
        b"9" * 30,
        b"1e9",
        "٣".encode(),
        chance.randbytes(300),
    ]
    names = ["attempt", "first_failed_at", "policy", "origin_topic", "origin_partition", "origin_offset", "reason"]
    names += ["origin_timestamp", "redrive_id", "redriven_at", "error_message"]
    records = []
    for number in range(100):
        damage: dict[str, Any] = {name: chance.choice(garbage) for name in chance.sample(names, 3)}
        records.append(failed_record(topic.group, number, **damage))
    # Our own headers twice over, and a large number of foreign ones.
    records.append(failed_record(topic.group, 100))
    records[-1]["headers"] += [*records[-1]["headers"], *((f"h-{n}", b"x") for n in range(2_000))]
    records.append({"value": json.dumps({"n": 101}).encode(), "key": None, "headers": []})
    topic.write_records(records)
    assert topic.run().counts == (102, 102, 0)
    assert topic.moved_numbers() == list(range(102))
    assert topic.run().counts == (0, 0, 0)


def test_forged_count_stops_at_the_guard(topic: FailedTopic) -> None:
    topic.write(range(5), redrive_count=10**9)
    assert topic.run().counts == (0, 0, 5)


def test_record_at_the_size_limit_is_moved_complete(topic: FailedTopic) -> None:
    value = random.Random(5).randbytes(SOURCE_BYTES_MAX - 200)
    topic.write_records([failed_record(topic.group, 1, value=value, error_message="e" * 1024)])
    assert topic.run().counts == (1, 1, 0)
    (moved,) = topic.moved()
    assert moved.value == value


def test_records_of_every_size_are_moved_complete(topic: FailedTopic) -> None:
    values = [random.Random(size).randbytes(size) for size in (*SIZES, SIZES[0])]
    topic.write_records([failed_record(topic.group, n, value=value) for n, value in enumerate(values)])
    assert topic.run().counts == (6, 6, 0)
    assert {each.value for each in topic.moved()} == set(values)


def test_record_without_a_key_is_partitioned_by_origin(topic: FailedTopic) -> None:
    topic.write(range(40), key=None)
    assert topic.run().counts == (40, 40, 0)
    assert len({each.partition for each in topic.moved()}) > 1
    assert {each.key for each in topic.moved()} == {None}


def test_progress_stands_in_the_group_of_the_run(topic: FailedTopic) -> None:
    topic.write(range(40))
    topic.write(range(40, 44), redrive_count=3)
    settings = topic.settings()
    topic.run(settings)
    ends = topic.kafka.end_offsets(topic.failed)
    found = topic.progress(settings["id"])
    assert {number: (each["end"], each["offset"]) for number, each in found.items()} == {
        number: (end, end) for number, end in ends.items()
    }
    totals = [sum(each[name] for each in found.values()) for name in ("selected", "moved", "guarded")]
    assert totals == [40, 40, 4]


def test_records_failing_after_the_first_start_are_left_for_another_run(topic: FailedTopic) -> None:
    topic.write(range(10))
    settings = topic.settings()
    topic.run(settings)
    topic.write(range(10, 20))
    assert topic.run(settings).counts == (10, 10, 0)
    assert topic.moved_numbers() == list(range(10))


def test_missing_topic_exits_21_and_bad_settings_exit_20(topic: FailedTopic) -> None:
    nowhere = topic.start(topic.settings(groupId="no-such-group")).end()
    assert nowhere.code == 21
    assert nowhere.result["ok"] is False
    assert nowhere.result["reason"] == "TopicMissing"
    assert naming.failed_topic("no-such-group") in nowhere.result["message"]
    bad = topic.start(topic.settings(errorRegex="(?=a)a")).end()
    assert (bad.code, bad.result["reason"]) == (20, "SettingsInvalid")
    assert "errorRegex" in bad.result["message"]


def appended(kafka: Kafka, topic: str) -> dict[int, int]:
    """The broker's time of each record, by its number and in the order of numbers."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "tests"})
    ends = {number: end for number, end in kafka.end_offsets(topic).items() if end}
    found: dict[int, int] = {}

    def all_read() -> bool:
        messages: list[Any] = consumer.consume(500, 0.2)
        found.update({json.loads(message.value())["n"]: message.timestamp()[1] for message in messages})
        return len(found) == sum(ends.values())

    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in ends])
        eventually(all_read, what=f"{topic} to be read to its end")
    finally:
        consumer.close()
    return dict(sorted(found.items()))
