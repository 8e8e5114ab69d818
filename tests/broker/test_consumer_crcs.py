"""A record whose bytes changed on a broker's disk is reported and never delivered."""

from __future__ import annotations

from fleet_consumer import Consumer, Record
from tests.broker.members import create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually


def test_record_with_a_flipped_bit_is_reported_and_not_handed_out() -> None:
    with KafkaBroker() as broker:
        topic = create_topic(broker.bootstrap, 1)
        produce(broker.bootstrap, topic, 1, 1, first=1_234_567)
        segment = next(broker.directory.rglob(f"{topic}-0/00000000000000000000.log"))
        stored = segment.read_bytes()
        assert stored.count(b"1234567") == 1
        segment.write_bytes(stored.replace(b"1234567", b"1234566"))
        unchecked = settings(broker.bootstrap, unique("group"), properties={"check.crcs": "false"})
        with Consumer(unchecked) as consumer:
            consumer.subscribe([topic])
            records = eventually(lambda: list(consumer.poll(0.2)), what="the changed record")
            assert records[0].value == b"1234566", "the file was not what the broker sends"
        with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
            consumer.subscribe([topic])

            handed_out: list[Record] = []

            def reported() -> bool:
                handed_out.extend(consumer.poll(0.2))
                return "BAD_MSG" in str(consumer.membership().error)

            eventually(reported, what="the report")
            assert handed_out == []
