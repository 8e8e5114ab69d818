"""Edge functions of workers for retries: writing to a chosen partition, size limits, and other workers' breakers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.breaker_state import open_breaker_state
from fleet_consumer.librdkafka.producer import RecordProducer, SendHandle
from fleet_consumer.net import ConnectionSettings, NetworkClient
from fleet_consumer.wire.errors import KafkaError
from fleet_consumer.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fleet_consumer.worker.breaker.watch import BreakerWatch
from tests.broker.topics import new_name
from tests.broker.workers import Kafka
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

LIMIT = 200_000


def written(producer: RecordProducer, *handles: SendHandle) -> list[str | None]:
    """Wait for these records; return each error."""
    assert producer.flush(60) == 0
    return [None if handle.error is None else handle.error.reason for handle in handles]


@pytest.mark.parametrize("known", [False, True])
def test_a_partition_that_is_not_there_is_halved_until_it_is(kafka: Kafka, known: bool) -> None:
    """The producer knows the topic already, or learns of its partitions while the record waits."""
    topic = new_name("edges")
    kafka.create(topic, partitions=3)
    producer = RecordProducer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    if known:
        assert written(producer, producer.send(topic, key=None, value=b"first", partition=0)) == [None]
    handles = [producer.send(topic, key=None, value=b"%d" % number, partition=number) for number in (2, 5, 11, 3, 12)]
    assert written(producer, *handles) == [None] * 5
    found = {each.value: each.partition for each in kafka.read(topic) if each.value != b"first"}
    assert found == {b"2": 2, b"5": 2, b"11": 2, b"3": 1, b"12": 1}


def test_a_record_that_is_too_large_fails_alone_and_one_that_shrinks_is_written(kafka: Kafka) -> None:
    topic = new_name("edges")
    kafka.create(topic, partitions=1, config={"max.message.bytes": str(LIMIT)})
    producer = RecordProducer(
        {"bootstrap.servers": kafka.bootstrap, "linger.ms": 200, "log_level": 0}, message_max_bytes=LIMIT
    )
    values = (
        [b"small"] * 20 + [os.urandom(2 * LIMIT)] + [b"small"] * 20 + [b"same" * 1_000_000] + [os.urandom(50_000)] * 9
    )
    handles = [producer.send(topic, key=None, value=value, partition=0) for value in values]
    reasons = written(producer, *handles)
    assert reasons[20] == "MSG_SIZE_TOO_LARGE"
    assert [reason for number, reason in enumerate(reasons) if number != 20] == [None] * (len(values) - 1)
    assert [each.value for each in kafka.read(topic)] == values[:20] + values[21:]


class Watched:
    """A group without members that commits from outside, and its watch."""

    def __init__(self, bootstrap: str) -> None:
        self.group = new_name("watched")
        connection = ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="watch")
        self.watch = BreakerWatch(connection, self.group, SystemClock())
        self._client = NetworkClient(connection)

    def commit(self, topic: str, partition: int, metadata: str) -> None:
        """Commit offset 0 with this metadata, as soon as the coordinator takes it."""
        part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=0, committed_metadata=metadata)
        topics = (OffsetCommitRequestTopic(name=topic, partitions=(part,)),)
        request = OffsetCommitRequest(group_id=self.group, member_id="", topics=topics)

        def taken() -> bool:
            coordinator = self._client.find_coordinators([self.group], timeout_s=10)[self.group]
            if isinstance(coordinator, KafkaError):
                return False  # a fresh broker has just begun to make the offsets topic
            answer = self._client.call(coordinator.address, request, timeout_s=10)
            return answer.topics[0].partitions[0].error_code == 0

        eventually(taken, timeout_s=30, what="the coordinator to take a commit")

    def close(self) -> None:
        self.watch.close()
        self._client.close()


@pytest.fixture
def watched(broker: KafkaBroker) -> Iterator[Watched]:
    made = Watched(broker.bootstrap)
    yield made
    made.close()


def test_a_breaker_is_seen_open_and_closed_in_commits_of_the_group(kafka: Kafka, watched: Watched) -> None:
    topic = new_name("edges")
    kafka.create(topic, partitions=2)
    until = SystemClock().wall() + 600
    watched.commit(topic, 0, "somebody else's words")
    watched.commit(topic, 1, open_breaker_state(int(until * 1000)))
    watched.watch.start()
    assert watched.watch.breakers().open_until == 0.0, "nobody asked to follow"
    watched.watch.follow(True)
    eventually(
        lambda: abs(watched.watch.breakers().open_until - until) < 1, timeout_s=30, what="the breaker to be seen open"
    )
    watched.commit(topic, 1, "")
    eventually(lambda: watched.watch.breakers().open_until == 0.0, timeout_s=30, what="the breaker to be seen closed")


def test_watch_of_an_absent_broker_ends_at_once_when_closed() -> None:
    connection = ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="watch")
    watching = BreakerWatch(connection, "nobody", SystemClock())
    watching.follow(True)
    watching.start()
    watching.close()
    assert watching.breakers().open_until == 0.0
    watching.close()
