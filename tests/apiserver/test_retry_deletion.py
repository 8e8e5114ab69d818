"""What becomes of the Kafka side when a ConsumerGroup is deleted, on a real API server and a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from tests.apiserver import objects
from tests.apiserver.conftest import Site
from tests.apiserver.reader import NotFoundError
from tests.apiserver.test_retry_fleet import commit, produce, start_fleet, topics_of
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("operator")

MakeSite = Callable[..., Site]
FINALIZER = "consumerfleet.io/retry-topics"
ALL = {"retry.5s", "retry.1h", "redrive", "failed"}


def is_gone(here: Site, plural: str = "consumergroups", name: str = "flights") -> bool:
    try:
        here.get(plural, name)
    except NotFoundError:
        return True
    return False


def delete(here: Site, *, timeout_s: float = 40) -> None:
    here.api.kubectl("-n", here.name, "delete", "kcg/flights", "--wait=false")
    eventually(lambda: is_gone(here), timeout_s=timeout_s, what="the ConsumerGroup to be gone")


def groups_of(here: Site, broker: KafkaBroker) -> set[str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups().result(20)
    return {found.group_id for found in listed.valid if found.group_id.startswith(here.name)}


def event(here: Site, reason: str) -> str:
    """The note of an Event about the fleet."""
    listed = here.api.kubectl("-n", here.name, "get", "events.events.k8s.io", "-o", "json")
    notes = [item["note"] for item in json.loads(listed)["items"] if item["reason"] == reason]
    assert notes, f"no event {reason}"
    return str(notes[0])


def started(here: Site, broker: KafkaBroker, **deletion: object) -> None:
    start_fleet(here, broker, "5s", "1h", deletion=deletion)
    here.wait_ready_replicas(1, timeout_s=60)
    eventually(lambda: topics_of(here, broker) == ALL, timeout_s=20, what="all topics")
    eventually(lambda: not is_gone(here, "statefulsets", "flights-retry"), timeout_s=20, what="retry workers")


def test_without_a_wish_everything_stays_and_an_event_counts_what_waits(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("keep")
    started(here, broker)
    assert "finalizers" not in here.get("consumergroups", "flights")["metadata"]
    produce(broker, f"_fleet.{here.name}.flights.retry.1h", 4)

    def counted() -> bool:
        return bool(here.get("consumergroups", "flights")["status"].get("retry", {}).get("waiting") == 4)

    eventually(counted, timeout_s=60, what="4 waiting records")
    delete(here)
    assert "4 wait in retry topics" in eventually(lambda: event(here, "RecordsKept"), timeout_s=20, what="an Event")
    assert topics_of(here, broker) == ALL


def test_delete_removes_all_topics_and_groups(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("delete")
    started(here, broker, group="Delete", retryTopics="Delete")
    assert here.get("consumergroups", "flights")["metadata"]["finalizers"] == [FINALIZER]
    produce(broker, f"_fleet.{here.name}.flights.retry.1h", 3)
    commit(broker, f"{here.name}.flights", "flights", 0)
    assert groups_of(here, broker) == {f"{here.name}.flights"}
    delete(here)
    eventually(lambda: topics_of(here, broker) == set(), timeout_s=20, what="no topics")
    assert groups_of(here, broker) == set()
    assert "retry.1h" in eventually(lambda: event(here, "DeletedInKafka"), timeout_s=20, what="an Event")


def test_drain_waits_for_the_retry_workers_and_keeps_the_failed_topic(site: MakeSite, broker: KafkaBroker) -> None:
    """Nothing runs in the pods here: the test commits in the retry workers' place."""
    here = site("drain")
    started(here, broker, retryTopics="Drain")
    topic = f"_fleet.{here.name}.flights.retry.5s"
    produce(broker, topic, 1)
    produce(broker, f"_fleet.{here.name}.flights.failed", 2)
    here.api.kubectl("-n", here.name, "delete", "kcg/flights", "--wait=false")

    def draining() -> bool:
        replicas = [here.get("statefulsets", name)["spec"]["replicas"] for name in ("flights", "flights-retry")]
        return replicas == [0, 1]

    eventually(draining, timeout_s=40, what="only retry workers")
    commit(broker, f"{here.name}.flights.retry", topic, 1)
    eventually(lambda: is_gone(here), timeout_s=60, what="the ConsumerGroup to be gone")
    eventually(lambda: topics_of(here, broker) == {"failed"}, timeout_s=20, what="only the failed topic")
    assert "2 records stay" in eventually(lambda: event(here, "RecordsKept"), timeout_s=20, what="an Event")


def test_drain_is_given_up_in_time_and_keeps_what_waits(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("drain")
    started(here, broker, retryTopics="Drain", group="Delete", timeoutSeconds=3)
    produce(broker, f"_fleet.{here.name}.flights.retry.1h", 2)
    delete(here)
    eventually(lambda: topics_of(here, broker) == {"retry.1h", "failed"}, timeout_s=20, what="the topic that waits")
    told = eventually(lambda: event(here, "DrainTimedOut"), timeout_s=20, what="an Event")
    assert f"2 in _fleet.{here.name}.flights.retry.1h" in told


def test_namespace_that_is_emptied_is_not_held_up(site: MakeSite, broker: KafkaBroker) -> None:
    """The KafkaCluster may go before the groups: nobody could do anything in Kafka then."""
    here = site("emptied")
    started(here, broker, retryTopics="Drain", group="Delete")
    produce(broker, f"_fleet.{here.name}.flights.retry.1h", 1)
    here.api.kubectl("-n", here.name, "delete", "kcl/main")
    delete(here)
    told = eventually(lambda: event(here, "DeletionGivenUp"), timeout_s=20, what="an Event")
    assert "KafkaCluster does not exist" in told
    assert topics_of(here, broker) == ALL


def test_finalizer_comes_and_goes_with_the_wish(site: MakeSite) -> None:
    here = site("wish")

    def finalizers() -> list[str]:
        return list(here.get("consumergroups", "flights")["metadata"].get("finalizers", ()))

    here.apply(objects.group(here.name, deletion={"group": "Delete"}))
    eventually(lambda: finalizers() == [FINALIZER], timeout_s=20, what="the finalizer")
    here.apply(objects.group(here.name, deletion={"group": "Keep"}))
    eventually(lambda: finalizers() == [], timeout_s=20, what="no finalizer")
