"""The vote for an assignor, and mixed groups: our members with other libraries' in one group."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import TopicPartition

from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import find_java
from fleet_consumer.group.errors import InconsistentProtocol
from tests.broker.members import Member, await_records, await_shares, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually


def test_m3_group_uses_the_assignor_that_all_share_and_refuses_who_shares_none(broker: KafkaBroker) -> None:
    """Three members listing [range, roundrobin], [roundrobin, range], [roundrobin] use roundrobin; a fourth that
    lists only sticky is refused with a clear error, and the other three go on."""
    topic, group = create_topic(broker.bootstrap, 6), unique("group")

    def member(*assignors: str) -> Member:
        return Member(settings(broker.bootstrap, group, assignors=assignors), [topic])

    with member("range", "roundrobin") as a, member("roundrobin", "range") as b, member("roundrobin") as c:
        await_shares([a, b, c], topic, 6)
        assert {one.membership.protocol for one in (a, b, c)} == {"roundrobin"}
        generation = a.membership.generation
        stranger = member("sticky")
        eventually(lambda: stranger.error, timeout_s=15, what="the stranger to be refused")
        assert isinstance(stranger.error, InconsistentProtocol)
        assert group in str(stranger.error)
        assert "assignor" in str(stranger.error)
        stranger.stop()
        await_records([a, b, c], produce(broker.bootstrap, topic, 6, 10))
        assert {one.membership.generation for one in (a, b, c)} == {generation}


@contextmanager
def librdkafka_member(bootstrap: str, group: str, topic: str) -> Iterator[set[int]]:
    """A member of librdkafka's own; the set holds what it owns."""
    owned: set[int] = set()
    consumer = LibrdkafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
    )

    def assigned(_consumer: LibrdkafkaConsumer, parts: list[TopicPartition]) -> None:
        owned.update(part.partition for part in parts)

    def revoked(_consumer: LibrdkafkaConsumer, _parts: list[TopicPartition]) -> None:
        owned.clear()

    stop = threading.Event()

    def run() -> None:
        consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
        while not stop.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield owned
    finally:
        stop.set()
        thread.join(20)


def test_group_mixed_with_librdkafka_shares_whoever_leads(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    with librdkafka_member(broker.bootstrap, group, topic) as theirs:
        eventually(lambda: len(theirs) == 4, timeout_s=20, what="librdkafka to own all")
        with Member(settings(broker.bootstrap, group), [topic]) as ours:  # follower of their leader
            eventually(lambda: len(ours.owned) == len(theirs) == 2, timeout_s=20, what="both to share")
            assert not ours.membership.leader
            assert {number for _, number in ours.owned} | theirs == set(range(4))
            with Member(settings(broker.bootstrap, group), [topic]) as also_ours:
                eventually(
                    lambda: len(ours.owned) + len(also_ours.owned) + len(theirs) == 4 and also_ours.owned and theirs,
                    timeout_s=20,
                    what="three to share",
                )
    with (
        Member(settings(broker.bootstrap, group), [topic]) as leader,
        librdkafka_member(broker.bootstrap, group, topic) as theirs,
    ):
        eventually(lambda: len(leader.owned) == len(theirs) == 2, timeout_s=20, what="them to follow our leader")
        assert leader.membership.leader


def test_group_mixed_with_java_shares_and_takes_over_when_java_leaves(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    java = subprocess.Popen(
        [
            str(find_java()),
            *("-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", f"{ensure_kafka_jars()}/*"),
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group),
            *("--command-property", "partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor"),
            *("--command-property", "session.timeout.ms=6000", "--command-property", "heartbeat.interval.ms=300"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        with Member(settings(broker.bootstrap, group), [topic]) as ours:
            eventually(lambda: ours.owned, timeout_s=20, what="our member to join")
            eventually(lambda: len(ours.owned) == 2, timeout_s=40, what="Java to take its half")
            java.terminate()
            await_shares([ours], topic, 4)
    finally:
        java.kill()
        java.communicate()
