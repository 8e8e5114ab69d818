"""`kafka-consumer-groups`, the standard tool, and our API report the same of a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.net import BrokerAddress, ConnectionSettings, Coordinator, NetworkClient
from fleet_consumer.wire.consumer_protocol import decode_assignment
from fleet_consumer.wire.groups import DescribedGroup, DescribeGroupsRequest
from fleet_consumer.wire.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from fleet_consumer.wire.topics import LATEST, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.members import produce, unique
from tests.support.group_tool import describe
from tests.support.kafka_cluster import KafkaCluster
from tests.support.recording import member_settings
from tests.support.waiting import eventually

PARTITIONS, RECORDS = 4, 50
COMMITTED = {0: 10, 1: 50, 2: 0}
"""One behind, one at the end, one at the beginning; the last partition has no commit."""
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Group:
    """A group at rest: two members, one of them static, with the commits of `COMMITTED`."""

    cluster: KafkaCluster
    name: str
    topic: str
    members: tuple[Consumer, Consumer]


@pytest.fixture
def group(cluster: KafkaCluster) -> Iterator[Group]:
    name = unique("tools")
    topic = cluster.create_topic(unique("topic"), PARTITIONS)
    produce(cluster.brokers[1].bootstrap, topic, PARTITIONS, RECORDS)
    members = (
        Consumer(member_settings(cluster.bootstrap, name, session_timeout_ms=30_000)),
        Consumer(member_settings(cluster.bootstrap, name, session_timeout_ms=30_000, group_instance_id="second")),
    )

    def shared() -> bool:
        for member in members:
            member.poll(0.1, max_records=0)
        return all(len(member.assignment()) == PARTITIONS // 2 for member in members)

    try:
        for member in members:
            member.subscribe([topic])
        eventually(shared, timeout_s=30, what="the two members to share")
        for member in members:
            mine = {part: COMMITTED[part.partition] for part in member.assignment() if part.partition in COMMITTED}
            member.commit({part: OffsetAndMetadata(offset) for part, offset in mine.items()}, PATIENCE_S)
        yield Group(cluster, name, topic, members)
    finally:
        for member in members:
            member.close(5, "leave")


@pytest.fixture
def client(cluster: KafkaCluster) -> Iterator[NetworkClient]:
    made = NetworkClient(ConnectionSettings(bootstrap_servers=tuple(cluster.bootstrap.split(",")), client_id="tools"))
    yield made
    made.close()


def table(cluster: KafkaCluster, group: str, *what: str) -> list[dict[str, str]]:
    """The rows of the tool's table, by column title."""
    return describe(cluster.brokers[1], group, *what)


def described(client: NetworkClient, group: str) -> tuple[DescribedGroup, Coordinator]:
    """Our own request for the same."""
    found = client.find_coordinators([group], timeout_s=PATIENCE_S)[group]
    assert isinstance(found, Coordinator)
    answer = client.call(found.address, DescribeGroupsRequest(groups=(group,)), timeout_s=PATIENCE_S)
    return answer.groups[0], found


def committed(client: NetworkClient, at: BrokerAddress, group: str) -> dict[TopicPartition, tuple[int, int]]:
    """Offset and leader epoch of every commit of the group."""
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=None),))
    answer = client.call(at, request, timeout_s=PATIENCE_S).groups[0]
    assert answer.error_code == 0
    return {
        TopicPartition(topic.name, part.partition_index): (part.committed_offset, part.committed_leader_epoch)
        for topic in answer.topics
        for part in topic.partitions
    }


def ends(client: NetworkClient, topic: str) -> dict[TopicPartition, int]:
    """The end offset of each partition, from its leader."""
    metadata = client.metadata([topic], timeout_s=PATIENCE_S)
    found = {}
    for part in metadata.topics[0].partitions:
        asked = ListOffsetsPartition(partition_index=part.partition_index, timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),))
        answer = client.call(client.brokers[part.leader_id], request, timeout_s=PATIENCE_S)
        assert answer.topics[0].partitions[0].error_code == 0
        found[TopicPartition(topic, part.partition_index)] = answer.topics[0].partitions[0].offset
    return found


def test_state_coordinator_and_strategy_are_the_tools(group: Group, client: NetworkClient) -> None:
    (theirs,) = table(group.cluster, group.name, "--state")
    print(theirs)
    ours, coordinator = described(client, group.name)
    assert theirs["STATE"] == ours.group_state == "Stable"
    assert theirs["ASSIGNMENT-STRATEGY"] == ours.protocol_data == "range"
    assert theirs["#MEMBERS"] == str(len(ours.members)) == "2"
    assert theirs["COORDINATOR (ID)"].split() == [str(coordinator.address), f"({coordinator.node_id})"]


def test_members_and_their_assignment_are_the_tools(group: Group, client: NetworkClient) -> None:
    rows = table(group.cluster, group.name, "--members", "--verbose")
    print(rows)
    ours, _ = described(client, group.name)
    by_member = {
        member.member_id: (
            member.client_id,
            member.client_host,
            {
                f"{each.topic}:{','.join(map(str, each.partitions))}"
                for each in decode_assignment(member.member_assignment).assigned_partitions
            },
        )
        for member in ours.members
    }
    assert by_member == {
        row["CONSUMER-ID"]: (row["CLIENT-ID"], row["HOST"], {row["CURRENT-ASSIGNMENT"]}) for row in rows
    }
    # And each member reports the same itself.
    for member in group.members:
        picture = member.membership()
        (mine,) = by_member[picture.member_id][2]
        assert mine == f"{group.topic}:{','.join(map(str, picture.assignment[group.topic]))}"


def test_offsets_and_lag_are_the_tools(group: Group, client: NetworkClient) -> None:
    rows = table(group.cluster, group.name, "--offsets", "--verbose")
    print(rows)
    _, coordinator = described(client, group.name)
    ours, last = committed(client, coordinator.address, group.name), ends(client, group.topic)
    assert {part.partition: offset for part, (offset, _) in ours.items()} == COMMITTED
    owners = {part: member.membership().member_id for member in group.members for part in member.assignment()}
    assert len(rows) == PARTITIONS
    for row in rows:
        part = TopicPartition(row["TOPIC"], int(row["PARTITION"]))
        assert row["LOG-END-OFFSET"] == str(last[part]) == str(RECORDS)
        assert row["CONSUMER-ID"] == owners[part]
        if part in ours:
            assert row["CURRENT-OFFSET"] == str(ours[part][0])
            assert row["LAG"] == str(last[part] - ours[part][0])
        else:
            assert (row["CURRENT-OFFSET"], row["LAG"]) == ("-", "-")


def test_abandoned_group_is_empty_for_both(group: Group, client: NetworkClient) -> None:
    for member in group.members:
        member.close(5, "leave")
    (theirs,) = table(group.cluster, group.name, "--state")
    ours, coordinator = described(client, group.name)
    assert theirs["STATE"] == ours.group_state == "Empty"
    assert ours.members == ()
    rows = table(group.cluster, group.name, "--offsets")
    kept = committed(client, coordinator.address, group.name)
    assert {row["PARTITION"]: row["CURRENT-OFFSET"] for row in rows} == {
        str(part.partition): str(offset) for part, (offset, _) in kept.items()
    }
