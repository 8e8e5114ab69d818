"""Changes in Kafka: none on another cluster than the one that they were decided for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_consumer.net import NetworkClient
from fleet_consumer.wire.admin import DeletableTopicResult, DeleteTopicsResponse
from fleet_consumer.wire.topics import MetadataResponse
from fleet_operator.observe.kafka_admin import AnotherClusterError, KafkaAdmin
from fleet_operator.observe.observer_pool import Listener, ObserverPool
from fleet_operator.planning.retry.topics import TopicsPlan
from tests.unit.planning import builders

T = TypeVar("T")
CLUSTER = ("ns", "main")
TOPIC = WantedTopic(name="_fleet.orders.retry.30s", partitions=6)


class Client:
    """A cluster with an id; it answers nothing else unless `answer` is set."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.identified = 0

    def metadata(self, topics: tuple[str, ...] | None, *, timeout_s: float) -> MetadataResponse:
        assert topics == (), "nothing is asked before the cluster is known"
        self.identified += 1
        return MetadataResponse(brokers=(), cluster_id="kafka-2", topics=())

    def call(self, address: None, request: Any, *, timeout_s: float) -> Any:
        assert self.answer is not None, "nothing is asked of another cluster"
        return self.answer


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
    change: Callable[[KafkaAdmin], object], decided_for: str | None
) -> None:
    with pytest.raises(AnotherClusterError, match="cluster kafka-2 answers"):
        change(KafkaAdmin(cast("NetworkClient", Client()), decided_for))


async def test_change_goes_to_the_cluster_that_it_was_decided_for() -> None:
    """The addresses of a KafkaCluster may be edited after the decision: the observer is of another cluster then."""
    client = Client(DeleteTopicsResponse(responses=(DeletableTopicResult(name=TOPIC.name, error_code=0),)))

    class Pool(ObserverPool):
        async def act(self, cluster: tuple[str, str], run: Callable[[NetworkClient], T]) -> T:
            return run(cast("NetworkClient", client))

    pool = Pool(SystemClock(), cast("Listener", None))
    with pytest.raises(AnotherClusterError):
        await pool.change(CLUSTER, "kafka-1", lambda admin: admin.delete_topics([TOPIC.name]))
    assert await pool.change(CLUSTER, "kafka-2", lambda admin: admin.delete_topics([TOPIC.name])) == []
    assert client.identified == 2
