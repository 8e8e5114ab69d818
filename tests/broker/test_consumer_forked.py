"""A consumer in a forked child: its threads stayed with the parent, so every call is refused; the parent continues."""

from __future__ import annotations

import os

from fleet_consumer import Consumer
from fleet_consumer.group.errors import ForkedConsumer
from tests.broker.members import create_topic, iterate, produce, settings, unique
from tests.support.kafka import KafkaBroker


def in_a_fork(consumer: Consumer) -> str:
    """The results of a consumer's calls in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        results = []
        try:
            for call in (lambda: consumer.poll(0.1), consumer.commit, lambda: consumer.committed(None)):
                try:
                    call()
                    results.append("nothing")
                except ForkedConsumer as error:
                    results.append(f"{error.reason}: {error}")
            consumer.close()
            results.append("closed")
        finally:
            os.write(writing, "\n".join(results).encode())
            # Not the interpreter's end: pytest's own would follow.
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        told_by_child = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    return told_by_child


def test_forked_child_is_refused_the_consumer_and_the_parent_continues(broker: KafkaBroker) -> None:
    topic = create_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, 1, 3)
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        consumer.subscribe([topic])
        assert len(list(iterate(consumer, 3))) == 3
        results = in_a_fork(consumer).split("\n")
        assert [line.partition(":")[0] for line in results] == ["ForkedConsumer"] * 3 + ["closed"]
        assert f"created by process {os.getpid()}" in results[0]
        produce(broker.bootstrap, topic, 1, 2)
        assert [record.offset for record in iterate(consumer, 2)] == [3, 4]
