"""Kafka topics and groups after the deletion of a ConsumerGroup, on a real API server and a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from tests.apiserver import objects
from tests.apiserver.client import NotFoundError
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.apiserver.test_retry_fleet import commit, produce, start_fleet, topics_of, wait_event, wait_topics
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

MakeSite = Callable[..., Site]
FINALIZER = "consumerfleet.io/retry-topics"
CLUSTER_FINALIZER = "consumerfleet.io/groups"
ALL = {"retry.5s", "retry.1h", "redrive", "failed"}


def is_gone(here: Site, plural: str = "consumergroups", name: str = "flights") -> bool:
    try:
        here.get(plural, name)
    except NotFoundError:
        return True
    return False


def delete(here: Site) -> None:
    here.kubectl("delete", "kcg/flights", "--wait=false")
    eventually(lambda: is_gone(here), timeout_s=90, what="the ConsumerGroup to be gone")


def groups_of(here: Site, broker: KafkaBroker) -> set[str]:
    """The Kafka groups of the fleet."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups().result(20)
    return {found.group_id for found in listed.valid if found.group_id.startswith(f"{here.name}.")}


def started(here: Site, broker: KafkaBroker, **deletion: object) -> None:
    start_fleet(here, broker, "5s", "1h", deletion=deletion)
    here.wait_ready_replicas(1)
    wait_topics(here, broker, ALL)
    eventually(
        lambda: not is_gone(here, "statefulsets", "flights-fleet-retry"), timeout_s=PATIENCE_S, what="retry workers"
    )


def test_by_default_everything_is_kept_and_an_event_counts_waiting_records(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("keep")
    started(here, broker)
    assert "finalizers" not in here.get("consumergroups", "flights")["metadata"]
    produce(broker, f"_fleet.{here.name}.flights.retry.1h", 4)

    def counted() -> bool:
        return bool(here.status("consumergroups", "flights").get("retry", {}).get("waiting") == 4)

    eventually(counted, timeout_s=PATIENCE_S, what="4 waiting records")
    delete(here)
    wait_event(here, "RecordsKept", "4 wait in retry topics")
    assert topics_of(here, broker) == ALL
    here.kubectl("delete", "kcl/main", "--timeout=10s")


def test_delete_removes_all_topics_and_groups(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("delete")
    started(here, broker, group="Delete", retryTopics="Delete")
    assert here.get("consumergroups", "flights")["metadata"]["finalizers"] == [FINALIZER]
    produce(broker, f"_fleet.{here.name}.flights.retry.1h", 3)
    commit(broker, f"{here.name}.flights", "flights", 0)
    assert groups_of(here, broker) == {f"{here.name}.flights"}
    delete(here)
    wait_topics(here, broker, set())
    eventually(lambda: groups_of(here, broker) == set(), timeout_s=PATIENCE_S, what="no groups")
    wait_event(here, "DeletedInKafka", "retry.1h")


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "while no operator ran"])
def test_orphaned_fleet_keeps_its_topics(site: MakeSite, broker: KafkaBroker, unseen: bool) -> None:
    """Its workers run on, and go on writing to them. The garbage collector, in whose place the test acts, has taken the
    owner references off before an operator reconciles, or not yet."""
    here = site("orphaned")
    started(here, broker, group="Delete", retryTopics="Delete")
    if unseen:
        for name in ("flights-fleet", "flights-fleet-retry"):
            here.kubectl("patch", f"sts/{name}", "--type=merge", "--patch", '{"metadata": {"ownerReferences": null}}')
        here.kubectl("delete", "kcg/flights", "--wait=false")
    else:
        here.kubectl("delete", "kcg/flights", "--cascade=orphan", "--wait=false")

    def released() -> bool:
        return is_gone(here) or here.get("consumergroups", "flights")["metadata"]["finalizers"] == ["orphan"]

    eventually(released, timeout_s=PATIENCE_S, what="the ConsumerGroup to be released")
    wait_event(here, "DeletionGivenUp", "--cascade=orphan")
    assert topics_of(here, broker) == ALL
    if not is_gone(here):
        here.kubectl("patch", "kcg/flights", "--type=merge", "--patch", '{"metadata": {"finalizers": null}}')


def test_drain_waits_for_the_retry_workers_and_keeps_the_failed_topic(site: MakeSite, broker: KafkaBroker) -> None:
    """Nothing runs in the pods here: the test commits in place of the retry workers."""
    here = site("drain")
    started(here, broker, retryTopics="Drain")
    topic = f"_fleet.{here.name}.flights.retry.5s"
    produce(broker, topic, 1)
    produce(broker, f"_fleet.{here.name}.flights.failed", 2)
    here.kubectl("delete", "kcg/flights", "--wait=false")

    def draining() -> bool:
        replicas = [
            here.get("statefulsets", name)["spec"]["replicas"] for name in ("flights-fleet", "flights-fleet-retry")
        ]
        return replicas == [0, 1]

    eventually(draining, timeout_s=PATIENCE_S, what="only retry workers")
    commit(broker, f"{here.name}.flights.retry", topic, 1)
    eventually(lambda: is_gone(here), timeout_s=90, what="the ConsumerGroup to be gone")
    wait_topics(here, broker, {"failed"})
    wait_event(here, "RecordsKept", "2 records stay")


def test_drain_times_out_and_keeps_waiting_records(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("drain")
    started(here, broker, retryTopics="Drain", group="Delete", timeoutSeconds=3)
    produce(broker, f"_fleet.{here.name}.flights.retry.1h", 2)
    delete(here)
    wait_topics(here, broker, {"retry.1h", "failed"})
    wait_event(here, "DrainTimedOut", f"2 in _fleet.{here.name}.flights.retry.1h")


def test_deletion_is_carried_out_when_the_cluster_is_deleted_first(site: MakeSite, broker: KafkaBroker) -> None:
    """As `kubectl delete -f`, `helm uninstall` and the end of a namespace do it."""
    here = site("emptied")
    started(here, broker, retryTopics="Delete", group="Delete")
    assert here.get("kafkaclusters", "main")["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    here.kubectl("delete", "kcl/main", "kcg/flights", "--wait=false")
    eventually(lambda: is_gone(here, "kafkaclusters", "main"), timeout_s=90, what="the KafkaCluster to be gone")
    assert is_gone(here)
    wait_topics(here, broker, set())


def test_object_made_from_an_exported_manifest_with_our_finalizer_can_be_deleted(site: MakeSite) -> None:
    """Its creator owns the finalizer next to us, and others may have their own."""
    here = site("exported")
    exported = objects.group(here.name, deletion={"group": "Delete"})
    here.apply({**exported, "metadata": {**exported["metadata"], "finalizers": [FINALIZER, "example.org/theirs"]}})
    eventually(
        lambda: here.status("consumergroups", "flights").get("conditions"), timeout_s=PATIENCE_S, what="a status"
    )
    here.kubectl("delete", "kcg/flights", "--wait=false")

    def left() -> bool:
        return bool(here.get("consumergroups", "flights")["metadata"]["finalizers"] == ["example.org/theirs"])

    eventually(left, timeout_s=PATIENCE_S, what="our finalizer to be gone, and theirs to be there")
    here.kubectl("patch", "kcg/flights", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    eventually(lambda: is_gone(here), timeout_s=PATIENCE_S, what="the ConsumerGroup to be gone")


def test_finalizer_follows_the_deletion_options(site: MakeSite) -> None:
    here = site("request")

    def finalizers() -> list[str]:
        return list(here.get("consumergroups", "flights")["metadata"].get("finalizers", ()))

    here.apply(objects.group(here.name, deletion={"group": "Delete"}))
    eventually(lambda: finalizers() == [FINALIZER], timeout_s=PATIENCE_S, what="the finalizer")
    here.apply(objects.group(here.name, deletion={"group": "Keep"}))
    eventually(lambda: finalizers() == [], timeout_s=PATIENCE_S, what="no finalizer")
