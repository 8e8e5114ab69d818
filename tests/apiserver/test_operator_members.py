"""Static members of removed workers, and members that are not ours, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from fleet_consumer.contract import naming
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

SESSION_MS = 120_000
"""Longer than the test: a member that leaves the group sooner was removed."""


@contextmanager
def member(broker: KafkaBroker, group_id: str, instance_id: str) -> Iterator[None]:
    """A static member of another client library; leaving the context stops it without leaving the group."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group_id,
        "group.instance.id": instance_id,
        "partition.assignment.strategy": "range",
        "session.timeout.ms": SESSION_MS,
    }
    stop = threading.Event()
    consumer = Consumer(settings)
    consumer.subscribe(["flights"])

    def poll() -> None:
        while not stop.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=poll, name=instance_id)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def members_of(broker: KafkaBroker, group_id: str) -> int:
    """The number of members of a Kafka group, by the admin client."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (described,) = admin.describe_consumer_groups([group_id]).values()
    return len(described.result(20).members)


def instance_ids(here: Site) -> list[str]:
    members = here.status("consumergroups", "flights").get("members", ())
    return sorted(member["instanceId"] for member in members)


def test_members_of_removed_workers_leave_and_others_stay(site: Callable[..., Site], broker: KafkaBroker) -> None:
    """Scaled from two to one: ordinal 1 is removed at once; a foreign member is only reported."""
    here = site("members")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.group(here.name, replicas=2))
    uid = here.get("consumergroups", "flights")["metadata"]["uid"]
    group_id = f"{here.name}.flights"
    ours = [naming.instance_id(here.name, "flights", uid, ordinal) for ordinal in (0, 1)]
    here.wait_ready_replicas(2)
    with member(broker, group_id, ours[0]):
        with member(broker, group_id, ours[1]):

            def shared() -> bool:
                ready = here.condition("consumergroups", "flights", "Ready")
                assert (ready["reason"], ready["message"]) == ("FleetReady", "2 of 2 workers are ready"), ready
                status = here.status("consumergroups", "flights")
                seen = (status.get("state"), status.get("memberCount"), status.get("assignor"))
                assert seen == ("Stable", 2, "range"), seen
                owned = sorted(part["ranges"] for entry in status["members"] for part in entry["partitions"])
                assert owned == ["0-2", "3-5"], owned
                return True

            eventually(shared, timeout_s=PATIENCE_S, what="two members that share the topic")
            with member(broker, group_id, "somebody-else"):
                here.wait_condition("consumergroups", "flights", "GroupShared", status="True", reason="ForeignMembers")
        here.kubectl("scale", "kcg/flights", "--replicas=1")
        left = sorted([ours[0], "somebody-else"])
        eventually(lambda: instance_ids(here) == left, timeout_s=PATIENCE_S, what="only ordinal 1 to be taken out")
        here.wait_condition("consumergroups", "flights", "Ready", status="True", reason="FleetReady")


def test_members_of_removed_retry_workers_leave_their_own_group(site: Callable[..., Site], broker: KafkaBroker) -> None:
    """Retry workers have the same instance ids in their own Kafka group; while suspended, all are removed."""
    here = site("retry-members")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.policy(here.name, "5s"), objects.group(here.name, retry=objects.retry(minReplicas=1)))
    uid = here.get("consumergroups", "flights")["metadata"]["uid"]
    here.wait_ready_replicas(1)

    def retry_workers() -> int:
        return int(here.status("consumergroups", "flights").get("retry", {}).get("readyReplicas", 0))

    eventually(lambda: retry_workers() == 1, timeout_s=PATIENCE_S, what="a retry worker")
    group_id = naming.retry_group(f"{here.name}.flights")
    with member(broker, group_id, naming.instance_id(here.name, "flights", uid, 0)):
        eventually(lambda: members_of(broker, group_id) == 1, timeout_s=PATIENCE_S, what="its membership")
    assert members_of(broker, group_id) == 1, "a static member that stops stays for its session"
    here.apply(objects.group(here.name, retry=objects.retry(minReplicas=1), suspend=True))
    eventually(lambda: members_of(broker, group_id) == 0, timeout_s=90, what="its member to be taken out")
