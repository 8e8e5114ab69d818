"""A log truncated by an unclean election: consumers continue at the truncation, under every reset policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.net import ConnectionSettings
from tests.broker.members import settings, unique
from tests.faults.conftest import Proxied
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_topics import make_topics
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

POLICIES = ("earliest", "latest")
SHARED, LOST, GROWN = 900, 100, 50
"""Records of both replicas, of the dead leader only, and of the new leader."""
CUT_AT = list(range(SHARED, SHARED + GROWN))
PATIENCE_S = 120.0


@dataclass
class Reader:
    """A consumer of the log, and its records as (offset, value)."""

    consumer: Consumer
    group: str
    policy: str
    seen: list[tuple[int, bytes]] = field(default_factory=list)

    def poll(self) -> None:
        self.seen += [(record.offset, record.value or b"") for record in self.consumer.poll(0.05)]


@dataclass
class CutLog:
    """The truncated log, with consumers that were reading it, and groups whose consumers had ended before."""

    cluster: KafkaCluster
    partition: TopicPartition
    running: dict[str, Reader]
    ended: dict[str, str]

    def reader(self, group: str, policy: str) -> Reader:
        return reader(self.cluster, self.partition.topic, group, policy)


def reader(cluster: KafkaCluster, topic: str, group: str, policy: str) -> Reader:
    brokers = tuple(broker.bootstrap for broker in cluster.brokers.values())
    connection = ConnectionSettings(bootstrap_servers=brokers, client_id="test", request_timeout_ms=5_000)
    changes = {"connection": connection, "auto_offset_reset": policy, "session_timeout_ms": 60_000}
    consumer = Consumer(settings(brokers[0], group, **changes))
    consumer.subscribe([topic])
    return Reader(consumer, group, policy)


def write(cluster: KafkaCluster, topic: str, count: int, word: str) -> None:
    producer = SureProducer({"bootstrap.servers": cluster.bootstrap, "acks": "1", "message.timeout.ms": 120_000})
    for _ in range(count):
        producer.produce(topic, value=word.encode(), partition=0)
    assert producer.flush(120) == 0


def read_to(readers: list[Reader], partition: TopicPartition, offset: int) -> None:
    def there() -> bool:
        for each in readers:
            each.poll()
        positions = {
            each.group: each.consumer.position(partition) for each in readers if partition in each.consumer.assignment()
        }
        assert positions == {each.group: offset for each in readers}, positions
        return True

    eventually(there, timeout_s=PATIENCE_S, what=f"everybody to be at {offset}")


@pytest.fixture(scope="module")
def cut_log(proxied: Proxied) -> Iterator[CutLog]:
    """Offsets 900 to 999 were read and committed; then they were lost, and 900 to 949 are other records now."""
    cluster = proxied.cluster
    topic = unique("cut")
    leader, replica = cluster.brokers[1], cluster.brokers[2]
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    make_topics(admin, [NewTopic(topic, 1, replica_assignment=[[1, 2]], config=config)])
    part = TopicPartition(topic, 0)
    readers = [reader(cluster, topic, unique(f"{kind}-{policy}"), policy) for kind in "re" for policy in POLICIES]
    try:
        read_to(readers, part, 0)
        write(cluster, topic, SHARED, "shared")
        read_to(readers, part, SHARED)
        replica.kill()
        eventually(lambda: cluster.in_sync(topic, 0) == {1}, timeout_s=PATIENCE_S, what="the leader to be alone")
        write(cluster, topic, LOST, "lost")
        read_to(readers, part, SHARED + LOST)
        for each in readers:
            each.consumer.commit(timeout_s=PATIENCE_S)
        running, ended = readers[:2], readers[2:]
        for each in ended:
            each.consumer.close()
        leader.kill()
        replica.start()
        assert cluster.leader_of(topic, 0) is replica
        write(cluster, topic, GROWN, "new")
        yield CutLog(
            cluster, part, {each.policy: each for each in running}, {each.policy: each.group for each in ended}
        )
    finally:
        for each in readers:
            each.consumer.close(5.0)
        cluster.heal()


@pytest.mark.parametrize("policy", POLICIES)
def test_running_consumer_continues_at_the_truncation(cut_log: CutLog, policy: str) -> None:
    reads = cut_log.running[policy]
    seen_before = len(reads.seen)
    read_to([reads], cut_log.partition, SHARED + GROWN)
    assert reads.seen[seen_before:] == [(offset, b"new") for offset in CUT_AT]
    check_report(reads.consumer, cut_log.partition)


@pytest.mark.parametrize("policy", POLICIES)
def test_restarted_consumer_continues_at_the_truncation(cut_log: CutLog, policy: str) -> None:
    reads = cut_log.reader(cut_log.ended[policy], policy)
    try:
        read_to([reads], cut_log.partition, SHARED + GROWN)
        assert reads.seen == [(offset, b"new") for offset in CUT_AT]
        check_report(reads.consumer, cut_log.partition)
    finally:
        reads.consumer.close()


def check_report(consumer: Consumer, partition: TopicPartition) -> None:
    """The truncated records are reported as truncated, and as nothing else."""
    report = consumer.truncations()
    assert (report.count, report.cut) == (1, LOST)
    assert report.last is not None
    assert (report.last.partition, report.last.position, report.last.start) == (partition, SHARED + LOST, SHARED)
    assert consumer.out_of_range().count == 0
