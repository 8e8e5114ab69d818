"""Commits and lookups of offsets on a real broker: positions, times, durations, transactions, automatic commits."""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest
from confluent_kafka import TopicPartition as Part

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group import commits as group_commits
from fleet_consumer.group.errors import CommitFailed, CommitRefused, OffsetLookupFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from tests.broker.members import Member, await_shares, committed, create_topic, iterate, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

pytestmark = pytest.mark.together

HOUR_MS = 3_600_000


def write_at(broker: KafkaBroker, topic: str, times: list[int]) -> None:
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for moment in times:
        producer.produce(topic, value=str(moment).encode(), partition=0, timestamp=moment)
    assert producer.flush(60) == 0


def test_commit_without_offsets_commits_polled_records(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    produce(broker.bootstrap, topic, 2, 20)
    done: list[Exception | None] = []
    with Consumer(settings(broker.bootstrap, group, max_poll_records=40)) as consumer:
        consumer.subscribe([topic])
        list(iterate(consumer, 40))
        consumer.commit()
        assert committed(broker.bootstrap, group, topic, 2) == {0: 20, 1: 20}
        stored = consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        assert stored is not None
        assert stored.leader_epoch >= 0
        consumer.seek(TopicPartition(topic, 1), 3)
        consumer.commit_async(callback=lambda _offsets, error: done.append(error))
        eventually(lambda: (consumer.poll(0.1, max_records=0), done)[1], what="the callback")
        assert done == [None]
        assert committed(broker.bootstrap, group, topic, 2) == {0: 20, 1: 3}


def test_offsets_are_found_by_time_and_by_end_without_a_subscription(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 2)
    write_at(broker, topic, [1_000_000, 2_000_000, 3_000_000])
    here, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        found = consumer.offsets_for_times({here: 1_500_000, empty: 0}, 20)
        assert found[empty] is None
        entry = found[here]
        assert entry is not None
        assert (entry.offset, entry.timestamp) == (1, 2_000_000)
        assert consumer.offsets_for_times({here: 3_000_001}, 20) == {here: None}
        assert consumer.beginning_offsets([here, empty], 20) == {here: 0, empty: 0}
        assert consumer.end_offsets([here, empty], 20) == {here: 3, empty: 0}
        assert consumer.committed([here], 20) == {here: None}
        with pytest.raises(ValueError, match="negative"):
            consumer.offsets_for_times({here: -1})
        with pytest.raises(OffsetLookupFailed, match=r"within 0\.5 s"):
            consumer.end_offsets([TopicPartition(unique("nowhere"), 0)], 0.5)


def test_policy_by_duration_starts_at_the_first_recent_record_or_the_end(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 1)
    now = round(time.time() * 1000)
    write_at(broker, topic, [now - 3 * HOUR_MS, now - 2 * HOUR_MS, now - HOUR_MS // 2, now])
    part = TopicPartition(topic, 0)

    def start(duration: str) -> int:
        chosen = settings(broker.bootstrap, unique("group"), auto_offset_reset=f"by_duration:{duration}")
        with Consumer(chosen) as consumer:
            consumer.subscribe([topic])

            def position() -> int | None:
                consumer.poll(0.1, max_records=0)
                return consumer.position(part) if part in consumer.assignment() else None

            found = eventually(lambda: _some(position()), what="a position")
            assert found is not None
            return found[0]

    assert start("PT1H") == 2
    assert start("P1D") == 0
    old = create_topic(broker.bootstrap, 1)
    write_at(broker, old, [now - 3 * HOUR_MS])
    topic, part = old, TopicPartition(old, 0)
    assert start("PT1H") == 1


def _some(offset: int | None) -> tuple[int] | None:
    return None if offset is None else (offset,)


def test_offsets_go_with_a_transaction_of_librdkafkas_producer(broker: KafkaBroker) -> None:
    """Read, write, and commit the input's offsets in one transaction; an abort takes back both."""
    source, target, group = create_topic(broker.bootstrap, 1), create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, source, 1, 10)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique("transaction")})
    producer.init_transactions(20)
    part = TopicPartition(source, 0)
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([source])
        records = list(iterate(consumer, 10))

        def transaction(upto: int) -> None:
            producer.begin_transaction()
            for record in records[:upto]:
                producer.produce(target, value=record.value)
            producer.send_offsets_to_transaction([Part(source, 0, upto)], consumer.group_metadata(), 20)

        transaction(5)
        producer.abort_transaction(20)
        assert consumer.committed([part], 20) == {part: None}
        transaction(10)
        producer.commit_transaction(20)
        stored = consumer.committed([part], 20)[part]
        assert stored is not None
        assert stored.offset == 10
    reading = settings(broker.bootstrap, unique("group"), isolation_level="read_committed")
    with Consumer(reading) as reader:
        reader.subscribe([target])
        assert [record.value for record in iterate(reader, 10)] == [record.value for record in records]


def test_transaction_of_a_member_that_lost_its_place_is_refused(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 5)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique("transaction")})
    producer.init_transactions(20)
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(CommitFailed, match="currently not a member"):
            consumer.group_metadata()
        list(iterate(consumer, 5))
        stale = consumer.group_metadata()
        consumer.unsubscribe()
    with Member(settings(broker.bootstrap, group), [topic]) as successor:
        await_shares([successor], topic, 1)
        producer.begin_transaction()
        with pytest.raises(Exception, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION|[Uu]nknown member|generation"):
            producer.send_offsets_to_transaction([Part(topic, 0, 5)], stale, 20)
        producer.abort_transaction(20)


def test_automatic_commits_follow_the_interval_and_never_pass_the_position(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 30)
    chosen = settings(broker.bootstrap, group, auto_commit_interval_ms=100, max_poll_records=10)
    consumer = Consumer(chosen)
    try:
        consumer.subscribe([topic])
        first = eventually(lambda: list(consumer.poll(1.0)), what="records")
        eventually(
            lambda: (
                consumer.poll(0.0, max_records=0),
                committed(broker.bootstrap, group, topic, 1) == {0: len(first)},
            )[1],
            what="what the first poll returned to be committed, and no more",
        )
        list(iterate(consumer, 30 - len(first)))
    finally:
        consumer.close()
    assert committed(broker.bootstrap, group, topic, 1) == {0: 30}  # by closing


def test_automatic_commit_comes_before_a_revocation(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    written = produce(broker.bootstrap, topic, 2, 50)
    never = settings(broker.bootstrap, group, auto_commit_interval_ms=3_600_000)
    with Member(never, [topic], commits=False) as first:
        eventually(lambda: len(first.seen) == len(written), what="all records")
        with Member(never, [topic], commits=False) as second:
            await_shares([first, second], topic, 2)
            assert committed(broker.bootstrap, group, topic, 2) == {0: 50, 1: 50}
            assert second.seen == []


def test_committed_metadata_comes_back(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 1)
    part = TopicPartition(topic, 0)
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([topic])
        list(iterate(consumer, 1))
        consumer.commit({part: OffsetAndMetadata(1, 0, "checked by añna")})
        assert consumer.committed([part]) == {part: OffsetAndMetadata(1, 0, "checked by añna")}


@patch.object(group_commits, "COMMIT_PARTITIONS_MAX", 2)
def test_commit_in_parts_stores_all_that_is_not_refused_and_tells_what_is(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 5)
    parts = [TopicPartition(topic, number) for number in range(5)]
    offsets = {part: OffsetAndMetadata(part.partition + 1) for part in parts}
    answers: list[Exception | None] = []
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        consumer.assign(parts)
        consumer.commit(offsets)
        assert {part: entry.offset for part, entry in stored(consumer, parts).items()} == {
            part: part.partition + 1 for part in parts
        }
        large = {part: OffsetAndMetadata(part.partition + 10, -1, "x" * 5000 * (part in parts[1:3])) for part in parts}
        with pytest.raises(CommitRefused) as raised:
            consumer.commit(large)
        refusals = raised.value.not_committed or {}
        assert sorted(refusals) == parts[1:3]
        assert all(each is not None and "OFFSET_METADATA_TOO_LARGE" in each.words for each in refusals.values())
        assert [entry.offset for _, entry in sorted(stored(consumer, parts).items())] == [10, 2, 3, 13, 14]
        consumer.commit_async(offsets, lambda _, error: answers.append(error))
        eventually(lambda: list(consumer.poll(0.1)) or answers == [None], what="one answer for all parts")
        assert [entry.offset for _, entry in sorted(stored(consumer, parts).items())] == [1, 2, 3, 4, 5]


def stored(consumer: Consumer, parts: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {part: entry for part, entry in consumer.committed(parts).items() if entry is not None}
