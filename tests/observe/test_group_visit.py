"""Visits of empty groups on a real broker: a join and a leave that keep all commits, and never disturb members."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConsumerGroupDescription,
    ResourceType,
)

from fleet_consumer.net import ConnectionSettings, KafkaError, NetworkClient, SaslSettings
from fleet_operator.observe.group_visit import GroupVisit, VisitOutcome
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.observe.subscriptions import CLIENT_ID
from tests.broker.members import create_topic, unique
from tests.observe.polls import PATIENCE_S, watching
from tests.observe.test_kafka_side import grant
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

SESSION_MS = 10_000


@contextmanager
def client_of(bootstrap: str, sasl: SaslSettings | None = None) -> Iterator[NetworkClient]:
    client = NetworkClient(ConnectionSettings(bootstrap_servers=(bootstrap,), client_id=CLIENT_ID, sasl=sasl))
    try:
        yield client
    finally:
        client.close()


def visit(client: NetworkClient, group_id: str) -> VisitOutcome:
    """A whole visit, as the operator makes it in steps."""
    begun = GroupVisit(group_id, SESSION_MS)
    outcome = KafkaAdmin(client).begin_visit(begun)
    while outcome is None:
        client.poll(0.1)
        outcome = begun.advance(client)
    return outcome


def member(bootstrap: str, group_id: str, topic: str) -> Consumer:
    """A consumer of another program that has joined, with its assignment."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group_id, "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS})
    consumer.subscribe([topic])

    def assigned() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    eventually(assigned, timeout_s=PATIENCE_S, what=f"a member of {group_id}", poll_s=0.0)
    return consumer


def read_and_leave(bootstrap: str, group_id: str, topic: str) -> None:
    """Commit as a member, and leave: what the group is like after a fleet was suspended."""
    producer = SureProducer({"bootstrap.servers": bootstrap})
    for partition in range(2):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(60) == 0
    consumer = member(bootstrap, group_id, topic)
    for _ in range(2):
        message = eventually(lambda: consumer.poll(0.5), timeout_s=PATIENCE_S, what="a record", poll_s=0.0)
        assert message is not None
        consumer.commit(message=message, asynchronous=False)
    consumer.close()


def state(bootstrap: str, group_id: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.describe_consumer_groups([group_id]).values()
    described: ConsumerGroupDescription = found.result(60)
    return str(described.state.name)


def test_empty_group_is_joined_and_left_with_all_its_commits(broker: KafkaBroker) -> None:
    topic, group_id = create_topic(broker.bootstrap, 2), unique("group")
    read_and_leave(broker.bootstrap, group_id, topic)
    with watching(broker.bootstrap, group_id, topic, []) as watcher:
        before = watcher.poll().groups[group_id]
        assert (before.state, before.committed) == ("Empty", {(topic, 0): 1, (topic, 1): 1})
        with client_of(broker.bootstrap) as client:
            assert visit(client, group_id) is VisitOutcome.KEPT
        after = watcher.poll().groups[group_id]
    assert (after.state, after.members, after.committed) == ("Empty", (), before.committed)


def test_group_with_members_is_not_joined(broker: KafkaBroker) -> None:
    topic, group_id = create_topic(broker.bootstrap, 2), unique("group")
    read_and_leave(broker.bootstrap, group_id, topic)
    consumer = member(broker.bootstrap, group_id, topic)
    try:
        with client_of(broker.bootstrap) as client:
            for _ in range(3):
                assert visit(client, group_id) is VisitOutcome.NOT_EMPTY
        consumer.poll(0.5)
        assert state(broker.bootstrap, group_id) == "STABLE"
        assert len(consumer.assignment()) == 2
    finally:
        consumer.close()


def test_groups_without_commits_and_groups_that_do_not_exist_are_not_made(broker: KafkaBroker) -> None:
    topic, group_id = create_topic(broker.bootstrap, 2), unique("group")
    with client_of(broker.bootstrap) as client:
        assert visit(client, group_id) is VisitOutcome.NOT_EMPTY
        member(broker.bootstrap, group_id, topic).close()
        assert visit(client, group_id) is VisitOutcome.NO_COMMITS
    assert state(broker.bootstrap, group_id) == "EMPTY", "left as it was"


def test_worker_that_joins_during_a_visit_gets_its_partitions(broker: KafkaBroker) -> None:
    """Both join at once: the worker is not refused, and the visitor's leave gives it the group."""
    topic, group_id = create_topic(broker.bootstrap, 2), unique("group")
    read_and_leave(broker.bootstrap, group_id, topic)
    with client_of(broker.bootstrap) as client:
        begun = GroupVisit(group_id, SESSION_MS)
        assert begun.begin(client) is None
        while not begun._member_id:
            client.poll(0.1)
            begun.advance(client)
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group_id,
            "partition.assignment.strategy": "roundrobin",
        }
        consumer = Consumer(settings | {"enable.auto.commit": False})
        consumer.subscribe([topic])
        try:
            outcome = None
            while outcome is None:
                consumer.poll(0.1)
                client.poll(0.1)
                outcome = begun.advance(client)
            assert outcome is VisitOutcome.KEPT

            def assigned() -> bool:
                consumer.poll(0.1)
                return len(consumer.assignment()) == 2

            eventually(assigned, timeout_s=PATIENCE_S, what="both partitions", poll_s=0.0)
        finally:
            consumer.close()


@pytest.mark.timeout(400)
def test_polls_go_on_during_a_visit_which_they_do_not_show_and_a_missing_right_is_named() -> None:
    """Three seconds of `group.initial.rebalance.delay.ms`, Kafka's default."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": "3000",
    }
    with KafkaBroker(properties=properties, sasl_users={"operator": "secret"}) as broker:
        topic, group_id = create_topic(broker.bootstrap, 2), unique("group")
        read_and_leave(broker.bootstrap, group_id, topic)
        with watching(broker.bootstrap, group_id, topic, []) as watcher:
            begun = GroupVisit(group_id, SESSION_MS)
            assert begun.begin(watcher.client) is None
            polls, began = [watcher.poll()], time.monotonic()
            outcome = None
            while outcome is None:
                polls.append(watcher.poll())
                outcome = begun.advance(watcher.client)
                assert time.monotonic() - began < PATIENCE_S
            assert outcome is VisitOutcome.KEPT
            assert len(polls) > 6, "a poll that waited for the join would have been one of two or three"
        sasl = SaslSettings(mechanism="PLAIN", username="operator", password="secret")
        grant(broker, AclOperation.DESCRIBE, ResourceType.GROUP)
        grant(broker, AclOperation.DESCRIBE, ResourceType.TOPIC)
        with client_of(broker.sasl_bootstrap, sasl) as client, pytest.raises(KafkaError, match="GROUP_AUTHORIZATION"):
            visit(client, group_id)
        assert state(broker.bootstrap, group_id) == "EMPTY"
