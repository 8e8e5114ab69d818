"""Subscribing by pattern, unsubscribing, enforcing a rebalance: on a real broker."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group.errors import NotSubscribed
from tests.broker.members import (
    Member,
    await_records,
    await_shares,
    committed,
    create_topic,
    delete_topic,
    iterate,
    produce,
    settings,
    unique,
)
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def test_pattern_takes_in_topics_as_they_come_and_go_and_never_internal_or_managed_ones(broker: KafkaBroker) -> None:
    family, group = unique("orders"), unique("group")
    first = create_topic(broker.bootstrap, 2, f"{family}.a")
    create_topic(broker.bootstrap, 1, f"not-{family}.a")
    create_topic(broker.bootstrap, 1, f"{family}.a.more")
    managed = create_topic(broker.bootstrap, 1, f"_fleet.{family}.a")
    pattern = re.compile(rf"(_fleet\.)?{re.escape(family)}\.\w+|__consumer_offsets")
    with (
        Member(settings(broker.bootstrap, group), pattern, commits=False) as a,
        Member(settings(broker.bootstrap, group), pattern, commits=False) as b,
    ):
        await_shares([a, b], first, 2)
        second = create_topic(broker.bootstrap, 2, f"{family}.b")
        wanted = {(topic, number) for topic in (first, second) for number in range(2)}
        eventually(lambda: a.owned | b.owned == wanted, what="the new topic to be shared")
        assert managed not in {topic for topic, _ in a.owned | b.owned}
        written = produce(broker.bootstrap, second, 2, 10)
        await_records([a, b], written)
        assert a.membership.last_rebalance_reason in (
            "the topics that match the subscribed pattern have changed",
            "group is already rebalancing",
            "need to revoke partitions and re-join",
        )
        delete_topic(broker.bootstrap, second)
        await_shares([a, b], first, 2)


def test_pattern_that_matches_nothing_yet_waits_for_the_first_topic(broker: KafkaBroker) -> None:
    family, group = unique("later"), unique("group")
    latest = settings(broker.bootstrap, group, auto_offset_reset="latest")
    with Member(latest, re.compile(re.escape(family))) as member:
        eventually(lambda: member.membership.state == "Stable", what="the member to join with nothing")
        create_topic(broker.bootstrap, 1, family)
        # Records written before the topic was noticed are not skipped under any policy.
        await_records([member], produce(broker.bootstrap, family, 1, 20))


def test_new_subscription_replaces_the_old_one_also_pattern_by_names(broker: KafkaBroker) -> None:
    one, other = create_topic(broker.bootstrap, 1), create_topic(broker.bootstrap, 1)
    with Consumer(settings(broker.bootstrap, unique("group"))) as consumer:
        consumer.subscribe(re.compile(re.escape(one)))
        produce(broker.bootstrap, one, 1, 5)
        produce(broker.bootstrap, other, 1, 5)
        assert {record.topic for record in iterate(consumer, 5)} == {one}
        consumer.subscribe([other])
        assert {record.topic for record in iterate(consumer, 5)} == {other}
        assert consumer.assignment() == {TopicPartition(other, 0)}


@pytest.mark.parametrize("instance_id", [None, "static"])
def test_unsubscribing_gives_back_leaves_and_can_be_followed_by_subscribing(
    broker: KafkaBroker, instance_id: str | None
) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    produce(broker.bootstrap, topic, 2, 5)
    calls: list[tuple[str, int]] = []
    with Consumer(settings(broker.bootstrap, group, group_instance_id=instance_id)) as consumer:

        def revoked(parts: Sequence[TopicPartition]) -> None:
            calls.append(("revoked", len(parts)))
            consumer.commit()

        def subscribe() -> None:
            consumer.subscribe(
                [topic],
                on_assigned=lambda parts: calls.append(("assigned", len(parts))),
                on_revoked=revoked,
            )

        subscribe()
        list(iterate(consumer, 10))
        consumer.unsubscribe()
        assert calls == [("assigned", 2), ("revoked", 2)]
        assert consumer.assignment() == frozenset()
        assert committed(broker.bootstrap, group, topic, 2) == {0: 5, 1: 5}
        with pytest.raises(NotSubscribed):
            consumer.poll(0)
        eventually(
            lambda: consumer.membership().member_id == "" and consumer.membership().state == "Unjoined",
            what="the membership to be given up",
        )
        subscribe()
        produce(broker.bootstrap, topic, 2, 5, first=5)
        assert sorted(record.offset for record in iterate(consumer, 10)) == sorted([5, 6, 7, 8, 9] * 2)


def test_enforced_rebalance_sends_its_reason_and_keeps_the_member(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        with pytest.raises(NotSubscribed):
            consumer.enforce_rebalance()
        consumer.subscribe([topic])
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1], what="an assignment")
        before = consumer.membership()
        consumer.enforce_rebalance("the weather has changed")
        eventually(
            lambda: (consumer.poll(0.1), consumer.membership().generation > before.generation)[1],
            what="another generation",
        )
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1], what="an assignment")
        after = consumer.membership()
        assert (after.member_id, after.last_rebalance_reason) == (before.member_id, "the weather has changed")
    assert "the weather has changed" in broker.log.read_text()
