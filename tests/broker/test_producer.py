"""Records that a broker refused are written in the end, also when librdkafka considers them written."""

from __future__ import annotations

import pytest

from fleet_consumer.librdkafka.producer import RecordProducer
from tests.broker.members import create_topic
from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.refusing_proxy import RefusingProxy
from tests.support.writing import SureProducer

TOPIC = "fresh"
PATIENCE_S = 240.0


def test_first_batch_that_is_refused_while_the_second_is_accepted_is_not_lost() -> None:
    """A new topic: its leader does not know it when the first batch comes, and does when the second comes.

    The broker knows nothing of the producer, so it accepts the second batch, whose sequence number begins anywhere
    (KIP-360); librdkafka then considers the first one written, because the second one was.
    """
    with RefusingProxy(TOPIC) as proxy, KafkaBroker(proxied_as=proxy.address) as broker:
        proxy.target = broker.proxied_listener
        kafka = Kafka(broker.bootstrap)
        kafka.create(TOPIC, partitions=1)
        producer = RecordProducer({"bootstrap.servers": proxy.address, "linger.ms": 0})
        first = producer.send(TOPIC, key=None, value="first", partition=0)
        assert proxy.holds.wait(PATIENCE_S), "the first batch did not come"
        second = producer.send(TOPIC, key=None, value="second", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        assert [(each.done, each.error) for each in (first, second)] == [(True, None)] * 2
        assert sorted(each.value or b"" for each in kafka.read(TOPIC)) == [b"first", b"second"]


def test_tests_own_producer_fails_for_a_record_that_no_broker_has(broker: KafkaBroker) -> None:
    """librdkafka's `flush` counts a record for an unknown partition as done: the records of a test were not there."""
    topic = create_topic(broker.bootstrap, 1)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value=b"lost", partition=1)
    with pytest.raises(AssertionError, match=f"{topic}-1: .*Unknown partition"):
        producer.flush(PATIENCE_S)
