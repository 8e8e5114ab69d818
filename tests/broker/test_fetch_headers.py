"""Headers that Kafka's protocol does not allow and brokers accept must not end a worker."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from fleet_consumer.librdkafka.fetched import FetchedRecord, fetched_records, filled_records
from fleet_consumer.record import TopicPartition
from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.odd_headers import send_with_odd_name
from tests.support.waiting import eventually


def messages(broker: KafkaBroker, topic: str) -> list[Any]:
    """Three records as librdkafka returns them; the second has a header whose name is not UTF-8."""
    kafka = Kafka(broker.bootstrap)
    kafka.create(topic, partitions=1)
    kafka.produce(topic, [b"1"])
    send_with_odd_name(broker.bootstrap, topic, b"2")
    kafka.produce(topic, [b"3"])
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "tests"})
    found: list[Any] = []

    def read() -> bool:
        found.extend(consumer.consume(3, 0.2))
        return len(found) == 3

    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        eventually(read, what="three records")
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("way", ["filled", "over messages", "over messages, then filled"])
def test_record_with_a_header_name_that_is_no_text_is_handled_without_its_headers(
    broker: KafkaBroker, way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FetchedRecord.habits, "fill", False)
    topic = f"header-names-{way.replace(' ', '-').replace(',', '')}"
    make = filled_records if way == "filled" else fetched_records
    records = make(TopicPartition(topic, 0), messages(broker, topic))
    if way.endswith("then filled"):
        for record in records:
            record.attempt = 1
    assert [list(record.headers) for record in records] == [[("trace", b"t-1")], [], [("trace", b"t-1")]]
    assert [(record.offset, record.value) for record in records] == [(0, b"1"), (1, b"2"), (2, b"3")]
    assert [record.first_failed_at for record in records] == [None] * 3
    assert f"{topic}-0@1" in caplog.text
