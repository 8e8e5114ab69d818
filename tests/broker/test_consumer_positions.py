"""The place where a consumer reads, and the causes that move it: resets, seeks, pauses, deleted records."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import TopicPartition as Part
from confluent_kafka.admin import AdminClient

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group.errors import ConcurrentUse, ConsumerClosed, NoOffsetForPartition, NotAssigned, NotSubscribed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.settings import PropertyNotAllowed
from tests.broker.members import (
    Member,
    await_records,
    await_shares,
    create_topic,
    grow_topic,
    iterate,
    produce,
    settings,
    unique,
)
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually


@pytest.mark.together
def test_latest_starts_at_the_end_but_partitions_that_appear_later_at_their_beginning(broker: KafkaBroker) -> None:
    """Records written to a new partition before the group noticed it must not be skipped."""
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 50)
    with Member(settings(broker.bootstrap, group, auto_offset_reset="latest"), [topic]) as member:
        await_shares([member], topic, 1)
        eventually(lambda: member.positions == {(topic, 0): 50}, what="the end to be found")
        grow_topic(broker.bootstrap, topic, 2)
        produce(broker.bootstrap, topic, 2, 20)
        await_records([member], {(0, offset) for offset in range(50, 70)} | {(1, offset) for offset in range(20)})
        assert (0, 49) not in member.seen


@pytest.mark.together
def test_policy_none_names_the_partition_and_a_seek_resolves_it(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, 1, 10)
    consumer = Consumer(settings(broker.bootstrap, unique("group"), auto_offset_reset="none"))
    try:
        consumer.subscribe([topic])
        with pytest.raises(NoOffsetForPartition, match=f"{topic}-0") as raised:
            list(iterate(consumer, 1))
        assert raised.value.partitions == (TopicPartition(topic, 0),)
        consumer.seek(TopicPartition(topic, 0), 4)
        assert [record.offset for record in iterate(consumer, 6)] == [4, 5, 6, 7, 8, 9]
    finally:
        consumer.close()


def test_deleted_records_are_skipped_to_the_first_that_is_left_also_under_latest(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    produce(broker.bootstrap, topic, 1, 100)
    first = Consumer(settings(broker.bootstrap, group))
    try:
        first.subscribe([topic])
        list(iterate(first, 1))
        first.commit({TopicPartition(topic, 0): OffsetAndMetadata(10)}, 5)
    finally:
        first.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_records([Part(topic, 0, 60)]).values():
        done.result()
    second = Consumer(settings(broker.bootstrap, group, auto_offset_reset="latest"))
    try:
        second.subscribe([topic])
        assert next(iter(iterate(second, 1))).offset == 60
        report = second.out_of_range()
        assert (report.count, report.skipped) == (1, 50)
        assert report.last is not None
        assert (report.last.position, report.last.start) == (10, 60)
    finally:
        second.close()
    assert "offset 10 is out of range" in caplog.text


@pytest.mark.together
def test_long_pause_does_not_read_ahead_without_bound(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 2)
    produce(broker.bootstrap, topic, 2, 20_000)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer = Consumer(settings(broker.bootstrap, unique("group")))
    try:
        consumer.subscribe([topic])
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1], what="the partitions to be assigned")
        consumer.pause([one])
        got = [record for record in iterate(consumer, 20_000) if record.partition == 1]
        assert len(got) == 20_000
        assert consumer.position(one) in (0, 500)  # records that a first poll may have taken before the pause
        consumer.resume([one])
        assert [record.offset for record in iterate(consumer, 20_000 - (consumer.position(one) or 0))][-1] == 19_999
        assert consumer.position(one) == 20_000
        assert consumer.position(other) == 20_000
    finally:
        consumer.close()


@pytest.mark.together
def test_wakeup_ends_a_waiting_poll(broker: KafkaBroker) -> None:
    consumer = Consumer(settings(broker.bootstrap, unique("group")))
    try:
        consumer.subscribe([create_topic(broker.bootstrap, 1)])
        threading.Timer(0.2, consumer.wakeup).start()
        assert not consumer.poll(60.0)
        consumer.wakeup()
        assert not consumer.poll(60.0)
    finally:
        consumer.close()


@pytest.mark.together
def test_misuse_is_refused_with_its_rule(broker: KafkaBroker) -> None:
    consumer = Consumer(settings(broker.bootstrap, unique("group")))
    with pytest.raises(NotSubscribed):
        consumer.poll(0)
    topic = create_topic(broker.bootstrap, 1)
    inside, used = threading.Event(), threading.Event()

    def assigned(_: object) -> None:
        # This is inside `poll`, and stays there until the other thread has tried.
        inside.set()
        assert used.wait(60)

    consumer.subscribe([topic], on_assigned=assigned)
    with pytest.raises(NotAssigned, match=f"{topic}-7"):
        consumer.seek(TopicPartition(topic, 7), 0)
    with pytest.raises(ValueError, match="leave"):
        consumer.close(leave="perhaps")
    errors: list[BaseException] = []

    def use() -> None:
        assert inside.wait(60)
        try:
            consumer.poll(0)
        except ConcurrentUse as error:
            errors.append(error)
        used.set()

    other = threading.Thread(target=use)
    other.start()
    eventually(lambda: (consumer.poll(0.1), used.is_set())[1], what="the other thread to have tried")
    other.join()
    assert len(errors) == 1
    consumer.close()
    consumer.close()
    with pytest.raises(ConsumerClosed):
        consumer.poll(0)


@pytest.mark.together
def test_settings_that_cannot_work_are_refused_by_name(broker: KafkaBroker) -> None:
    with pytest.raises(PropertyNotAllowed, match=r"group\.id"):
        settings(broker.bootstrap, "g", properties={"group.id": "other"})
    with pytest.raises(ValueError, match="auto_offset_reset"):
        settings(broker.bootstrap, "g", auto_offset_reset="newest")
    with pytest.raises(ValueError, match="heartbeat_interval_ms"):
        settings(broker.bootstrap, "g", heartbeat_interval_ms=30_000)
