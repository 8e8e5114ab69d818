"""Reading to the end of a partition whose last offsets hold no record.

Those are markers of transactions, and aborted and compacted records. Positions pass them, and commits cover them;
otherwise a drained partition would always show lag.
"""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from fleet_consumer import Consumer, Record, TopicPartition
from tests.broker.members import committed, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.kafka_topics import make_topics
from tests.support.waiting import eventually
from tests.support.writing import SureProducer


class Transactions:
    """A transactional producer to partition 0 of a topic."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self._topic = topic
        self._producer = SureProducer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": unique("transactions")}
        )
        self._producer.init_transactions(60)

    def write(self, count: int, *, value: bytes = b"v", commit: bool = True) -> None:
        self._producer.begin_transaction()
        for _ in range(count):
            self._producer.produce(self._topic, value, b"k", partition=0)
        # Records that are not with the broker yet when a transaction is aborted never get there.
        assert self._producer.flush(60) == 0
        if commit:
            self._producer.commit_transaction(60)
        else:
            self._producer.abort_transaction(60)


def read_to_the_end(consumer: Consumer, part: TopicPartition, end: int) -> list[Record]:
    """Poll while the position is before the end, as programs do that read a partition and stop.

    A transaction's marker may be written after its producer was answered, so the test waits for the end.
    """
    eventually(lambda: consumer.end_offsets([part])[part] == end, what=f"an end at {end}")
    read: list[Record] = []

    def reached() -> bool:
        read.extend(consumer.poll(1.0))
        return part in consumer.assignment() and (consumer.position(part) or 0) >= end

    eventually(reached, poll_s=0, what=f"the position to be {end}")
    assert consumer.position(part) == end
    return read


def raw_offsets(bootstrap: str, part: TopicPartition) -> list[int]:
    """The offsets of all records in a partition, read with librdkafka."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.partition.eof": True})
    try:
        reader.assign([confluent_kafka.TopicPartition(*part, 0)])
        offsets = []
        while (message := reader.poll(60)) is not None and message.error() is None:
            offsets.append(message.offset() or 0)
        return offsets
    finally:
        reader.close()


@pytest.mark.together
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("last_is_committed", [True, False], ids=["committed", "aborted"])
def test_position_passes_the_marker_of_the_last_transaction(
    broker: KafkaBroker, isolation: str, last_is_committed: bool
) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    part = TopicPartition(topic, 0)
    producer = Transactions(broker, topic)
    producer.write(3)
    producer.write(2, commit=last_is_committed)
    with Consumer(settings(broker.bootstrap, group, isolation_level=isolation)) as consumer:
        consumer.subscribe([topic])
        read = read_to_the_end(consumer, part, 7)
        aborted_are_read = last_is_committed or isolation == "read_uncommitted"
        assert [record.offset for record in read] == [0, 1, 2, *([4, 5] if aborted_are_read else [])]
        consumer.commit()
        assert committed(broker.bootstrap, group, topic, 1) == {0: 7}
        producer.write(1)
        assert [record.offset for record in read_to_the_end(consumer, part, 9)] == [7]
    # A consumer that continues at a commit behind a marker reads the next record, and nothing twice.
    with Consumer(settings(broker.bootstrap, group, isolation_level=isolation)) as consumer:
        consumer.subscribe([topic])
        assert [record.offset for record in read_to_the_end(consumer, part, 9)] == [7]


@pytest.mark.together
def test_poll_returns_positions_for_manual_commits(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    part = TopicPartition(topic, 0)
    Transactions(broker, topic).write(3)
    moved: dict[TopicPartition, int] = {}
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([topic])
        eventually(
            lambda: (moved.update(consumer.poll(1.0).next_offsets), moved == {part: 4})[1],
            poll_s=0,
            what="the end behind the marker",
        )


@pytest.mark.together
def test_position_passes_compacted_offsets_at_the_end(broker: KafkaBroker) -> None:
    topic, group = unique("compacted"), unique("group")
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        "min.compaction.lag.ms": "0",
    }
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    make_topics(admin, [NewTopic(topic, 1, 1, config=config)])
    part = TopicPartition(topic, 0)
    produce(broker.bootstrap, topic, 1, 10)
    producer = Transactions(broker, topic)
    producer.write(5, commit=False)

    def cleaned() -> bool:
        # The next write begins a new segment, and only older ones are cleaned.
        producer.write(1, commit=False)
        return min(raw_offsets(broker.bootstrap, part)) == 9

    eventually(cleaned, what="the cleaner")
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([topic])
        end = eventually(lambda: consumer.end_offsets([part])[part], what="the end")
        assert not {record.offset for record in read_to_the_end(consumer, part, end)} & {*range(9), *range(10, 15)}
        consumer.commit()
    assert committed(broker.bootstrap, group, topic, 1) == {0: end}


@pytest.mark.together
def test_end_from_before_a_seek_moves_nothing_and_a_pause_keeps_it_back(broker: KafkaBroker) -> None:
    """Ends are reported again after a seek; one in flight during the seek must not make it skip records."""
    topic = create_topic(broker.bootstrap, 1)
    part = TopicPartition(topic, 0)
    producer = Transactions(broker, topic)
    producer.write(20)
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        consumer.subscribe([topic])
        assert len(read_to_the_end(consumer, part, 21)) == 20
        for start in (0, 7, 19, 20, 3):
            consumer.seek(part, start)
            consumer.pause([part])
            assert not consumer.poll(0.2)
            assert consumer.position(part) == start
            consumer.resume([part])
            assert [record.offset for record in read_to_the_end(consumer, part, 21)] == list(range(start, 20))
        for start in (0, 7, 19, 20, 3) * 2:
            consumer.seek(part, start)
            # At once, and again in the middle of what the first seek brings.
            list(consumer.poll(0.0))
            consumer.seek(part, start)
            assert [record.offset for record in read_to_the_end(consumer, part, 21)] == list(range(start, 20))
