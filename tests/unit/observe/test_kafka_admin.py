"""Changes in Kafka: none on another cluster than the one that they were decided for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar, cast

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.net import AllBrokersUnreachable, AnotherCluster, NetworkClient
from fleet_consumer.wire.admin import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from fleet_consumer.wire.topics import MetadataRequest
from fleet_operator.observe import kafka_admin
from fleet_operator.observe.kafka_admin import KafkaAdmin, change_cluster
from fleet_operator.observe.observer_pool import Listener, ObserverPool
from fleet_operator.planning.retry.topics import TopicsPlan
from tests.unit.net.clients import connected
from tests.unit.net.scripted_broker import SILENT, ScriptedBroker
from tests.unit.planning import builders

T = TypeVar("T")
CLUSTER = ("ns", "main")
TOPIC = WantedTopic(name="_fleet.orders.retry.30s", partitions=6)
DELETED = DeleteTopicsResponse(responses=(DeletableTopicResult(name=TOPIC.name, error_code=0),))


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        broker.on(DeleteTopicsRequest, lambda _: DELETED)
        yield broker


CHANGES: tuple[Callable[[KafkaAdmin], object], ...] = (
    lambda admin: admin.change_topics(TopicsPlan(create=(TOPIC,)), retry_group="orders.retry"),
    lambda admin: admin.change_topics(TopicsPlan(grow=(TOPIC,)), retry_group="orders.retry"),
    lambda admin: admin.change_topics(TopicsPlan(alter={TOPIC.name: {}}), retry_group="orders.retry"),
    lambda admin: admin.change_topics(TopicsPlan(delete=(TOPIC.name,)), retry_group="orders.retry"),
    lambda admin: admin.delete_flow(builders.consumer_group(), had_retries=True),
    lambda admin: admin.delete_topics([TOPIC.name]),
    lambda admin: admin.delete_groups(["orders"]),
    lambda admin: admin.remove_members("orders", ["shop/orders-0"]),
    lambda admin: admin.read_waiting("orders.retry", [TOPIC.name]),
    lambda admin: admin.count_records(TOPIC.name),
)


@pytest.mark.parametrize("decided_for", ["kafka-1", None])
@pytest.mark.parametrize("change", CHANGES)
def test_another_cluster_is_neither_changed_nor_asked(
    broker: ScriptedBroker, change: Callable[[KafkaAdmin], object], decided_for: str | None
) -> None:
    with connected(broker.address) as client, pytest.raises(AnotherCluster):
        change_cluster(client, decided_for, change)
    assert all(isinstance(asked.request, MetadataRequest) for asked in broker.asked)


async def test_change_goes_to_the_cluster_that_it_was_decided_for(broker: ScriptedBroker) -> None:
    """The addresses of a KafkaCluster may be edited after the decision: the observer is of another cluster then."""
    with connected(broker.address) as client:

        class Pool(ObserverPool):
            async def act(self, cluster: tuple[str, str], run: Callable[[NetworkClient], T]) -> T:
                return run(client)

        pool = Pool(SystemClock(), cast("Listener", None))
        with pytest.raises(AnotherCluster, match="belongs to Kafka cluster scripted and not to kafka-1"):
            await pool.change(CLUSTER, "kafka-1", lambda admin: admin.delete_topics([TOPIC.name]))
        assert await pool.change(CLUSTER, "scripted", lambda admin: admin.delete_topics([TOPIC.name])) == []


def test_change_of_a_slow_cluster_is_not_made_on_another_one_of_the_bootstrap_list(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both take the login and have a topic of the name; the one that was proven does not answer the change in time."""
    monkeypatch.setattr(kafka_admin, "CALL_SECONDS", 0.5)
    with ScriptedBroker() as slow, connected(slow.address, broker.address) as client:
        known = slow.metadata()
        slow.on(MetadataRequest, lambda _: replace(known, cluster_id="slow"))
        slow.on(DeleteTopicsRequest, lambda _: SILENT)
        with pytest.raises(AllBrokersUnreachable):
            change_cluster(client, "slow", lambda admin: admin.delete_topics([TOPIC.name]))
    assert not [asked for asked in broker.asked if isinstance(asked.request, DeleteTopicsRequest)]
