"""Memory of a consumer that is not polled: bounded in bytes, for any backlog at the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.fetch import thread as fetch_module
from fleet_consumer.fetch.thread import FetchThread
from tests.broker.members import create_topic, iterate, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

QUEUE_KIB = 8_192
BOUND_MIB = 40
"""The queue's 8 MiB, one or two answers of the broker, and the allocators' overhead. More is
written: a record of ten bytes takes some hundred in a client."""


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.parametrize(("size", "count"), [(10, 200_000), (10_000, 8_000), (999_000, 80)])
def test_absent_user_grows_no_memory_and_loses_nothing(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    """Back-pressure by not reading: librdkafka fills its queue and stops, and no other buffer is in front of it."""
    topic = create_topic(broker.bootstrap, 1)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": count})
    for number in range(count):
        producer.produce(topic, bytes(size), str(number).encode(), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    del producer
    monkeypatch.setattr(fetch_module, "SERVE_S", 0.1)
    served, serve = 0, FetchThread._serve

    def counted(self: FetchThread) -> None:
        nonlocal served
        served += 1
        serve(self)

    monkeypatch.setattr(FetchThread, "_serve", counted)
    properties = {"queued.max.messages.kbytes": str(QUEUE_KIB)}
    consumer = Consumer(settings(broker.bootstrap, unique("group"), properties=properties))
    try:
        before = resident_mib()
        consumer.subscribe([topic])
        first = eventually(lambda: consumer.poll(0.1), what="the first records")
        away_since = served
        # Time enough to fetch all of it many times over without the limit.
        eventually(lambda: served - away_since >= 30, what="the fetch thread to serve its library")
        assert resident_mib() - before < BOUND_MIB
        offsets = [record.offset for record in first]
        offsets += [record.offset for record in iterate(consumer, count - len(offsets))]
        assert offsets == list(range(count))
        assert consumer.position(TopicPartition(topic, 0)) == count
    finally:
        consumer.close()
