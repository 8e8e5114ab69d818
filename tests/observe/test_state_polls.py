"""An observer on a real broker: what it sees between its polls, and what that costs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from fleet_consumer.clock import SystemClock
from fleet_consumer.net import ConnectionSettings, NetworkClient
from fleet_operator.observe.observer import Observer
from fleet_operator.observe.state_poll import StatePoll
from fleet_operator.observe.subscriptions import GroupSubscription, ObserverSettings
from fleet_operator.planning.observation import ClusterObservation, GroupObservation
from tests.broker.members import Member, await_shares, create_topic, settings, unique
from tests.observe.polls import commit, polling
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

HOUR_S = 3600.0


class Watched:
    """An observer that polls once an hour; everything after its first poll comes from state polls."""

    def __init__(self, broker: KafkaBroker, group: str, topic: str) -> None:
        self.seen: list[ClusterObservation] = []
        self._group = group
        connection = ObserverSettings(bootstrap_servers=(broker.bootstrap,), interval_seconds=HOUR_S)
        self.observer = Observer("test", connection, SystemClock(), lambda seen: self.seen.append(seen.observation))
        self.observer.watch({group: GroupSubscription(group_id=group, topics=(topic,))})

    def __enter__(self) -> Watched:
        self.observer.start()
        eventually(lambda: bool(self.seen), timeout_s=60, what="the first poll")
        return self

    def __exit__(self, *_: object) -> None:
        self.observer.stop()
        assert self.observer.join(30)

    @property
    def group(self) -> GroupObservation:
        return self.seen[-1].groups[self._group]

    def wait(self, state: str) -> GroupObservation:
        eventually(lambda: self.group.state == state, timeout_s=60, what=f"{state}, not {self.group.transitions}")
        return self.group


def test_states_between_two_polls_are_seen_with_members_and_assignments(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    give_back = threading.Event()
    commit(broker.bootstrap, group, {(topic, 0): 0})
    with Watched(broker, group, topic) as watched:
        assert watched.group.state == "Empty"
        with Member(settings(broker.bootstrap, group), [topic], while_revoking=lambda: give_back.wait(60)) as first:
            await_shares([first], topic, 4)
            assert len(watched.wait("Stable").members) == 1
            with Member(settings(broker.bootstrap, group), [topic]) as second:
                assert watched.wait("PreparingRebalance").transitions[-1].joined_count == 1
                give_back.set()
                await_shares([first, second], topic, 4)
                stable = watched.wait("Stable")
                assert sorted(sorted(m.partitions[topic]) for m in stable.members) == [[0, 1], [2, 3]]
        assert watched.wait("Empty").members == ()
        admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_consumer_groups([group])[group].result()
        ended = watched.wait("Dead")
    words = [each.after for each in ended.transitions]
    assert words[0] == "Empty"
    assert words[-2:] == ["Empty", "Dead"]
    assert len({seen.observed_at for seen in watched.seen}) <= 2, "state polls, and at most the polls of the beginning"


def test_state_poll_asks_each_broker_one_thing_while_nothing_changes(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    commit(broker.bootstrap, group, {(topic, 0): 0})
    with polling(broker.bootstrap, GroupSubscription(group_id=group, topics=(topic,))) as watcher:
        last = watcher.poll()
        client = NetworkClient(ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="state-poll"))
        try:
            client.metadata((), timeout_s=30)
            began = time.process_time()
            for _ in range(20):
                state_poll = StatePoll(client=client, clock=SystemClock(), last=last, stopping=lambda: False)
                assert state_poll.run() is None
            print(f"a state poll costs {(time.process_time() - began) / 20 * 1000:.2f} ms of CPU")
        finally:
            client.close()


def test_group_that_the_new_protocol_took_over_is_unknown_and_not_dead(broker: KafkaBroker) -> None:
    """KIP-848. DescribeGroups answers that it does not exist, and its offsets are there."""
    topic, group = create_topic(broker.bootstrap, 1), unique("group")
    commit(broker.bootstrap, group, {(topic, 0): 0})
    with Watched(broker, group, topic) as watched:
        assert watched.group.state == "Empty"
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": "consumer"})
        try:
            consumer.subscribe([topic])

            def assigned() -> bool:
                consumer.poll(0.1)
                return bool(consumer.assignment())

            eventually(assigned, timeout_s=60, what="an assignment")
            with polling(broker.bootstrap, GroupSubscription(group_id=group, topics=(topic,))) as watcher:
                seen = watcher.poll().groups[group]
            assert (seen.state, seen.error) == ("Unknown", "GroupProtocolNotClassic")
            watched.observer.poll_soon()
            eventually(lambda: watched.group.error == "GroupProtocolNotClassic", timeout_s=60, what="the next poll")
            assert watched.group.state == "Empty", "its last known state"
            assert [each.after for each in watched.group.transitions] == ["Empty"]
        finally:
            consumer.close()
