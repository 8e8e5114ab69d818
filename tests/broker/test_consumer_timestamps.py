"""Types of timestamps, as a real broker returns them for both settings of a topic."""

from __future__ import annotations

import pytest

from fleet_consumer import Consumer, Record, TimestampType
from tests.broker.members import create_topic, iterate, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.writing import SureProducer

LONG_AGO_MS = 1_000_000_000_000


@pytest.mark.together
@pytest.mark.parametrize("wanted", [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME])
def test_timestamp_type_is_that_of_the_topic(broker: KafkaBroker, wanted: TimestampType) -> None:
    topic = create_topic(broker.bootstrap, 1, config={"message.timestamp.type": wanted})
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for _ in range(3):
        producer.produce(topic, b"value", timestamp=LONG_AGO_MS)
    assert producer.flush(60) == 0
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        consumer.subscribe([topic])
        records: list[Record] = list(iterate(consumer, 3))
    assert {record.timestamp_type for record in records} == {wanted}
    of_the_producer = {record.timestamp == LONG_AGO_MS for record in records}
    assert of_the_producer == {wanted is TimestampType.CREATE_TIME}
