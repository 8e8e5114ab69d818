"""M2: the partition of __consumer_offsets that we compute for a group is its coordinator's."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import find_java
from fleet_consumer.contract.naming import coordinator_partition, java_string_hash
from fleet_consumer.net import ConnectionSettings, Coordinator, NetworkClient, parse_address
from fleet_consumer.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.broker.topics import create_topic, new_name
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

GROUPS = 1_000
PARTITIONS = 50
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz0123456789._-",
    "àéîõüßçñÀÉ",
    "あ漢字한글",
    "😀🚀👩‍🔧🇩🇪𝒳",
    "\x01 \t\n\x7f\uffff",
)
SMALLEST_HASH = "polygenelubricants"
"""Its hash is Java's smallest int, whose absolute value is no int."""
ORACLE = Path(__file__).parent / "JavaGroupPartitions.java"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def groups() -> list[str]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def name() -> str:
        alphabet = "".join(chance.sample(ALPHABETS, chance.randint(1, 3)))
        return "".join(chance.choices(alphabet, k=chance.randint(1, 40)))

    names = {name() for _ in range(2 * GROUPS)}
    return [SMALLEST_HASH, *sorted(names - {SMALLEST_HASH})[: GROUPS - 1]]


@pytest.fixture(scope="module")
def client(broker: KafkaBroker) -> Iterator[NetworkClient]:
    made = NetworkClient(ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="m2"))
    yield made
    made.close()


def found_coordinators(client: NetworkClient, groups: list[str]) -> dict[str, Coordinator]:
    """The broker's answer, once it has created its offsets topic."""

    def all_found() -> dict[str, Coordinator] | None:
        found = client.find_coordinators(groups, timeout_s=PATIENCE_S)
        known = {group: answer for group, answer in found.items() if isinstance(answer, Coordinator)}
        return known if len(known) == len(groups) else None

    return eventually(all_found, timeout_s=PATIENCE_S, what="a coordinator for every group") or {}


def test_m2_hash_and_partition_are_those_of_the_jvm(groups: list[str]) -> None:
    answer = subprocess.run(
        [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", f"{ensure_kafka_jars()}/*", str(ORACLE), str(PARTITIONS)],
        input="".join(group.encode().hex() + "\n" for group in groups).encode(),
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    theirs = [tuple(map(int, line.split())) for line in answer.stdout.decode().splitlines()]
    assert len(theirs) == GROUPS
    assert [(java_string_hash(group), coordinator_partition(group, PARTITIONS)) for group in groups] == theirs


def test_m2_leader_of_the_computed_partition_is_the_brokers_coordinator(
    client: NetworkClient, groups: list[str]
) -> None:
    found = found_coordinators(client, groups)
    metadata = client.metadata(["__consumer_offsets"], timeout_s=PATIENCE_S)
    leaders = {partition.partition_index: partition.leader_id for partition in metadata.topics[0].partitions}
    assert len(leaders) == PARTITIONS
    for group in groups:
        leader = leaders[coordinator_partition(group, PARTITIONS)]
        assert found[group] == Coordinator(leader, client.brokers[leader])


def test_m2_commits_of_a_group_are_written_to_the_computed_partition(
    broker: KafkaBroker, client: NetworkClient, groups: list[str]
) -> None:
    """With one broker every leader is the same; the place of the records is proof even with one broker."""
    topic = create_topic(client, new_name("m2"), partitions=1)
    found_coordinators(client, groups)
    position = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    asked = [
        client.send(
            parse_address(broker.bootstrap),
            OffsetCommitRequest(
                group_id=group,
                member_id="",
                topics=(OffsetCommitRequestTopic(name=topic, partitions=(position,)),),
            ),
        )
        for group in groups
    ]
    while not all(call.done for call in asked):
        client.poll(PATIENCE_S)
    assert {call.response.topics[0].partitions[0].error_code for call in asked} == {0}

    expected = {group: coordinator_partition(group, PARTITIONS) for group in groups}
    assert written_partitions(broker, topic, len(groups)) == expected


def written_partitions(broker: KafkaBroker, topic: str, count: int) -> dict[str, int]:
    """The partition of __consumer_offsets that holds each group's commits for `topic`, read by another client."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "m2-reader", "enable.auto.commit": False})
    found: dict[str, int] = {}

    def read() -> bool:
        for message in reader.consume(500, 1.0):
            key, partition = message.key(), message.partition()
            if partition is not None and isinstance(key, bytes) and key[:2] == b"\0\1" and topic.encode() in key:
                size = int.from_bytes(key[2:4], "big")
                found[key[4 : 4 + size].decode()] = partition
        return len(found) == count

    try:
        reader.assign([TopicPartition("__consumer_offsets", partition, 0) for partition in range(PARTITIONS)])
        eventually(read, timeout_s=PATIENCE_S, what=f"the commits of {count} groups")
    finally:
        reader.close()
    return found
