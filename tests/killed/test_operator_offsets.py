"""Resets of offsets by an operator on a real API server and a real broker: done once, also by one that is killed.

No worker runs here, for there is no kubelet: the pods are played, and a Kafka consumer of the test stands for a member.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

import fleet_consumer
from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.conditions import find_condition
from fleet_operator.planning import times
from fleet_operator.planning.labels import RESET_FINALIZER
from tests.apiserver import objects
from tests.apiserver.client import Client
from tests.apiserver.conftest import PARTITIONS, Operator, make_topic
from tests.apiserver.nodes import Nodes
from tests.broker.members import settings
from tests.killed import killed_operator
from tests.killed.killed_operator import Moment
from tests.killed.test_operator_killed import Mortal, apply
from tests.observe.polls import PATIENCE_S
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

TOPIC = "declared"
RECORDS = 100
BEFORE = 60
UNTOUCHED = 11
UNDISTURBED = "reset-never-killed"
BEGAN = int(time.time()) - 3600
FROM = times.to_text(BEGAN + 30)
UNTIL = times.to_text(BEGAN + 86_400)


@pytest.fixture(scope="module")
def client(quiet_api: ApiServer) -> Iterator[Client]:
    """An API server with its nodes, without operators of other tests."""
    with Client(quiet_api.kubeconfig) as made, Nodes(str(quiet_api.kubeconfig)):
        yield made


@pytest.fixture(scope="module")
def topic(broker: KafkaBroker) -> str:
    """A topic with a hundred records in each partition, at times of one second after another."""
    make_topic(broker, TOPIC)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            producer.produce(TOPIC, b"x", partition=partition, timestamp=(BEGAN + number) * 1000)
    assert producer.flush(60) == 0
    return TOPIC


def committed(broker: KafkaBroker, group: str) -> dict[int, tuple[int, str]]:
    """The committed offset of each partition, with its metadata: confluent-kafka would read beyond its end, and writes
    a NUL behind it."""
    with fleet_consumer.Consumer(settings(broker.bootstrap, group)) as reader:
        parts = [fleet_consumer.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        found = reader.committed(parts, PATIENCE_S)
    there = {part.partition: entry for part, entry in found.items() if entry is not None}
    return {number: (entry.offset, entry.metadata.rstrip("\0")) for number, entry in there.items()}


def commit(broker: KafkaBroker, group: str, offset: int) -> None:
    """Commit with metadata, as workers do."""
    marker = f"fleet-replay-epoch={offset}"
    parts = [TopicPartition(TOPIC, number, offset, metadata=marker) for number in range(PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def committed() -> bool:
        # A fresh broker is still creating the offsets topic.
        try:
            (answer,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, parts)]).values()
            return all(part.error is None for part in answer.result().topic_partitions or [])
        except KafkaException as error:
            raise AssertionError(str(error)) from error

    eventually(committed, what=f"the offsets of {group} to be committed", poll_s=0.5)


def reset(namespace: str, name: str = "one", **spec: Any) -> dict[str, Any]:
    """With `notAfter`, for the operator knows nothing of what was done for a Kafka group that has commits already."""
    metadata = {"name": name, "namespace": namespace}
    wanted = {"groupRef": {"name": "flights"}, "notAfter": UNTIL, **spec}
    return {"apiVersion": objects.API_VERSION, "kind": "OffsetReset", "metadata": metadata, "spec": wanted}


def fleet(namespace: str, broker: KafkaBroker) -> list[dict[str, Any]]:
    return [
        objects.handler_source(namespace),
        objects.cluster(namespace, broker.bootstrap),
        objects.group(namespace, topics=[TOPIC], replicas=1),
    ]


def act(namespace: str, broker: KafkaBroker) -> list[dict[str, Any]]:
    """The reset is there before its group, which may start no worker before it."""
    return [reset(namespace, to="Time", time=FROM), *fleet(namespace, broker)]


def status_of(client: Client, namespace: str, name: str = "one") -> Mapping[str, Any]:
    """The status of an OffsetReset."""
    found: Mapping[str, Any] = client.get("offsetresets", namespace, name).get("status", {})
    return found


def places(offset: int) -> list[dict[str, Any]]:
    """All partitions at this offset."""
    return [{"topic": TOPIC, "partition": number, "offset": offset} for number in range(PARTITIONS)]


def replicas(client: Client, namespace: str) -> int | None:
    fleets = [each for each in client.list("statefulsets") if each["metadata"]["namespace"] == namespace]
    return int(fleets[0]["spec"]["replicas"]) if fleets else None


def is_done(client: Client, broker: KafkaBroker, namespace: str) -> bool:
    """True when the reset is done, with what was before on record, and the fleet runs."""
    status = status_of(client, namespace)
    assert status.get("phase") == "Succeeded", status
    assert (status["previous"], status["resolved"]) == (places(BEFORE), places(30)), status
    found = committed(broker, f"{namespace}.flights")
    assert {offset for offset, _ in found.values()} == {30}, found
    (metadata,) = {metadata for _, metadata in found.values()}
    assert metadata.startswith("fleet-reset="), "no marker of a worker: a new replay epoch begins"
    assert replicas(client, namespace) == 1
    return True


@pytest.mark.timeout(900)
def test_operator_killed_after_any_write_finishes_the_reset_once(
    quiet_api: ApiServer, client: Client, broker: KafkaBroker, topic: str
) -> None:
    """A group at its first start: its offsets are of an earlier fleet, and no worker may start before the reset."""
    assert topic == TOPIC
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([killed_operator.__name__])
    mortal = Mortal(context, str(quiet_api.kubeconfig), writes_only=True)
    commit(broker, f"{UNDISTURBED}.flights", BEFORE)
    apply(client, [objects.namespace(UNDISTURBED), *act(UNDISTURBED, broker)])
    writes, _ = mortal.count_calls(UNDISTURBED, lambda: is_done(client, broker, UNDISTURBED))
    deaths: dict[str, tuple[int, Moment]] = {f"reset-after-{k}": (k, "after") for k in range(1, writes + 1)}
    others = ["reset-others", *(naming.retry_group(f"{name}.flights") for name in deaths)]
    for name in deaths:
        commit(broker, f"{name}.flights", BEFORE)
    for other in others:
        commit(broker, other, UNTOUCHED)
    apply(client, [objects.namespace(name) for name in deaths])
    apply(client, [body for name in deaths for body in act(name, broker)])
    died = mortal.die_all(deaths)
    print(f"{len(died)} of {len(deaths)} operators died after their write")
    assert len(died) > len(deaths) * 0.6
    with Operator(quiet_api):
        eventually(
            lambda: all(is_done(client, broker, name) for name in deaths),
            timeout_s=240,
            what="every reset to be done",
            poll_s=1.0,
        )
        for name in deaths:
            commit(broker, f"{name}.flights", 77)
        apply(client, [objects.group(name, topics=[TOPIC], replicas=2) for name in deaths])
        eventually(lambda: {replicas(client, name) for name in deaths} == {2}, what="all fleets to be scaled")
    assert {offset for name in deaths for offset, _ in committed(broker, f"{name}.flights").values()} == {77}
    kept = {entry for other in others for entry in committed(broker, other).values()}
    assert kept == {(UNTOUCHED, f"fleet-replay-epoch={UNTOUCHED}")}, "other Kafka groups on the topic are left alone"


@pytest.mark.timeout(400)
def test_members_of_other_programs_are_named_and_a_dry_run_touches_nothing(
    quiet_api: ApiServer, client: Client, broker: KafkaBroker, topic: str
) -> None:
    name = "reset-shared"
    commit(broker, f"{name}.flights", BEFORE)
    apply(client, [objects.namespace(name), *fleet(name, broker)])
    with Operator(quiet_api):
        eventually(lambda: replicas(client, name) == 1, what="the fleet to exist")
        apply(client, [reset(name, "dry", to="Latest", dryRun=True)])

        def is_done() -> bool:
            seen = status_of(client, name, "dry")
            assert seen.get("phase") == "Succeeded", seen
            assert (seen["previous"], seen["resolved"]) == (places(BEFORE), places(RECORDS))
            return True

        eventually(is_done, what="the dry run to be done")
        assert replicas(client, name) == 1
        with Joined(broker, f"{name}.flights", topic):
            apply(client, [reset(name, to="Earliest")])

            def named() -> bool:
                seen = status_of(client, name)
                complete = find_condition(seen.get("conditions", ()), "Complete")
                assert complete is not None, seen
                assert (seen["phase"], complete["reason"]) == ("Pending", "ForeignMembers"), seen
                assert "a-java-program" in complete["message"]
                return True

            eventually(named, what="the foreign member to be named")
            assert replicas(client, name) == 1, "the fleet runs on"
        eventually(
            lambda: status_of(client, name).get("phase") == "Succeeded", timeout_s=120, what="the reset to be done"
        )
        assert {offset for offset, _ in committed(broker, f"{name}.flights").values()} == {0}
        eventually(lambda: replicas(client, name) == 1, what="the fleet to be started again")


def test_reset_with_a_commit_under_way_does_not_keep_a_namespace_that_is_deleted(
    quiet_api: ApiServer, client: Client
) -> None:
    """Its state is gone already, and nothing can be created there any more."""
    name = "reset-deleted"
    body = reset(name, to="Earliest")
    body["metadata"]["finalizers"] = [RESET_FINALIZER]
    apply(client, [objects.namespace(name), body])
    for each in (objects.namespace(name), body):
        client.delete(name if each is body else "", each)
    assert client.get("offsetresets", name, "one")["metadata"]["deletionTimestamp"]
    with Operator(quiet_api):
        eventually(lambda: client.list("offsetresets", name) == [], what="the OffsetReset to go")


class Joined:
    """A consumer of another program, as a member of the group."""

    def __init__(self, broker: KafkaBroker, group_id: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group_id,
                "client.id": "a-java-program",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])

    def __enter__(self) -> None:
        eventually(self._assigned, what="the consumer to have joined", poll_s=0.0)
        # librdkafka's own thread sends the heartbeats; nothing is polled any more, for longer than the test lasts.

    def _assigned(self) -> bool:
        self._consumer.poll(0.2)
        return bool(self._consumer.assignment())

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
