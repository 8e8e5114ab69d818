"""Offsets of suspended fleets on a broker that deletes those of empty groups after a minute, with a real operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer

import fleet_consumer
from fleet_operator.planning import times
from tests.apiserver import objects
from tests.apiserver.conftest import PARTITIONS, PATIENCE_S, Operator, Site, make_topic
from tests.broker.members import settings
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

RETENTION_S = 60.0
FORGETFUL = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "500"}
LONG_S = 2.5 * RETENTION_S
"""Longer than any offsets live that are not kept."""


def use(broker: KafkaBroker, group_id: str) -> None:
    """Commit in all partitions as a member, and leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["flights"])
    done = set[int | None]()

    def read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            consumer.commit(message=message, asynchronous=False)
            done.add(message.partition())
        return len(done) == PARTITIONS

    eventually(read, timeout_s=PATIENCE_S, what=f"commits of {group_id}", poll_s=0.0)
    consumer.close()


def committed(broker: KafkaBroker, group_id: str) -> dict[int, int]:
    with fleet_consumer.Consumer(settings(broker.bootstrap, group_id)) as reader:
        parts = [fleet_consumer.TopicPartition("flights", number) for number in range(PARTITIONS)]
        found = reader.committed(parts, PATIENCE_S)
    return {part.partition: entry.offset for part, entry in found.items() if entry is not None}


@pytest.mark.together
@pytest.mark.timeout(600)
def test_offsets_of_a_suspended_fleet_outlive_their_retention_and_the_operator(
    quiet_api: ApiServer, quiet_site: Callable[..., Site]
) -> None:
    site = quiet_site("kept")
    here = ("--namespace", site.name)
    with KafkaBroker(properties=FORGETFUL) as broker:
        make_topic(broker, "flights")
        producer = SureProducer({"bootstrap.servers": broker.bootstrap})
        for partition in range(PARTITIONS):
            producer.produce("flights", b"x", partition=partition)
        assert producer.flush(60) == 0
        kept, allowed, unguarded = (f"{site.name}.{name}" for name in ("kept", "allowed", "unguarded"))
        for group_id in (kept, allowed, unguarded):
            use(broker, group_id)
        left_at, everything = time.monotonic(), dict.fromkeys(range(PARTITIONS), 1)
        assert committed(broker, kept) == committed(broker, allowed) == committed(broker, unguarded) == everything
        suspended: dict[str, Any] = {"suspend": True}
        site.apply(
            objects.handler_source(site.name),
            objects.cluster(site.name, broker.bootstrap, observeIntervalSeconds=2),
            objects.group(site.name, name="kept", **suspended),
            objects.group(site.name, name="allowed", offsets={"expiry": "Allow"}, **suspended),
        )
        with Operator(quiet_api, *here) as first:
            site.wait_condition("consumergroups", "kept", "OffsetsKept", status="True", reason="Visited")
            site.wait_condition("consumergroups", "allowed", "OffsetsKept", status="False", reason="ExpiryAllowed")
            began = visited(site)
            eventually(lambda: visited(site) > began, timeout_s=RETENTION_S, what="a second visit", poll_s=0.5)
            first.kill()
        with Operator(quiet_api, *here):
            eventually(
                lambda: not committed(broker, unguarded) and not committed(broker, allowed),
                timeout_s=2 * RETENTION_S,
                what="the offsets of groups that nobody keeps to be deleted",
                poll_s=1.0,
            )
            print(f"unguarded offsets were gone {time.monotonic() - left_at:.0f} s after the last member left")
            site.wait_condition("consumergroups", "allowed", "OffsetsKept", status="True", reason="NothingCommitted")
            # The coordinator knows the time of the last visit from its log too, or these offsets would go at once.
            broker.stop()
            broker.start()
            eventually(lambda: time.monotonic() - left_at > LONG_S, timeout_s=LONG_S, what="a long time", poll_s=1.0)
            assert committed(broker, kept) == everything
            print(f"kept offsets are there {time.monotonic() - left_at:.0f} s after the last member left")
            status = site.status("consumergroups", "kept")
            assert status["state"] == "Empty"
            assert status["memberCount"] == 0
            transitions = [(each["from"], each["to"]) for each in status["transitions"]]
            assert all("Rebalance" not in word for pair in transitions for word in pair), "a visit does not show"
            assert site.condition("consumergroups", "kept", "GroupShared")["status"] == "False"
            until = times.from_text(status["offsets"]["safeUntil"])
            assert until is not None
            assert until - visited(site) == RETENTION_S


def visited(site: Site) -> float:
    """The time of the last visit, as the status has it."""
    at = times.from_text(site.status("consumergroups", "kept")["offsets"]["keptAt"])
    assert at is not None
    return at
