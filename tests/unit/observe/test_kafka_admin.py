"""Changes in Kafka: none on another cluster than the one that they were decided for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.net import AllBrokersUnreachable, AnotherCluster, NetworkClient
from fleet_consumer.wire.admin import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from fleet_consumer.wire.topics import MetadataRequest, MetadataResponse, MetadataResponseTopic
from fleet_operator.observe import kafka_admin
from fleet_operator.observe.kafka_admin import KafkaAdmin, Refusal, change_cluster
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
    lambda admin: admin.delete_flow(builders.consumer_group(), had_retries=True, partly=True),
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


class Drained(KafkaAdmin):
    """A cluster with the retry topics of `orders` and their numbers of waiting records, which notes deletions."""

    def __init__(self, waiting: Mapping[str, int | None]) -> None:
        names = [f"_fleet.orders.{name}" for name in ("retry.30s", "retry.1h", "redrive")]
        topics = tuple(MetadataResponseTopic(error_code=0, name=name, partitions=()) for name in names)
        known = MetadataResponse(brokers=(), topics=topics)
        super().__init__(cast("NetworkClient", SimpleNamespace(metadata=lambda *_, **__: known)))
        self.waiting, self.deleted = {**dict.fromkeys(names, 0), **waiting}, list[str]()

    def read_waiting(self, group_id: str, topics: Collection[str]) -> dict[str, int | None]:
        return {topic: self.waiting[topic] for topic in topics}

    def count_records(self, topic: str) -> int | None:
        return 0

    def delete_topics(self, names: Collection[str]) -> list[Refusal]:
        self.deleted += sorted(names)
        return []

    def delete_groups(self, group_ids: Collection[str]) -> list[Refusal]:
        self.deleted += sorted(group_ids)
        return []


@pytest.mark.parametrize("waiting", [1, None])
def test_no_topic_of_a_flow_is_deleted_before_all_are_drained(waiting: int | None) -> None:
    """The record may fail again. If its next topic were gone, its worker would hold it until the drain ends."""
    group = builders.consumer_group(deletion={"retryTopics": "Drain", "group": "Delete"})
    first = "_fleet.orders.retry.30s"
    admin = Drained({first: waiting})
    removal = admin.delete_flow(group, had_retries=True, partly=False)
    assert (admin.deleted, removal.waiting) == ([], {first: waiting})
    admin.delete_flow(group, had_retries=True, partly=True)
    assert admin.deleted == ["_fleet.orders.redrive", "_fleet.orders.retry.1h"]
    admin.waiting[first] = 0
    admin.deleted.clear()
    admin.delete_flow(group, had_retries=True, partly=False)
    assert admin.deleted[-2:] == ["orders", "orders.retry"]
    assert first in admin.deleted
