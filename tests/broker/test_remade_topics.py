"""A topic that is deleted and recreated under its name: the new one is read from its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group import errors
from tests.broker.members import create_topic, delete_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

OLD, NEW = 100, 150
PATIENCE_S = 240.0
CLOSE_S = 30.0
"""Longer than the search for a missing topic, until it counts as deleted."""


@contextmanager
def consumer_of(broker: KafkaBroker, topic: str, policy: str) -> Iterator[Consumer]:
    """A consumer at offset `OFF` of the topic, without unread records."""
    # No rebalance for the topic in the meantime: the consumer keeps its partition.
    changes = {"auto_offset_reset": policy, "metadata_max_age_ms": 3_000}
    consumer = Consumer(settings(broker.bootstrap, unique("group"), **changes))
    try:
        consumer.subscribe([topic])
        part = TopicPartition(topic, 0)
        await_position(consumer, part, 0)
        produce(broker.bootstrap, topic, 1, OLD)
        await_position(consumer, part, OLD)
        consumer.commit()
        yield consumer
    finally:
        consumer.close()


def await_position(consumer: Consumer, part: TopicPartition, offset: int) -> list[tuple[int, bytes]]:
    seen: list[tuple[int, bytes]] = []

    def there() -> bool:
        seen.extend((record.offset, record.value or b"") for record in consumer.poll(0.1))
        assert part in consumer.assignment()
        return consumer.position(part) == offset

    eventually(there, timeout_s=PATIENCE_S, what=f"the position {offset}")
    return seen


def remake(broker: KafkaBroker, topic: str) -> None:
    """The recreated topic, with more records than the former one."""
    delete_topic(broker.bootstrap, topic)
    eventually(lambda: create_topic(broker.bootstrap, 1, topic), timeout_s=PATIENCE_S, what="the topic again")
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for number in range(NEW):
        producer.produce(topic, value=b"new-%d" % number, partition=0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_running_consumer_reads_a_recreated_topic_from_its_beginning(broker: KafkaBroker, policy: str) -> None:
    topic = create_topic(broker.bootstrap, 1)
    part = TopicPartition(topic, 0)
    with consumer_of(broker, topic, policy) as consumer:
        remake(broker, topic)
        seen: set[tuple[int, bytes]] = set()

        def whole() -> bool:
            seen.update((record.offset, record.value or b"") for record in consumer.poll(0.1))
            missing = {(number, b"new-%d" % number) for number in range(NEW)} - seen
            assert not missing, f"{len(missing)} records of the new topic are missing"
            return True

        eventually(whole, timeout_s=PATIENCE_S, what="every record of the new topic")
        await_position(consumer, part, NEW)
        consumer.commit()
        assert consumer.committed([part])[part].offset == NEW  # type: ignore[union-attr]


def test_commit_in_flight_when_the_topic_is_recreated_skips_nothing(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 1)
    part = TopicPartition(topic, 0)
    with consumer_of(broker, topic, "earliest") as consumer:
        offsets = {part: consumer.committed([part])[part]}
        remake(broker, topic)
        with pytest.raises(errors.TopicDeleted, match=f"{topic}-0: UNKNOWN_TOPIC_ID"):
            consumer.commit(offsets)  # type: ignore[arg-type]
        assert consumer.committed([part]) == {part: None}
        seen: set[bytes] = set()

        def whole() -> bool:
            seen.update(record.value or b"" for record in consumer.poll(0.1))
            return seen >= {b"new-%d" % number for number in range(NEW)}

        eventually(whole, timeout_s=PATIENCE_S, what="every record of the new topic")
        await_position(consumer, part, NEW)


@pytest.mark.parametrize("commits", ["at the end", "automatic"])
def test_last_commit_before_a_recreated_topic_was_noticed_is_not_used_in_it(
    broker: KafkaBroker, commits: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer ends before it checks the topic again; the next one in its group has only the commits."""
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    part = TopicPartition(topic, 0)
    automatic = {"auto_commit_interval_ms": 3_600_000} if commits == "automatic" else {}
    consumer = Consumer(settings(broker.bootstrap, group, **automatic))
    try:
        consumer.subscribe([topic], on_revoked=lambda _: None if automatic else consumer.commit())
        produce(broker.bootstrap, topic, 1, OLD)
        await_position(consumer, part, OLD)
        remake(broker, topic)
    finally:
        if automatic:
            consumer.close(CLOSE_S)
        else:
            with pytest.raises(errors.TopicDeleted):
                consumer.close(CLOSE_S)
    assert f"group {group!r}: offsets not committed: {topic}-0: UNKNOWN_TOPIC_ID" in caplog.text
    with Consumer(settings(broker.bootstrap, group)) as heir:
        heir.subscribe([topic])
        assert await_position(heir, part, NEW) == [(number, b"new-%d" % number) for number in range(NEW)]
        heir.commit()
        assert heir.committed([part])[part].offset == NEW  # type: ignore[union-attr]


def test_commit_of_records_of_the_former_topic_is_no_place_in_the_one_that_is_read_now(broker: KafkaBroker) -> None:
    """The records were in progress while the consumer moved to the new topic."""
    topic = create_topic(broker.bootstrap, 1)
    part = TopicPartition(topic, 0)
    with consumer_of(broker, topic, "earliest") as consumer:
        offsets = {part: consumer.committed([part])[part]}
        consumer.pause([part])
        remake(broker, topic)
        await_position(consumer, part, 0)
        with pytest.raises(errors.TopicDeleted):
            consumer.commit(offsets)  # type: ignore[arg-type]
        consumer.commit()
        assert consumer.committed([part])[part].offset == 0  # type: ignore[union-attr]


def test_waiting_head_of_a_recreated_topic_is_its_first_record(broker: KafkaBroker) -> None:
    """As retry workers wait: the partition is paused and sought back to the record that is not due yet."""
    topic = create_topic(broker.bootstrap, 1)
    part = TopicPartition(topic, 0)
    with consumer_of(broker, topic, "earliest") as consumer:
        consumer.pause([part])
        consumer.seek(part, OLD - 1)
        remake(broker, topic)
        await_position(consumer, part, 0)
        consumer.resume([part])
        seen = await_position(consumer, part, NEW)
        assert seen == [(number, b"new-%d" % number) for number in range(NEW)]
        assert consumer.truncations().remade == 1
