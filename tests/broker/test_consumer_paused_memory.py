"""Many paused partitions, of records of any size, hold no more than the budget, and lose and starve nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fleet_consumer import Consumer, Record, TopicPartition
from tests.broker.members import create_topic, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

PARTITIONS = 30
BUDGET = 1_000_000
"""A twelfth of the topic's content, the records' objects included."""


@pytest.mark.together
@pytest.mark.parametrize(("size", "each"), [(10, 1_000), (20_000, 20), (400_000, 1), (999_000, 1)])
def test_paused_partitions_stay_within_the_budget_and_resume_complete(
    broker: KafkaBroker, size: int, each: int
) -> None:
    topic = create_topic(broker.bootstrap, PARTITIONS)
    parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for part in parts:
        for _ in range(each):
            producer.produce(topic, bytes(size), b"key", partition=part.partition)
    # One that is as large as the whole budget comes as well.
    producer.produce(topic, bytes(990_000), bytes(9_000), partition=0)
    assert producer.flush(60) == 0
    paused: list[TopicPartition] = []
    highest = 0
    with Consumer(settings(broker.bootstrap, unique("group"), paused_bytes_max=BUDGET)) as consumer:

        def pause(given: Sequence[TopicPartition]) -> None:
            consumer.pause(given)
            paused.extend(given)

        consumer.subscribe([topic], on_assigned=pause)
        eventually(lambda: (consumer.poll(0.1), len(paused) == PARTITIONS)[1], what="the partitions")

        handed_out: list[Record] = []

        def held() -> int:
            positions = consumer._engine.positions
            assert positions is not None
            return sum(0 if buffer is None else buffer.held_bytes for buffer in positions._buffers.values())

        def every_one_came() -> bool:
            """Each was fetched, and then either holds its share or was dropped."""
            nonlocal highest
            handed_out.extend(consumer.poll(0.1))
            highest = max(highest, held())
            positions = consumer._engine.positions
            assert positions is not None
            return all(buffer is not None and buffer.on_hold for buffer in positions._buffers.values())

        eventually(every_one_came, what="every partition to have been fetched")
        assert handed_out == []
        assert 0 < highest <= BUDGET
        offsets: dict[int, list[int]] = {part.partition: [] for part in parts}
        consumer.resume(parts)

        def all_read() -> bool:
            for record in consumer.poll(0.2):
                offsets[record.partition].append(record.offset)
            return sum(map(len, offsets.values())) >= PARTITIONS * each + 1

        eventually(all_read, poll_s=0, what="all records")
    assert offsets == {number: list(range(each + (number == 0))) for number in range(PARTITIONS)}
