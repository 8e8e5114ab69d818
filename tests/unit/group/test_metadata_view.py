"""Metadata answers that say less than is true: lagging brokers, missing ACLs, hostile claims."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from fleet_consumer.group import errors
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import (
    CallBack,
    ForJoin,
    ForLookup,
    ForPlan,
    ForSync,
    ForWatch,
    MembershipReport,
    RunAssignor,
    Subscribed,
)
from fleet_consumer.group.watch import GONE_AFTER_S
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    encode_subscription,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import JoinGroupResponseMember
from fleet_consumer.wire.topics import MetadataResponse
from tests.unit.group.lab import ME, OTHER, Lab, join_answer, lookup_answer, metadata_answer, sync_answer

UNKNOWN = metadata_answer({}, {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
DENIED = metadata_answer({}, {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED})
SLOW = 1_000.0
"""An age of metadata that no test waits for."""


def planned_with(lab: Lab) -> Mapping[str, int]:
    return lab.of(RunAssignor)[-1].cluster.partitions


def members(topics: tuple[str, ...], owned: Mapping[str, tuple[int, ...]]) -> tuple[JoinGroupResponseMember, ...]:
    """This member, and another that claims to own something."""
    claimed = tuple(ConsumerProtocolTopicPartitions(topic=topic, partitions=parts) for topic, parts in owned.items())
    mine = ConsumerProtocolSubscription(topics=topics)
    other = ConsumerProtocolSubscription(topics=topics, owned_partitions=claimed, generation_id=1)
    return (
        JoinGroupResponseMember(member_id=ME, metadata=encode_subscription(mine, 3)),
        JoinGroupResponseMember(member_id=OTHER, metadata=encode_subscription(other, 3)),
    )


# The plan.


@pytest.mark.parametrize(
    "answer",
    [
        UNKNOWN,
        metadata_answer({"t": 1}),
        metadata_answer({}),
        metadata_answer({}, {"t": ErrorCode.LEADER_NOT_AVAILABLE}),
    ],
    ids=["unknown", "smaller", "absent", "being elected"],
)
def test_leader_asks_again_before_it_plans_with_less_than_it_has_seen(answer: MetadataResponse) -> None:
    lab = Lab().planning()
    lab.answer(ForPlan, answer)
    assert lab.of(RunAssignor) == []
    lab.run_for(0.2)
    assert (lab.state, lab.count(ForPlan)) == (State.PLANNING, 2)
    lab.answer(ForPlan, metadata_answer({"t": 2}))
    assert planned_with(lab) == {"t": 2}


def answer_plans(lab: Lab, answer: MetadataResponse, seconds: float) -> None:
    """Give this answer to every question of the plan."""
    end, answered = lab.now + seconds, 0
    while lab.now < end and not lab.of(RunAssignor):
        if lab.count(ForPlan) > answered:
            answered = lab.count(ForPlan)
            lab.answer(ForPlan, answer)
        lab.run_for(0.05)


def test_topic_that_stays_unknown_is_gone_and_the_others_are_planned_without_it() -> None:
    lab = Lab(topics=("t", "u")).joining()
    lab.answer(ForJoin, join_answer(leader=ME, members=members(("t", "u"), {})))
    gone = metadata_answer({"u": 2}, {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    began = lab.now
    answer_plans(lab, gone, 60)
    assert planned_with(lab) == {"u": 2}
    assert GONE_AFTER_S <= lab.now - began < GONE_AFTER_S + 2.0


def test_metadata_check_ends_well_before_other_members_time_out() -> None:
    lab = Lab(rebalance_timeout_s=3.0).planning()
    began = lab.now
    answer_plans(lab, UNKNOWN, 60)
    assert lab.now - began < 3.0


def test_topic_that_never_was_delays_no_plan() -> None:
    lab = Lab(topics=("t", "typo")).subscribed()
    missing = metadata_answer({"t": 2}, {"typo": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    lab.answer(ForWatch, missing)
    lab.answer(ForLookup, lookup_answer())
    lab.answer(ForJoin, join_answer(leader=ME, members=members(("t", "typo"), {})))
    lab.answer(ForPlan, missing)
    assert planned_with(lab) == {"t": 2}


def test_owned_partitions_missing_from_metadata_cause_a_check() -> None:
    """A new leader has seen nothing itself."""
    lab = Lab().subscribed()
    lab.answer(ForLookup, lookup_answer())
    lab.answer(ForJoin, join_answer(leader=ME, members=members(("t",), {"t": (0, 1)})))
    lab.answer(ForPlan, UNKNOWN)
    assert lab.of(RunAssignor) == []


def test_hostile_claim_never_becomes_a_count() -> None:
    lab = Lab().subscribed()
    lab.answer(ForLookup, lookup_answer())
    lab.answer(ForJoin, join_answer(leader=ME, members=members(("t",), {"t": (2_000_000_000,)})))
    answer_plans(lab, DENIED, 60)
    assert planned_with(lab) == {}


def test_denied_topic_keeps_its_partitions_and_is_raised_by_name() -> None:
    lab = Lab().planning()
    lab.answer(ForPlan, DENIED)
    assert planned_with(lab) == {"t": 2}
    (report,) = lab.of(MembershipReport)
    assert isinstance(report.error, errors.TopicAuthorizationFailed)
    assert "topics t: not authorized" in str(report.error)


def test_denied_topic_of_another_member_is_raised_by_the_leader_too() -> None:
    lab = Lab().joining()
    lab.answer(ForJoin, join_answer(leader=ME, members=members(("t", "secret"), {})))
    lab.answer(ForPlan, metadata_answer({"t": 2}, {"secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}))
    assert planned_with(lab) == {"t": 2}
    assert [str(report.error).split(":")[0] for report in lab.of(MembershipReport)] == ["topics secret"]


# The watch.


def led(counts: Mapping[str, int] | None = None) -> Lab:
    """A leader, Stable, whose first check after its plan is answered."""
    lab = Lab(metadata_max_age_s=SLOW).leading(counts)
    lab.called_back()
    return lab


def test_leader_looks_again_soon_after_it_has_planned() -> None:
    lab = led()
    lab.run_for(2.1)
    assert lab.count(ForWatch) == 2
    lab.answer(ForWatch, metadata_answer({"t": 3}))
    assert lab.is_in(State.REVOKING)


@pytest.mark.parametrize("answer", [UNKNOWN, metadata_answer({"t": 1}), metadata_answer({})])
def test_one_answer_that_misses_a_topic_costs_no_rebalance(answer: MetadataResponse) -> None:
    lab = led()
    lab.run_for(2.1)
    lab.answer(ForWatch, answer)
    assert lab.is_in(State.STABLE)
    lab.run_for(0.6)
    lab.answer(ForWatch, metadata_answer({"t": 2}))
    assert lab.is_in(State.STABLE)
    assert lab.machine.snapshot().error is None


def test_topic_that_stays_away_is_planned_out() -> None:
    lab = led()
    lab.run_for(2.1)
    began = lab.now
    while lab.is_in(State.STABLE) and lab.now < began + 60:
        asked = lab.count(ForWatch)
        lab.answer(ForWatch, UNKNOWN)
        while lab.count(ForWatch) == asked and lab.is_in(State.STABLE):
            lab.run_for(0.1)
    assert lab.is_in(State.REVOKING)
    assert GONE_AFTER_S <= lab.now - began < GONE_AFTER_S + 2.0


def test_denied_topic_is_no_reason_to_rebalance_and_is_raised_once() -> None:
    lab = led()
    for _ in range(10):
        lab.run_for(2.1)
        lab.answer(ForWatch, DENIED)
    assert lab.is_in(State.STABLE)
    assert [type(report.error) for report in lab.of(MembershipReport)] == [errors.TopicAuthorizationFailed]
    lab.run_for(2.1)
    lab.answer(ForWatch, metadata_answer({"t": 2}))
    assert lab.machine.snapshot().error is None
    lab.run_for(SLOW)
    lab.answer(ForWatch, DENIED)
    assert len(lab.of(MembershipReport)) == 2


def test_pattern_keeps_a_topic_that_one_answer_misses() -> None:
    lab = Lab(metadata_max_age_s=SLOW)
    lab.feed(Subscribed((), re.compile("t.*")))
    lab.answer(ForLookup, lookup_answer())
    lab.answer(ForWatch, metadata_answer({"t": 2, "t1": 1}))
    lab.answer(ForJoin, join_answer())
    lab.answer(ForSync, sync_answer(topics={"t": (0, 1), "t1": (0,)}))
    lab.called_back()
    lab.run_for(SLOW)
    lab.answer(ForWatch, metadata_answer({"t": 2}))
    assert lab.is_in(State.STABLE)
    lab.run_for(0.6)
    lab.answer(ForWatch, metadata_answer({"t": 2, "t1": 1}))
    lab.run_for(10.0)
    assert lab.is_in(State.STABLE)


# What is new to a group that reads from the latest offsets.


def assigned_after(*answers: MetadataResponse) -> frozenset[TopicPartition]:
    """The partitions that count as new when t-0 and t-1 are assigned after these answers to the watch."""
    lab = Lab(metadata_max_age_s=SLOW).subscribed()
    for answer in answers:
        asked = lab.count(ForWatch)
        lab.answer(ForWatch, answer)
        while answer is not answers[-1] and lab.count(ForWatch) == asked:
            lab.run_for(0.1)
    lab.answer(ForLookup, lookup_answer())
    lab.answer(ForJoin, join_answer())
    lab.answer(ForSync, sync_answer())
    return lab.of(CallBack)[-1].appeared


ALL = {TopicPartition("t", 0), TopicPartition("t", 1)}


@pytest.mark.parametrize(
    ("answers", "new"),
    [
        ([metadata_answer({"t": 2})], set()),
        ([DENIED], set()),
        ([DENIED, DENIED, DENIED], set()),
        ([DENIED, metadata_answer({"t": 2})], set()),
        ([metadata_answer({}, {"t": ErrorCode.LEADER_NOT_AVAILABLE})], set()),
        ([UNKNOWN], set()),
        ([UNKNOWN, metadata_answer({"t": 2})], set()),
        ([UNKNOWN, UNKNOWN], ALL),
        ([UNKNOWN, UNKNOWN, metadata_answer({"t": 2})], ALL),
        ([metadata_answer({"t": 1}), UNKNOWN, UNKNOWN], {TopicPartition("t", 1)}),
    ],
)
def test_only_partitions_that_did_not_exist_are_new(answers: list[MetadataResponse], new: set[TopicPartition]) -> None:
    assert assigned_after(*answers) == new
