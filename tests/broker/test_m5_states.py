"""M5: every state of the classic group, as the broker reports it, in a scripted run in which the short ones last."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.broker.members import Member, await_shares, create_topic, settings, unique
from tests.support.assignors import SlowRange
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

HOLD_S = 50.0


class States:
    """The broker's description of a group, through librdkafka's admin client."""

    def __init__(self, broker: KafkaBroker, group: str) -> None:
        self._admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._group = group

    def described(self) -> str:
        """The state by DescribeGroups."""
        try:
            return str(self._admin.describe_consumer_groups([self._group])[self._group].result().state.name)
        except KafkaException as error:
            return str(error.args[0].name())

    def listed(self) -> str | None:
        """The state by ListGroups; None when the group is not listed."""
        groups = self._admin.list_consumer_groups().result().valid
        return next((str(each.state.name) for each in groups if each.group_id == self._group), None)

    def await_both(self, word: str, member: Member | None = None) -> None:
        eventually(
            lambda: (
                (self.described(), self.listed()) == (word, word)
                or _seen((self.described(), self.listed(), member and member.membership))
            ),
            what=f"the group to be {word}",
        )

    def delete(self) -> None:
        self._admin.delete_consumer_groups([self._group])[self._group].result()


def await_words(first: Member, second: Member, word: str) -> None:
    """Members learn of it with their next heartbeat or answer."""
    eventually(
        lambda: first.membership.state == second.membership.state == word,
        what=f"both members to be in {word}",
    )


def _seen(what: object) -> bool:
    raise AssertionError(what)


def test_m5_scripted_run_shows_each_state_of_the_classic_machine(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    states = States(broker, group)
    give_back, go_on = threading.Event(), threading.Event()
    go_on.set()

    def member(**how: Any) -> Member:
        return Member(settings(broker.bootstrap, group, assignors=(SlowRange(go_on, HOLD_S),)), [topic], **how)

    with member(while_revoking=lambda: give_back.wait(HOLD_S)) as first:
        await_shares([first], topic, 4)
        states.await_both("STABLE", first)
        with member() as second:
            # The first revokes slowly: the group waits for it to join.
            states.await_both("PREPARING_REBALANCING", first)
            await_words(first, second, "PreparingRebalance")
            go_on.clear()
            give_back.set()
            # All have joined, and the leader's assignor is slow.
            states.await_both("COMPLETING_REBALANCING", first)
            await_words(first, second, "CompletingRebalance")
            go_on.set()
            await_shares([first, second], topic, 4)
            states.await_both("STABLE", first)
    states.await_both("EMPTY")
    states.delete()
    eventually(lambda: states.listed() is None, what="the group to be gone")
    assert states.described() in ("DEAD", "GROUP_ID_NOT_FOUND")
