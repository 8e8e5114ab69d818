"""A ConsumerGroup that is made in another namespace for the Kafka group of the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.apiserver import objects
from tests.apiserver.conftest import Site
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

MakeSite = Callable[[str], Site]
COMMITTED = 7


def commit(broker: KafkaBroker, group: str) -> None:
    admin, part = AdminClient({"bootstrap.servers": broker.bootstrap}), TopicPartition("flights", 0, COMMITTED)

    def committed() -> bool:
        # A fresh broker is still creating the offsets topic.
        try:
            (answer,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [part])]).values()
            return all(each.error is None for each in answer.result().topic_partitions or [])
        except KafkaException as error:
            raise AssertionError(str(error)) from error

    eventually(committed, what=f"the offsets of {group} to be committed", poll_s=0.5)


def committed(broker: KafkaBroker, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    (part,) = [each for each in answer.result().topic_partitions or [] if each.partition == 0]
    return int(part.offset)


def apply_fleet(here: Site, broker: KafkaBroker, group_id: str) -> dict[str, Any]:
    body = objects.group(here.name, group_id=group_id)
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap), body)
    return body


def test_group_in_another_namespace_takes_over_the_commits_and_does_no_run_of_the_past(
    site: MakeSite, broker: KafkaBroker
) -> None:
    """It waits while the former one is there. A run that comes with it may have been done there: nobody knows."""
    former, latter = site("former"), site("latter")
    group_id = f"{former.name}.flights"
    body = apply_fleet(former, broker, group_id)
    former.wait_ready_replicas(1)
    commit(broker, group_id)

    apply_fleet(latter, broker, group_id)
    latter.wait_condition("consumergroups", "flights", "Ready", status="False", reason="GroupIdTaken")
    assert latter.names("pods") == []

    former.client.delete(former.name, body)
    latter.wait_ready_replicas(1)
    head = {"apiVersion": objects.API_VERSION, "kind": "OffsetReset"}
    metadata, spec = {"name": "rewind", "namespace": latter.name}, {"groupRef": {"name": "flights"}, "to": "Earliest"}
    latter.apply({**head, "metadata": metadata, "spec": spec})
    latter.wait_condition("offsetresets", "rewind", "Complete", status="False", reason="MemoryLost")
    assert committed(broker, group_id) == COMMITTED
