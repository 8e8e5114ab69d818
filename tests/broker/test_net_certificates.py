"""Certificates that are renewed in mounted files while a member works: authority, broker and client, all at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet_consumer import Consumer, ConsumerSettings, TopicPartition
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import connection_config
from fleet_consumer.net import ConnectionSettings, TlsSettings
from tests.broker.members import create_topic, produce, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PATIENCE_S = 240.0
PARTITIONS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """Its own broker, whose authority is replaced."""
    with KafkaBroker(tls="mutual", properties={"group.min.session.timeout.ms": "1000"}) as running:
        yield running


@pytest.fixture
def mutual(broker: KafkaBroker) -> ConnectionSettings:
    files = broker.pki
    return ConnectionSettings(
        bootstrap_servers=(broker.mutual_bootstrap,),
        client_id="certificates",
        tls=TlsSettings(ca_file=files.ca_file, cert_file=files.cert_file, key_file=files.key_file),
    )


def test_member_and_producer_continue_after_every_certificate_was_replaced(
    broker: KafkaBroker, mutual: ConnectionSettings
) -> None:
    """Nothing is lost or read twice, and no process is restarted.

    The broker restarts with the new authority alone, and no client with the old one trusts it; the clients' files
    follow only after data plane and coordinator have both failed on it.
    """
    topic = create_topic(broker.bootstrap, PARTITIONS)
    held = TopicPartition(topic, 0)
    producer = RecordProducer(connection_config(mutual))
    seen: list[tuple[int, int]] = []
    settings = ConsumerSettings(
        connection=mutual, group_id=unique("group"), session_timeout_ms=30_000, retry_authentication=True
    )
    with Consumer(settings) as consumer:
        consumer.subscribe([topic])

        def saw(count: int) -> bool:
            seen.extend((record.partition, record.offset) for record in consumer.poll(0.2))
            return len(seen) >= count

        first = produce(broker.bootstrap, topic, PARTITIONS, 50)
        eventually(lambda: saw(len(first)), timeout_s=PATIENCE_S, what="the records before", poll_s=0.001)
        consumer.commit(timeout_s=PATIENCE_S)
        # One partition's position is not behind its last record: the new data plane must know that too.
        consumer.seek(held, 40)
        consumer.pause([held])

        broker.stop()
        broker.pki.rotate(mount=False)
        broker.start()
        second = produce(broker.bootstrap, topic, PARTITIONS, 50, first=50)
        handle = producer.send(topic, key=None, value="new", partition=1)
        eventually(
            lambda: (
                not saw(10**9) and consumer._engine.fetch is not None and consumer._engine.fetch.last_error is not None
            ),
            timeout_s=PATIENCE_S,
            what="the data plane to run into certificates that it does not trust",
        )
        assert len(seen) == len(first)

        broker.pki.mount()
        consumer.resume([held])
        again = {(0, offset) for offset in range(40, 50)}
        expected = sorted([*first, *second, *again])
        eventually(lambda: saw(len(expected)), timeout_s=PATIENCE_S, what="the records after", poll_s=0.001)
        assert sorted(part for part in seen if part != (1, 100)) == expected
        consumer.commit(timeout_s=PATIENCE_S)

        def written() -> bool:
            nonlocal handle
            producer.flush(0.5)
            if handle.error is not None:  # reported at once and not after the delivery time-out of two minutes
                handle = producer.send(topic, key=None, value="new", partition=1)
            return handle.done and handle.error is None

        eventually(written, timeout_s=PATIENCE_S, what="a record to be written", poll_s=0.001)
