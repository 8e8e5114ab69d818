"""`__consumer_offsets` and an operator on real brokers: created as asked, or left alone with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from fleet_consumer.net import ConnectionSettings, NetworkClient
from fleet_operator.observe import live_reads
from fleet_operator.observe.kafka_admin import change_cluster
from fleet_operator.planning.observation import ClusterObservation
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Operator, Site, make_topic
from tests.apiserver.nodes import Nodes
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_topics import make_topics
from tests.support.waiting import eventually
from tests.support.writing import SureProducer
from tests.unit.planning.builders import kafka_cluster

OFFSETS = "__consumer_offsets"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
FEW = {"offsets.topic.num.partitions": "10"}
SOON_S = 60.0
"""Less than the interval at which objects are reconciled without an event."""
ONE_IN_SYNC = {"min.insync.replicas": "1"}


@pytest.fixture(scope="module")
def running(quiet_api: ApiServer) -> Iterator[Operator]:
    with Operator(quiet_api) as operator, Nodes(str(quiet_api.kubeconfig)):
        yield operator


def poll(bootstrap: str) -> ClusterObservation:
    """The topic and the brokers' settings, as Kafka describes them."""
    client = NetworkClient(ConnectionSettings(bootstrap_servers=tuple(bootstrap.split(",")), client_id="truth"))
    try:
        return live_reads.read_offsets_topic(client)
    finally:
        client.close()


def configs(bootstrap: str) -> dict[str, str]:
    """All settings of the topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, OFFSETS)]).values()
    return {name: str(entry.value) for name, entry in found.result(60).items()}


def state(bootstrap: str) -> tuple[tuple[tuple[int, ...], ...], dict[str, str]]:
    """Everything about the topic that anybody could change: each partition's replicas, and all settings."""
    topic = poll(bootstrap).offsets_topic
    assert topic is not None
    return topic.replicas, configs(bootstrap)


def sized(site: Site, status: str, reason: str) -> str:
    return str(
        site.wait_condition("kafkaclusters", "main", "OffsetsTopicSized", status=status, reason=reason)["message"]
    )


def consume(bootstrap: str, group_id: str, topic: str = "flights") -> int:
    """Read one record as a member of a group, and commit it; returns the partition."""
    producer = SureProducer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x")
    assert producer.flush(60) == 0
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    reader.subscribe([topic])
    try:
        message = eventually(
            lambda: reader.poll(0.5), timeout_s=PATIENCE_S, what=f"a record for {group_id}", poll_s=0.0
        )
        assert message is not None
        assert message.error() is None
        reader.commit(message=message, asynchronous=False)
        partition = message.partition()
        assert partition is not None
        return partition
    finally:
        reader.close()


@pytest.mark.timeout(600)
def test_topic_is_created_as_asked_and_later_only_its_settings_are_corrected(
    running: Operator, quiet_site: Callable[..., Site]
) -> None:
    site = quiet_site("sized")
    with KafkaBroker(properties=FEW) as broker:
        make_topic(broker, "flights")
        site.apply(
            objects.handler_source(site.name),
            objects.cluster(site.name, broker.bootstrap, offsetsTopic={"manage": "Provision", "partitions": 50}),
            objects.group(site.name),
        )
        message = sized(site, "False", "BrokerConfigMismatch")
        assert "offsets.topic.num.partitions is 10" in message
        site.wait_condition("consumergroups", "flights", "Ready", status="False", reason="OffsetsTopicAbsent")
        assert poll(broker.bootstrap).lacks_offsets_topic, "neither the operator nor its polls may have it created"

        wanted = {"manage": "Provision", "partitions": 10, "segmentBytes": 2_097_152}
        site.apply(objects.cluster(site.name, broker.bootstrap, offsetsTopic=wanted))
        sized(site, "True", "AsWanted")
        made, settings = state(broker.bootstrap)
        assert [len(replicas) for replicas in made] == [1] * 10
        assert settings["cleanup.policy"] == "compact"
        assert settings["segment.bytes"] == "2097152"
        assert settings["compression.type"] == "producer"
        names = [f"{site.name}-{number}" for number in range(20)]
        with ThreadPoolExecutor(4) as pool:
            assert len(list(pool.map(lambda name: consume(broker.bootstrap, name), names))) == 20
        eventually(
            lambda: site.condition("consumergroups", "flights", "Ready").get("reason") != "OffsetsTopicAbsent",
            timeout_s=PATIENCE_S,
            what="the fleet to be let go",
        )
        events = site.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}")
        assert "OffsetsTopicCreated" in events

        alter(broker.bootstrap, {"cleanup.policy": "delete"})
        site.apply(objects.cluster(site.name, broker.bootstrap, offsetsTopic=wanted | {"manage": "Observe"}))
        site.apply(
            objects.cluster(site.name, broker.bootstrap, name="other", offsetsTopic=wanted | {"manage": "Observe"})
        )
        before = state(broker.bootstrap)
        site.wait_condition("kafkaclusters", "other", "OffsetsTopicSized", status="False", reason="NotCompacted")
        assert "cleanup.policy=delete" in sized(site, "False", "NotCompacted")
        assert state(broker.bootstrap) == before, "observed, and nothing touched"

        site.apply(objects.cluster(site.name, broker.bootstrap, offsetsTopic=wanted | {"partitions": 20}))
        assert "set spec.offsetsTopic.partitions to 10" in sized(site, "False", "PartitionsDiffer")
        assert state(broker.bootstrap) == before, "with another number than the spec's nothing is touched"

        site.apply(objects.cluster(site.name, broker.bootstrap, offsetsTopic=wanted))
        sized(site, "True", "AsWanted")
        assert state(broker.bootstrap) == (made, settings), "corrected, and nothing else"


def alter(bootstrap: str, settings: dict[str, str]) -> None:
    """Set these settings of the topic, and leave the others."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


@pytest.mark.timeout(900)
def test_three_brokers_one_of_another_mind_too_few_replicas_and_a_lost_broker(
    running: Operator, quiet_site: Callable[..., Site]
) -> None:
    site = quiet_site("sized-three")
    cluster = KafkaCluster(properties=ONE_IN_SYNC)  # six partitions, three replicas
    odd = cluster.brokers[3]
    own = odd.directory / "server.properties"
    own.write_text(own.read_text() + "\noffsets.topic.num.partitions=7\n")
    with cluster:
        wanted: dict[str, Any] = {"manage": "Provision"}
        site.apply(
            objects.cluster(site.name, cluster.bootstrap, bootstrapServers=servers(cluster), offsetsTopic=wanted)
        )
        message = sized(site, "False", "BrokerConfigMismatch")
        assert "6 (brokers 1, 2), 7 (broker 3)" in message
        assert poll(cluster.bootstrap).lacks_offsets_topic

        # An administrator creates it with one replica, and sets the odd broker right.
        make_topics(AdminClient({"bootstrap.servers": cluster.bootstrap}), [NewTopic(OFFSETS, 6, 1)])
        odd.stop()
        own.write_text(own.read_text().replace("offsets.topic.num.partitions=7", "offsets.topic.num.partitions=6"))
        odd.start()
        sized(site, "False", "ReplicationTooLow")
        before = state(cluster.bootstrap)
        eventually(
            lambda: "reassignment" in site.status("kafkaclusters", "main")["offsetsTopic"],
            timeout_s=PATIENCE_S,
            what="a plan for the missing replicas",
        )
        assert state(cluster.bootstrap)[0] == before[0], "replicas are never touched"
        plan = site.status("kafkaclusters", "main")["offsetsTopic"]["reassignment"]
        assert len(json.loads(plan)["partitions"]) == 6

        site.wait_condition("kafkaclusters", "main", "CoordinatorsAvailable", status="True", reason="AllCoordinated")
        lost = next(iter(dict.fromkeys(replicas[0] for replicas in before[0])))
        cluster.brokers[lost].kill()
        found = site.wait_condition(
            "kafkaclusters", "main", "CoordinatorsAvailable", status="False", reason="PartitionsOffline"
        )
        assert f"start the brokers that host these partitions: {lost}" in found["message"]
        assert site.status("kafkaclusters", "main")["brokerCount"] == 2
        assert site.status("kafkaclusters", "main")["offsetsTopic"]["partitions"] == 6
        cluster.brokers[lost].start()
        site.wait_condition("kafkaclusters", "main", "CoordinatorsAvailable", status="True", reason="AllCoordinated")

        path = odd.directory / "plan.json"
        path.write_text(site.status("kafkaclusters", "main")["offsetsTopic"]["reassignment"])
        arguments = (
            "--bootstrap-server",
            cluster.brokers[1].bootstrap,
            "--reassignment-json-file",
            str(path),
            "--execute",
        )
        odd.tool(REASSIGN, *arguments)
        site.wait_condition("kafkaclusters", "main", "OffsetsTopicSized", status="True", reason="AsWanted")
        after = poll(cluster.bootstrap).offsets_topic
        assert after is not None
        assert {len(replicas) for replicas in after.replicas} == {3}
        assert [replicas[0] for replicas in after.replicas] == [replicas[0] for replicas in before[0]]


def servers(cluster: KafkaCluster) -> list[str]:
    return [broker.bootstrap for broker in cluster.brokers.values()]


@pytest.mark.timeout(300)
def test_topic_of_a_fresh_cluster_is_there_before_its_first_fleet(
    running: Operator, quiet_site: Callable[..., Site]
) -> None:
    site = quiet_site("sized-fresh")
    with KafkaBroker(properties=FEW) as broker:
        make_topic(broker, "flights")
        site.apply(
            objects.handler_source(site.name),
            objects.cluster(
                site.name, broker.bootstrap, offsetsTopic={"manage": "Provision", "segmentBytes": 3_145_728}
            ),
            objects.group(site.name),
        )
        site.wait_condition(
            "kafkaclusters", "main", "OffsetsTopicSized", status="True", reason="AsWanted", timeout_s=SOON_S
        )
        replicas, settings = state(broker.bootstrap)
        assert (len(replicas), settings["segment.bytes"], settings["cleanup.policy"]) == (10, "3145728", "compact")
        consume(broker.bootstrap, f"{site.name}.flights")
        eventually(lambda: replicas_of(site) == 1, timeout_s=PATIENCE_S, what="the fleet to start")
        with KafkaBroker(properties=FEW) as other:
            site.apply(objects.cluster(site.name, other.bootstrap, offsetsTopic={"manage": "Provision"}))
            site.wait_condition("kafkaclusters", "main", "Ready", status="False", reason="ClusterIdChanged")
            eventually(lambda: replicas_of(site) == 0, timeout_s=PATIENCE_S, what="the fleet to be stopped")
            assert poll(other.bootstrap).lacks_offsets_topic, "nothing is created on another cluster"
            site.apply(objects.cluster(site.name, broker.bootstrap, offsetsTopic={"manage": "Provision"}))
            site.wait_condition("kafkaclusters", "main", "Ready", status="True", reason="Reached")
            eventually(lambda: replicas_of(site) == 1, timeout_s=PATIENCE_S, what="the fleet to run again")


def replicas_of(site: Site) -> int | None:
    """The wanted workers; None without a StatefulSet."""
    found = site.every("statefulsets")
    return int(found[0]["spec"]["replicas"]) if found else None


@pytest.mark.timeout(300)
def test_two_operators_that_create_it_at_once_create_one() -> None:
    """Leaders that overlap decide the same, and the slower one finds it there."""
    spec = kafka_cluster(offsetsTopic={"manage": "Provision", "segmentBytes": 2_097_152}).spec.offsets_topic

    def provision(broker: KafkaBroker) -> list[str]:
        client = NetworkClient(ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="operator"))
        try:
            cluster_id = client.metadata((), timeout_s=10.0).cluster_id
            done = change_cluster(client, cluster_id, lambda admin: admin.provision_offsets_topic(spec))
            assert done.refusals == []
            return list(done.changed)
        finally:
            client.close()

    with KafkaBroker(properties=FEW) as broker, ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: provision(broker), range(4)))
        assert [OFFSETS] in outcomes
        topic = poll(broker.bootstrap).offsets_topic
        assert topic is not None
        assert (topic.partitions, topic.cleanup_policy, topic.segment_bytes) == (10, "compact", 2_097_152)
        assert provision(broker) == [], "nothing is left to do"
