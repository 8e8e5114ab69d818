"""The network client with a real broker: its metadata, and its behaviour while the broker is unreachable."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from fleet_consumer.net import (
    AllBrokersUnreachable,
    BrokerAddress,
    ConnectFailed,
    ConnectionSettings,
    Coordinator,
    Disconnected,
    NetError,
    NetworkClient,
    RequestTimedOut,
    parse_address,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import ListGroupsRequest
from tests.broker.topics import create_topic, new_name
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PATIENCE_S = 30.0
DEAD = "127.0.0.1:1"
LIST_GROUPS = ListGroupsRequest(states_filter=(), types_filter=())


@pytest.fixture(scope="module")
def fragile() -> Iterator[KafkaBroker]:
    """Its own broker, because the test pauses and kills it."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def client(fragile: KafkaBroker) -> Iterator[NetworkClient]:
    made = NetworkClient(ConnectionSettings(bootstrap_servers=(fragile.bootstrap,), client_id="net"))
    yield made
    made.close()


def test_metadata_equals_that_of_another_client(broker: KafkaBroker) -> None:
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="net"))
    try:
        name = create_topic(client, new_name("metadata"), partitions=7)
        ours = client.metadata([name, "missing"], timeout_s=PATIENCE_S)
    finally:
        client.close()
    theirs = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(name, timeout=PATIENCE_S)
    assert ours.cluster_id == theirs.cluster_id
    assert {node: str(at) for node, at in client.brokers.items()} == {
        node: f"{at.host}:{at.port}" for node, at in theirs.brokers.items()
    }
    found = {topic.name: topic for topic in ours.topics}
    assert found["missing"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {
        partition.partition_index: (partition.leader_id, list(partition.replica_nodes), list(partition.isr_nodes))
        for partition in found[name].partitions
    } == {number: (at.leader, at.replicas, at.isrs) for number, at in theirs.topics[name].partitions.items()}


def test_one_dead_bootstrap_address_does_no_harm(fragile: KafkaBroker) -> None:
    for _ in range(5):
        client = NetworkClient(ConnectionSettings(bootstrap_servers=(DEAD, fragile.bootstrap), client_id="net"))
        try:
            assert client.metadata(timeout_s=PATIENCE_S).brokers
        finally:
            client.close()


def test_coordinators_are_found_once_the_broker_has_its_offsets_topic(client: NetworkClient) -> None:
    def found() -> bool:
        answers = client.find_coordinators(["a", "b"], timeout_s=PATIENCE_S)
        return all(isinstance(answer, Coordinator) for answer in answers.values())

    eventually(found, timeout_s=PATIENCE_S, what="coordinators")


def test_paused_broker_times_out_and_is_used_again_after_it_went_on(
    fragile: KafkaBroker, client: NetworkClient
) -> None:
    address = parse_address(fragile.bootstrap)
    client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S)
    fragile.pause()
    try:
        begun = time.monotonic()
        with pytest.raises(RequestTimedOut, match=r"within 0\.5 s: no response"):
            client.call(address, LIST_GROUPS, timeout_s=0.5)
        # The kernel still accepts connections for it, so the next call hangs in the negotiation.
        with pytest.raises(RequestTimedOut, match="negotiating"):
            client.call(address, LIST_GROUPS, timeout_s=0.5)
        assert 1.0 <= time.monotonic() - begun < 3.0
        with pytest.raises(AllBrokersUnreachable):
            client.metadata(timeout_s=0.5)
    finally:
        fragile.resume()
    assert client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S).error_code == 0


def test_killed_broker_is_reported_at_once_and_found_again_after_its_restart(
    fragile: KafkaBroker, client: NetworkClient
) -> None:
    address = parse_address(fragile.bootstrap)
    client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S)
    fragile.pause()
    call = client.send(address, LIST_GROUPS, timeout_s=PATIENCE_S)
    client.poll(0.1)
    fragile.kill()
    while not call.done:
        client.poll(PATIENCE_S)
    assert isinstance(call.error, Disconnected)
    with pytest.raises(ConnectFailed, match="Connection refused"):
        client.call(address, LIST_GROUPS, timeout_s=PATIENCE_S)
    fragile.start()
    assert client.metadata(timeout_s=PATIENCE_S).brokers


def test_unreachable_cluster_names_the_addresses_tried() -> None:
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(DEAD,), client_id="net"))
    try:
        with pytest.raises(NetError, match=r"broker 127\.0\.0\.1:1 cannot be reached: Connection refused"):
            client.call(BrokerAddress("127.0.0.1", 1), LIST_GROUPS, timeout_s=PATIENCE_S)
    finally:
        client.close()
