"""Cooperative rebalancing (KIP-429) on a real broker: a member keeps reading the partitions that it keeps."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group.errors import AssignorFailed
from tests.broker.members import (
    Member,
    await_records,
    await_shares,
    committed,
    create_topic,
    produce,
    settings,
    unique,
)
from tests.support.assignors import CooperativeRange, DirectRange
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def member(broker: KafkaBroker, group: str, topic: str, **changes: object) -> Member:
    return Member(settings(broker.bootstrap, group, assignors=(CooperativeRange(),), **changes), [topic])


def test_joining_member_takes_only_its_share_and_the_rest_does_not_move(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 6), unique("group")
    with member(broker, group, topic) as first:
        await_shares([first], topic, 6)
        with member(broker, group, topic) as second:
            await_shares([first, second], topic, 6)
            assert sorted(len(one.owned) for one in (first, second)) == [3, 3]
            moved = {part for what, parts in first.calls if what == "revoked" for part in parts}
            assert len(moved) == 3
            assert {part for what, parts in second.calls if what == "assigned" for part in parts} == moved
        await_shares([first], topic, 6)
    assert [what for what, _ in first.calls if what == "lost"] == []


def test_records_of_kept_partitions_flow_on_while_the_group_rebalances(broker: KafkaBroker) -> None:
    """An eager member with a slow revocation holds the rebalance up; a cooperative one reads and commits."""
    given_back = threading.Event()
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    eager = settings(broker.bootstrap, group, assignors=("range", CooperativeRange()))
    with (
        member(broker, group, topic) as working,
        Member(eager, [topic], while_revoking=lambda: given_back.wait(50)) as holding,
    ):
        await_shares([working, holding], topic, 4)
        kept = {number for _, number in working.owned}
        with member(broker, group, topic) as joining:
            eventually(lambda: working.membership.state == "PreparingRebalance", what="the rebalance to begin")
            written = produce(broker.bootstrap, topic, 4, 50)
            await_records([working], {entry for entry in written if entry[0] in kept})
            eventually(
                lambda: all(committed(broker.bootstrap, group, topic, 4)[number] == 50 for number in kept),
                what="commits in the middle of the rebalance",
            )
            assert working.membership.state == "PreparingRebalance"
            assert [what for what, _ in working.calls].count("revoked") <= 1  # when the second member came
            given_back.set()
            await_shares([working, holding, joining], topic, 4)
            await_records([working, holding, joining], written)
    assert sorted(working.seen + holding.seen + joining.seen) == sorted(written)


def test_assignor_that_moves_a_partition_directly_is_reported_by_the_leader(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    leader = Member(settings(broker.bootstrap, group, assignors=(DirectRange(),)), [topic], commits=False)
    await_shares([leader], topic, 4)
    follower = Member(settings(broker.bootstrap, group, assignors=(DirectRange(),)), [topic], commits=False)
    eventually(lambda: leader.error, what="the leader to report it")
    assert isinstance(leader.error, AssignorFailed)
    assert "moved" in str(leader.error)
    leader.stop()
    follower.stop()


def test_cooperative_sticky_group_moves_only_partitions_needed_for_balance(broker: KafkaBroker) -> None:
    """The built-in assignor, by name: joins and leaves do not interrupt kept partitions."""
    topic, group = create_topic(broker.bootstrap, 9), unique("group")
    sticky = settings(broker.bootstrap, group, assignors=("cooperative-sticky",))
    with Member(sticky, [topic]) as a:
        await_shares([a], topic, 9)
        with Member(sticky, [topic]) as b:
            await_shares([a, b], topic, 9)
            with Member(sticky, [topic]) as c:
                await_shares([a, b, c], topic, 9)
                assert [len(one.owned) for one in (a, b, c)] == [3, 3, 3]
                before = {one: one.owned for one in (a, b)}
                written = produce(broker.bootstrap, topic, 9, 20)
                await_records([a, b, c], written)
            await_shares([a, b], topic, 9)
            for one, owned in before.items():
                assert owned <= one.owned
        await_shares([a], topic, 9)
        revoked = [parts for what, parts in a.calls if what == "revoked"]
        assert sum(map(len, revoked)) == 6  # from 9 to 5 or 4, to 3
    assert sorted(a.seen + b.seen + c.seen) == sorted(written)
    assert committed(broker.bootstrap, group, topic, 9) == dict.fromkeys(range(9), 20)


def test_first_exception_of_a_callback_wins_and_the_rest_still_runs(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    calls: list[tuple[str, int]] = []
    quiet = threading.Event()
    sticky = settings(broker.bootstrap, group, assignors=("cooperative-sticky",))

    def called(what: str, parts: Sequence[TopicPartition]) -> None:
        calls.append((what, len(parts)))
        if ("revoked", 2) in calls and not quiet.is_set():
            raise LookupError(what)

    with Consumer(sticky) as consumer:
        consumer.subscribe(
            [topic],
            on_assigned=lambda parts: called("assigned", parts),
            on_revoked=lambda parts: called("revoked", parts),
        )
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1], what="an assignment")
        with Member(sticky, [topic]) as other:
            raised: list[Exception] = []

            def poll() -> bool:
                try:
                    consumer.poll(0.1)
                except LookupError as error:
                    raised.append(error)
                return len(consumer.assignment()) == 2 and len(other.owned) == 2

            eventually(poll, what="the two to share, whatever the callbacks raise")
            assert calls[:3] == [("assigned", 4), ("revoked", 2), ("assigned", 0)]
            assert [str(error) for error in raised[:1]] == ["revoked"]
            quiet.set()


@pytest.mark.parametrize("names", [("range", "cooperative"), ("cooperative",)])
def test_eager_and_cooperative_members_agree_on_an_assignor_that_both_have(
    broker: KafkaBroker, names: tuple[str, ...]
) -> None:
    """The first of the two rolling bounces of an upgrade: a member that also lists an eager assignor acts eagerly."""
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    listed = tuple(CooperativeRange() if name == "cooperative" else name for name in names)
    with (
        member(broker, group, topic) as cooperative,
        Member(settings(broker.bootstrap, group, assignors=listed), [topic]) as other,
    ):
        await_shares([cooperative, other], topic, 4)
        assert {one.membership.protocol for one in (cooperative, other)} == {CooperativeRange.name}
        await_records([cooperative, other], produce(broker.bootstrap, topic, 4, 10))
