"""A member's subscription, in virtual time: patterns, unsubscribing, racks, old plans, reasons."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import (
    CallBack,
    ForJoin,
    ForLeave,
    ForLookup,
    ForOldPlan,
    ForPlan,
    ForSync,
    ForWatch,
    RebalanceRequested,
    RunAssignor,
    Subscribed,
    Unsubscribed,
)
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    JoinGroupResponseMember,
)
from fleet_consumer.wire.topics import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.unit.group.lab import ME, OTHER, Lab, join_answer, lookup_answer, metadata_answer, sync_answer

PATTERN = re.compile(r"t\d*|__.*|_fleet\..*")


def wanted(lab: Lab) -> tuple[str, ...]:
    return decode_subscription(lab.request(ForJoin).protocols[0].metadata).topics


# Patterns.


def by_pattern(**settings: Any) -> Lab:
    """Stable with the topics t and t1 of a pattern."""
    lab = Lab(**settings)
    lab.feed(Subscribed((), PATTERN))
    lab.answer(ForLookup, lookup_answer())
    assert lab.count(ForJoin) == 0  # nothing to match against yet
    lab.answer(ForWatch, metadata_answer({"t": 2, "t1": 1, "u": 1, "__consumer_offsets": 50, "_fleet.g.failed": 1}))
    lab.answer(ForJoin, join_answer())
    lab.answer(ForSync, sync_answer(topics={"t": (0, 1), "t1": (0,)}))
    lab.called_back()
    assert lab.is_in(State.STABLE)
    return lab


def test_pattern_asks_for_all_topics_and_never_matches_internal_or_managed_ones() -> None:
    lab = by_pattern()
    assert lab.request(ForWatch).topics is None
    assert wanted(lab) == ("t", "t1")


def test_topic_that_begins_to_match_makes_any_member_rejoin() -> None:
    lab = by_pattern(metadata_max_age_s=10.0)
    lab.run_for(10.0)
    lab.answer(ForWatch, metadata_answer({"t": 2, "t1": 1, "t2": 1}))
    lab.called_back()
    assert lab.request(ForJoin).reason == "the topics that match the subscribed pattern have changed"
    assert wanted(lab) == ("t", "t1", "t2")


def test_metadata_is_refreshed_before_a_pattern_is_matched_for_a_join() -> None:
    lab = by_pattern(metadata_max_age_s=1_000.0)
    asked = lab.count(ForWatch)
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert (lab.state, lab.count(ForWatch)) == (State.STABLE, asked + 1)
    lab.answer(ForWatch, metadata_answer({"t": 2, "t1": 1, "t9": 1}))
    lab.called_back()
    assert wanted(lab) == ("t", "t1", "t9")
    assert lab.request(ForJoin).reason == "group is already rebalancing"


def test_refresh_that_fails_is_repeated_and_the_join_follows() -> None:
    lab = by_pattern(metadata_max_age_s=1_000.0)
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    joins = lab.count(ForJoin)
    lab.fail(ForWatch)
    lab.run_for(0.2)
    lab.answer(ForWatch, metadata_answer({"t": 2}))
    lab.called_back()
    assert lab.count(ForJoin) == joins + 1


def test_leader_may_know_a_matching_topic_first() -> None:
    """Java: `maybeUpdateJoinedSubscription`. What matches is taken, what does not is refused by joining again."""
    lab = by_pattern()
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    lab.answer(ForWatch, metadata_answer({"t": 2, "t1": 1}))
    lab.called_back()
    lab.answer(ForJoin, join_answer(generation_id=2))
    lab.answer(ForSync, sync_answer(topics={"t7": (0,)}))
    assert lab.is_in(State.STABLE)
    assert lab.of(CallBack)[-1].appeared == set(lab.of(CallBack)[-1].partitions)
    lab.called_back()
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    lab.answer(ForWatch, metadata_answer({"t": 2}))
    lab.called_back()
    lab.answer(ForJoin, join_answer(generation_id=3))
    lab.answer(ForSync, sync_answer(topics={"elsewhere": (0,)}))
    assert lab.is_in(State.UNJOINED)


# Unsubscribing and enforcing.


@pytest.mark.parametrize("instance_id", [None, "a"])
@pytest.mark.parametrize("state", ["subscribed", "joining", "planning", "syncing", "stable", "revoking"])
def test_unsubscribing_leaves_and_forgets_from_any_state(state: str, instance_id: str | None) -> None:
    lab: Lab = getattr(Lab(instance_id=instance_id), state)()
    member_id = lab.machine.snapshot().member_id
    lab.feed(Unsubscribed())
    assert lab.is_in(State.IDLE)
    assert lab.count(ForLeave) == (1 if instance_id is None and member_id else 0)
    if lab.count(ForLeave):
        assert lab.request(ForLeave).members[0].reason == "the consumer unsubscribed from all topics"
    snapshot = lab.machine.snapshot()
    assert (snapshot.member_id, snapshot.generation, snapshot.assignment) == ("", -1, {})
    sent = len(lab.actions)
    lab.run_for(100.0)
    assert len(lab.actions) == sent


def test_subscribing_again_joins_as_a_new_member_and_old_callbacks_and_answers_are_void() -> None:
    lab = Lab().stable()
    void = lab.of(CallBack)[-1]
    old_join = lab.asked(ForJoin)
    lab.feed(Unsubscribed())
    lab.subscribed()
    assert (lab.state, lab.request(ForJoin).member_id) == (State.JOINING, "")
    lab.called_back()
    lab.feed_answer(old_join, join_answer(generation_id=9))
    assert lab.is_in(State.JOINING)
    lab.answer(ForJoin, join_answer())
    lab.answer(ForSync, sync_answer())
    assert (void.subscription, lab.of(CallBack)[-1].subscription) == (0, 1)


@pytest.mark.parametrize(("given", "told"), [("", "rebalance enforced by user"), ("new weights", "new weights")])
def test_enforced_rebalance_sends_its_reason(given: str, told: str) -> None:
    lab = Lab().stable()
    lab.feed(RebalanceRequested(given))
    lab.called_back()
    assert lab.request(ForJoin).reason == told


def test_reasons_are_cut_at_255_characters() -> None:
    lab = Lab().stable()
    lab.feed(RebalanceRequested("x" * 300))
    lab.called_back()
    assert lab.request(ForJoin).reason == "x" * 255


# Racks.


def racked(counts: dict[str, list[tuple[int, ...]]], racks: dict[int, str]) -> MetadataResponse:
    """Topics by the replicas of their partitions, brokers by rack."""
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node, host="h", port=1, rack=rack) for node, rack in racks.items()
        ),
        topics=tuple(
            MetadataResponseTopic(
                error_code=0,
                name=topic,
                partitions=tuple(
                    MetadataResponsePartition(
                        error_code=0, partition_index=number, leader_id=1, replica_nodes=nodes, isr_nodes=nodes
                    )
                    for number, nodes in enumerate(replicas)
                ),
            )
            for topic, replicas in counts.items()
        ),
    )


RACKS = {1: "r1", 2: "r2", 3: "r3"}


def leading_with_racks(rack: str | None, other: str | None = None) -> Lab:
    lab = Lab(rack=rack, metadata_max_age_s=10.0).joining()
    members = tuple(
        JoinGroupResponseMember(
            member_id=name,
            metadata=encode_subscription(ConsumerProtocolSubscription(topics=("t",), rack_id=of), 3),
        )
        for name, of in ((ME, rack), (OTHER, other))
    )
    lab.answer(ForJoin, join_answer(leader=ME, members=members))
    lab.answer(ForPlan, racked({"t": [(1, 2), (2, 3)]}, RACKS))
    return lab


@pytest.mark.parametrize(("mine", "other"), [("r1", None), (None, "r2")])
def test_assignor_sees_racks_when_any_member_has_one(mine: str | None, other: str | None) -> None:
    lab = leading_with_racks(mine, other)
    assert lab.of(RunAssignor)[-1].cluster.racks == {"t": (frozenset({"r1", "r2"}), frozenset({"r2", "r3"}))}
    lab.planned()
    assert {subscription.rack for subscription in lab.of(RunAssignor)[-1].subscriptions.values()} == {mine, other}


def test_assignor_sees_no_racks_when_no_member_has_one() -> None:
    assert leading_with_racks(None).of(RunAssignor)[-1].cluster.racks is None


@pytest.mark.parametrize("rack", ["r1", None])
def test_leader_with_a_rack_rejoins_when_replicas_move_and_not_when_a_broker_is_down(rack: str | None) -> None:
    lab = leading_with_racks(rack, "r2")
    lab.planned()
    lab.answer(ForSync, sync_answer())
    lab.called_back()
    lab.run_for(10.0)
    lab.answer(ForWatch, racked({"t": [(1, 2), (2, 3)]}, {1: "r1", 3: "r3"}))
    assert lab.is_in(State.STABLE)
    lab.run_for(10.0)
    lab.answer(ForWatch, racked({"t": [(1, 3), (2, 3)]}, RACKS))
    assert lab.is_in(State.REVOKING if rack else State.STABLE)
    if rack:
        lab.called_back()
        assert "racks" in lab.request(ForJoin).reason


# The plan of a static leader that came back.


def returned(code: int = ErrorCode.NONE, shares: tuple[tuple[int, ...], ...] = ((0,), (1,))) -> Lab:
    """A static leader that was told to skip the assignment; the plan that it did not make gave out `shares` of t."""
    lab = Lab(instance_id="a", metadata_max_age_s=100.0)
    lab.subscribed()
    # The topic has three partitions by the time it returns.
    lab.answer(ForWatch, metadata_answer({"t": 3}))
    lab.answer(ForLookup, lookup_answer())
    lab.answer(ForJoin, join_answer(leader=ME, skip_assignment=True))
    lab.answer(ForSync, sync_answer(topics={"t": (0,)}))
    lab.called_back()
    members = tuple(
        DescribedGroupMember(
            member_id=str(number),
            client_id="c",
            client_host="h",
            member_metadata=b"",
            member_assignment=encode_assignment(
                ConsumerProtocolAssignment(
                    assigned_partitions=(ConsumerProtocolTopicPartitions(topic="t", partitions=share),)
                ),
                3,
            ),
        )
        for number, share in enumerate(shares)
    )
    group = DescribedGroup(
        error_code=code, group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="", members=members
    )
    lab.answer(ForOldPlan, DescribeGroupsResponse(groups=(group,)))
    return lab


def test_returning_static_leader_notices_new_partitions() -> None:
    lab = returned()
    assert lab.is_in(State.STABLE)
    lab.answer(ForWatch, metadata_answer({"t": 3}))
    assert lab.is_in(State.REVOKING)
    lab.called_back()
    assert lab.request(ForJoin).reason == "cached metadata has changed: topic t went from 2 to 3 partitions"


def test_static_leader_that_returns_leaves_a_complete_plan_alone() -> None:
    lab = returned(shares=((0, 1), (2,)))
    lab.answer(ForWatch, metadata_answer({"t": 3}))
    assert lab.is_in(State.STABLE)
    lab.run_for(50.0)
    assert lab.count(ForOldPlan) == 1


def test_old_assignment_is_requested_until_it_comes_or_is_refused() -> None:
    lab = returned(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    lab.run_for(0.5)
    assert lab.count(ForOldPlan) >= 2
    refused = returned(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused.run_for(2.0)
    assert refused.count(ForOldPlan) == 1
    assert refused.is_in(State.STABLE)


def test_new_subscription_does_not_take_old_partitions_of_new_topics_for_new_ones() -> None:
    """Under `latest`, a topic that is added to the subscription starts at its end, as on a first assignment."""
    lab = Lab().stable()
    lab.called_back()
    lab.feed(Subscribed(("t", "u")))
    lab.answer(ForWatch, metadata_answer({"t": 2, "u": 4}))
    lab.called_back()
    lab.answer(ForJoin, join_answer(generation_id=2))
    lab.answer(ForSync, sync_answer(topics={"t": (0, 1, 2), "u": (0, 1, 2, 3, 4)}))
    assert {(part.topic, part.partition) for part in lab.of(CallBack)[-1].appeared} == {("t", 2), ("u", 4)}
