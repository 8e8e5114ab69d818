"""Data that cannot be read are reported until they can, and neither they nor what is behind them is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group.errors import DataUnreadable, OffsetLookupFailed
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.settings import consumer_config
from tests.broker.members import create_topic, settings, unique
from tests.support import segments
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

KINDS: dict[str, tuple[segments.Damage, str, str]] = {
    "BAD_MSG": (segments.flip_bit, "none", "failed CRC32C check"),
    "codec": (segments.unknown_codec, "none", "codec 0x7"),
    "gzip": (segments.spoil_records, "gzip", "BAD_COMPRESSION"),
    "snappy": (segments.spoil_records, "snappy", "BAD_COMPRESSION"),
    "lz4": (segments.spoil_records, "lz4", "BAD_COMPRESSION"),
    "zstd": (segments.spoil_records, "zstd", "BAD_COMPRESSION"),
    "magic": (segments.unknown_magic, "none", "MagicByte 9"),
    "length": (segments.negative_length, "none", "INVALID_MSG"),
    "length too long": (segments.excessive_length, "none", "neither records nor an error"),
}
HEALTHY = len(KINDS)
SILENT = list(KINDS).index("length too long")
"""The broker says nothing about it: a consumer finds it when it has stood for half a minute."""
LENGTHS = (list(KINDS).index("length"), SILENT)


def write(broker: KafkaBroker, topic: str, partition: int, codec: str, firsts: Sequence[int]) -> None:
    """Batches of three records of about 200 bytes, whose values are their offsets."""
    producer = SureProducer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 10_000})
    for first in firsts:
        for offset in range(first, first + 3):
            producer.produce(topic, value=(b"%d " % offset) * 80, partition=partition)
        assert producer.flush(60) == 0


@pytest.fixture
def damaged(broker: KafkaBroker) -> tuple[str, Callable[[], None]]:
    """A topic with a partition for each kind of damage, to its second batch, and a healthy one; and the cure."""
    # The index leads past the batch at which the broker fails.
    topic = create_topic(broker.bootstrap, HEALTHY + 1, config={"index.interval.bytes": "0"})
    cures = []
    for number, (change, codec, _) in enumerate(KINDS.values()):
        write(broker, topic, number, codec, (0, 3, 6))
        cures.append(segments.damage(broker, topic, number, 3, change))
    write(broker, topic, HEALTHY, "zstd", (0,))

    def cure_all() -> None:
        for cure in cures:
            cure()

    return topic, cure_all


def test_unreadable_batches_are_reported_until_they_can_be_read_and_nothing_is_skipped(
    broker: KafkaBroker, damaged: tuple[str, Callable[[], None]]
) -> None:
    topic, cure = damaged
    handed: dict[int, list[int]] = {number: [] for number in range(HEALTHY + 1)}
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        consumer.subscribe([topic])

        def polled() -> bool:
            for record in consumer.poll(0.1):
                assert record.value == (b"%d " % record.offset) * 80
                handed[record.partition].append(record.offset)
            return True

        def stands() -> set[int]:
            return {part.partition for part in consumer.unreadable() if polled()}

        eventually(lambda: polled() and stands() == set(range(HEALTHY)), what="each batch to be reported")
        since = {part: each.since for part, each in consumer.unreadable().items()}
        # While another partition flows.
        write(broker, topic, HEALTHY, "zstd", range(3, 30, 3))
        eventually(lambda: polled() and handed[HEALTHY] == list(range(30)), what="the healthy partition")
        assert isinstance(consumer.membership().error, DataUnreadable)
        found = consumer.unreadable()
        assert set(found) == set(since)
        for number, (_, _, words) in enumerate(KINDS.values()):
            part = TopicPartition(topic, number)
            assert handed[number] == [0, 1, 2]
            assert consumer.position(part) == found[part].offset == 3
            assert words in str(found[part].error)
            assert f"{topic}-{number}" in str(found[part].error)
            assert found[part].since == since[part]
        cure()
        whole = list(range(9))
        eventually(lambda: polled() and all(handed[n] == whole for n in range(HEALTHY)), what="the rest, once each")
        assert consumer.unreadable() == {}
        assert consumer.membership().error is None


def test_bounded_reading_reads_the_other_partitions_and_names_what_cannot_be_read(
    broker: KafkaBroker, damaged: tuple[str, Callable[[], None]]
) -> None:
    topic, _ = damaged
    # One that says nothing delays its end, until the caller gives up.
    numbers = [number for number in range(HEALTHY + 1) if number != SILENT]
    parts = [TopicPartition(topic, number) for number in numbers]
    handed: dict[int, list[int]] = {number: [] for number in numbers}
    config = consumer_config(settings(broker.bootstrap, None).connection, "bounded", "read_uncommitted", {})

    def read(reader: BoundedReader) -> None:
        for step in reader.read(reader.bounds(parts)):
            for part, records in step.records.items():
                handed[part.partition] += [record.offset for record in records]

    with BoundedReader(config, stores_offsets=False) as reader, pytest.raises(DataUnreadable) as raised:
        read(reader)
    assert handed == {number: [0, 1, 2] for number in numbers}
    for number, (_, _, words) in enumerate(KINDS.values()):
        if number == SILENT:
            continue
        assert f"partition {topic}-{number}: at offset 3: " in str(raised.value)
        assert words in str(raised.value)


def test_seek_to_the_end_of_an_unreadable_batch_passes_nothing_else(
    broker: KafkaBroker, damaged: tuple[str, Callable[[], None]]
) -> None:
    topic, _ = damaged
    handed: dict[int, list[int]] = {number: [] for number in range(HEALTHY)}
    with Consumer(settings(broker.bootstrap, None)) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(HEALTHY)])

        def polled() -> bool:
            for record in consumer.poll(0.1):
                handed[record.partition].append(record.offset)
            return True

        eventually(lambda: polled() and len(consumer.unreadable()) == HEALTHY, what="each batch to be reported")
        for part, stands in consumer.unreadable().items():
            end = consumer.batch_end(part, stands.offset)
            # A broker that fails at the length of a batch comes to the next by its index, whose entries are of the last
            # offsets of batches.
            assert end == (8 if part.partition in LENGTHS else 6)
            consumer.seek(part, end)
        rest = {number: [0, 1, 2, 8] if number in LENGTHS else [0, 1, 2, 6, 7, 8] for number in range(HEALTHY)}
        eventually(lambda: polled() and handed == rest, what="what is behind them")
        assert consumer.unreadable() == {}
        with pytest.raises(OffsetLookupFailed, match="it has no data at offset 9"):
            consumer.batch_end(TopicPartition(topic, 0), 9)
