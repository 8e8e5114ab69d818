"""The life of a member, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_consumer.group import errors
from fleet_consumer.group.classic.planning import read_subscriptions
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import (
    CallBack,
    Channel,
    CloseRequested,
    ForHeartbeat,
    ForJoin,
    ForLeave,
    ForLookup,
    ForPlan,
    ForSync,
    ForWatch,
    LoginRefused,
    MembershipReport,
    PlanFailed,
    RunAssignor,
    Send,
    Subscribed,
)
from fleet_consumer.group.timing import SLOW_RETRY_S
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import HeartbeatResponse, JoinGroupResponseMember, LeaveGroupResponse, SyncGroupResponse
from tests.unit.group.lab import (
    COORDINATOR,
    ME,
    OTHER,
    ForCommit,
    Lab,
    commit_answer,
    join_answer,
    lookup_answer,
    metadata_answer,
    sync_answer,
)


def test_member_finds_its_coordinator_joins_syncs_and_is_assigned() -> None:
    lab = Lab().subscribed()
    assert lab.asked(ForLookup).address is None
    assert lab.request(ForLookup).coordinator_keys == ("g",)
    lab.answer(ForLookup, lookup_answer())
    join = lab.asked(ForJoin)
    assert (join.address, join.channel, join.timeout_s) == (COORDINATOR, Channel.JOIN, 305.0)
    first = lab.request(ForJoin)
    assert (first.member_id, first.session_timeout_ms, first.reason) == ("", 45_000, "first subscription")
    lab.answer(ForJoin, join_answer(ErrorCode.MEMBER_ID_REQUIRED))
    assert lab.request(ForJoin).member_id == ME
    lab.answer(ForJoin, join_answer())
    assert lab.asked(ForSync).channel is Channel.JOIN
    assert (lab.request(ForSync).generation_id, lab.request(ForSync).assignments) == (1, ())
    lab.answer(ForSync, sync_answer())
    assert lab.callbacks() == ["assigned"]
    assert lab.of(CallBack)[0].partitions == (TopicPartition("t", 0), TopicPartition("t", 1))
    snapshot = lab.machine.snapshot()
    assert (snapshot.state, snapshot.assignment, snapshot.error) == ("Stable", {"t": (0, 1)}, None)


def test_leader_reads_counts_assigns_for_all_and_syncs() -> None:
    lab = Lab().planning()
    assert [topic.name for topic in lab.request(ForPlan).topics] == ["t"]
    lab.answer(ForPlan, metadata_answer({"t": 3}))
    assert lab.of(RunAssignor)[-1].cluster.partitions == {"t": 3}
    lab.planned()
    plans = {
        entry.member_id: [part.partitions for part in decode_assignment(entry.assignment).assigned_partitions]
        for entry in lab.request(ForSync).assignments
    }
    assert plans == {ME: [(0, 1)], OTHER: [(2,)]}


def test_heartbeats_continue_while_the_leader_assigns() -> None:
    lab = Lab().planning()
    lab.answer(ForPlan, metadata_answer({"t": 3}))
    lab.beat()
    lab.beat()
    assert lab.is_in(State.PLANNING)


def test_leader_asks_again_when_metadata_does_not_come() -> None:
    lab = Lab().planning()
    lab.fail(ForPlan)
    assert lab.machine.snapshot().error is not None
    lab.run_for(0.2)
    assert lab.count(ForPlan) == 2
    assert lab.is_in(State.PLANNING)


def test_failing_assignor_is_reported_and_the_rebalance_retried() -> None:
    lab = Lab().planning()
    lab.answer(ForPlan, metadata_answer({"t": 3}))
    lab.feed(PlanFailed(lab.of(RunAssignor)[-1].attempt, errors.AssignorFailed("no")))
    assert [type(report.error) for report in lab.of(MembershipReport)] == [errors.AssignorFailed]
    assert lab.is_in(State.UNJOINED)
    lab.run_for(1.1)
    assert lab.is_in(State.JOINING)
    assert "rebalance failed due to no" in lab.request(ForJoin).reason


def test_returning_static_leader_skips_the_plan_and_still_watches() -> None:
    """KIP-814."""
    lab = Lab(instance_id="a", metadata_max_age_s=10.0).joining()
    lab.answer(ForJoin, join_answer(leader=ME, skip_assignment=True))
    assert lab.is_in(State.SYNCING)
    assert lab.request(ForSync).assignments == ()
    lab.answer(ForSync, sync_answer())
    assert lab.machine.snapshot().leader
    lab.run_for(10.0)
    lab.answer(ForWatch, metadata_answer({"t": 3}))
    assert lab.is_in(State.REVOKING)


def test_rebalance_waits_until_the_user_has_given_its_partitions_back() -> None:
    lab = Lab().revoking()
    assert lab.callbacks() == ["assigned", "revoked"]
    lab.beat()  # heartbeats go on, and what they say of the rebalance is old by now
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert (lab.state, lab.count(ForJoin)) == (State.REVOKING, 1)
    commit = lab.commit()
    lab.answer(ForCommit, commit_answer())
    assert lab.committed() == [None]
    assert commit.sent_as is not None
    lab.called_back()
    assert (lab.state, lab.count(ForJoin)) == (State.JOINING, 2)
    assert lab.request(ForJoin).reason == "group is already rebalancing"


def test_partitions_of_a_lost_identity_are_lost_not_revoked() -> None:
    lab = Lab().beating()
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert lab.callbacks() == ["assigned", "lost"]
    assert lab.machine.fence_deadline < lab.now
    lab.called_back()
    assert lab.request(ForJoin).member_id == ""


def test_member_that_owns_nothing_rejoins_without_asking_the_user() -> None:
    lab = Lab().syncing()
    lab.answer(ForSync, sync_answer(topics={}))
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert lab.is_in(State.JOINING)
    assert lab.callbacks() == ["assigned"]


def test_answer_of_an_older_attempt_touches_nothing() -> None:
    lab = Lab().joining()
    old = lab.asked(ForJoin)
    lab.fail(ForJoin)
    lab.run_for(0.3)
    lab.answer(ForLookup, lookup_answer())
    assert lab.count(ForJoin) == 2
    lab.feed_answer(old, join_answer(generation_id=9))
    assert (lab.state, lab.machine.snapshot().generation) == (State.JOINING, -1)


def test_assignment_of_other_topics_is_refused_by_joining_again() -> None:
    lab = Lab().syncing()
    lab.answer(ForSync, sync_answer(topics={"elsewhere": (0,)}))
    assert lab.callbacks() == []
    lab.run_for(0.2)
    assert lab.request(ForJoin).reason == "received assignment does not match the current subscription"


def named_twice(topic: str = "t") -> tuple[ConsumerProtocolTopicPartitions, ...]:
    """Three partitions of one topic, as a library may list them that keeps no map."""
    return tuple(ConsumerProtocolTopicPartitions(topic=topic, partitions=parts) for parts in ((0,), (2, 2), (1, 0)))


def test_assignment_with_a_repeated_topic_is_merged() -> None:
    lab = Lab().syncing()
    share = encode_assignment(ConsumerProtocolAssignment(assigned_partitions=named_twice()), 3)
    lab.answer(ForSync, SyncGroupResponse(error_code=0, assignment=share))
    assert lab.of(CallBack)[0].partitions == tuple(TopicPartition("t", number) for number in range(3))


def test_subscription_with_a_repeated_owned_topic_is_merged() -> None:
    """A sticky leader would else give away what the member still reads."""
    claims = ConsumerProtocolSubscription(topics=("t",), owned_partitions=named_twice(), generation_id=1)
    member = JoinGroupResponseMember(member_id=ME, metadata=encode_subscription(claims, 3))
    assert read_subscriptions([member])[ME].owned == {"t": (0, 2, 1)}


def test_assignment_too_short_to_be_one_is_fatal() -> None:
    lab = Lab().syncing()
    lab.answer(ForSync, SyncGroupResponse(error_code=0, assignment=b"\0"))
    assert [type(report.error) for report in lab.of(MembershipReport)] == [errors.UnexpectedAnswer]


@pytest.mark.parametrize("changes", [{"protocol_name": "sticky"}, {"protocol_type": "connect"}])
def test_protocol_that_was_not_offered_is_fatal(changes: dict[str, Any]) -> None:
    lab = Lab().joining()
    lab.answer(ForJoin, join_answer(**changes))
    assert [type(report.error) for report in lab.of(MembershipReport)] == [errors.InconsistentProtocol]


def test_changed_subscription_gives_everything_back_and_joins_with_the_new_topics() -> None:
    lab = Lab().stable()
    lab.feed(Subscribed(("t", "u")))
    lab.called_back()
    join = lab.request(ForJoin)
    assert join.reason == "the subscription has changed"
    assert b"u" in join.protocols[0].metadata


# Heartbeats and sessions.


# The poll timer (M1).


@pytest.mark.parametrize("instance_id", [None, "a"])
def test_m1_member_that_does_not_poll_gives_up_and_rejoins_once_it_polls(instance_id: str | None) -> None:
    lab = Lab(instance_id=instance_id, max_poll_interval_s=60.0).stable()
    lab.polls = False
    for _ in range(19):
        lab.beat()
    assert lab.is_in(State.STABLE)  # longer than a session: heartbeats keep it
    lab.run_for(10.0)
    assert lab.is_in(State.UNJOINED)
    assert lab.count(ForLeave) == (1 if instance_id is None else 0)
    assert getattr(lab.machine.snapshot().error, "reason", None) == "PollTimedOut"
    beats = lab.count(ForHeartbeat)
    lab.run_for(100.0)
    assert (lab.count(ForHeartbeat), lab.count(ForJoin)) == (beats, 1)
    lab.polls = True
    lab.tick()
    assert lab.callbacks() == ["assigned", "lost"]
    lab.called_back()
    assert lab.is_in(State.JOINING)
    assert lab.request(ForJoin).reason == "consumer poll timeout has expired"


# Topics.


def test_leader_rejoins_when_a_topic_gains_partitions_and_others_do_not() -> None:
    leader, follower = Lab(metadata_max_age_s=10.0).leading(), Lab(metadata_max_age_s=10.0).stable()
    for lab in (leader, follower):
        lab.run_for(10.0)
        assert lab.count(ForWatch) == 2
        lab.answer(ForWatch, metadata_answer({"t": 4}))
    assert leader.is_in(State.REVOKING)
    assert follower.is_in(State.STABLE)
    leader.called_back()
    assert leader.request(ForJoin).reason == "cached metadata has changed: topic t went from 2 to 4 partitions"


def test_partitions_that_appear_later_are_marked() -> None:
    lab = Lab().stable()
    assert lab.of(CallBack)[0].appeared == frozenset()
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    lab.called_back()
    lab.answer(ForJoin, join_answer(generation_id=2))
    lab.answer(ForSync, sync_answer(topics={"t": (1, 2)}))
    assert lab.of(CallBack)[-1].appeared == {TopicPartition("t", 2)}


def test_missing_topic_is_reported_and_looked_up_again_soon() -> None:
    lab = Lab().subscribed()
    lab.answer(ForWatch, metadata_answer({}, {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))
    error = lab.machine.snapshot().error
    assert isinstance(error, errors.TopicMissing)
    assert "t (UNKNOWN_TOPIC_OR_PARTITION" in str(error)
    lab.run_for(2.1)
    lab.answer(ForWatch, metadata_answer({"t": 1}))
    assert lab.machine.snapshot().error is None


def test_forbidden_topic_is_reported_as_such() -> None:
    lab = Lab().subscribed()
    lab.answer(ForWatch, metadata_answer({}, {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED}))
    assert isinstance(lab.machine.snapshot().error, errors.TopicAuthorizationFailed)


# Trouble.


def test_brokers_away_are_asked_ever_more_slowly() -> None:
    lab = Lab().subscribed()
    waits = []
    for _ in range(6):
        before = lab.now
        lab.fail(ForLookup)
        asked = lab.count(ForLookup)
        while lab.count(ForLookup) == asked:
            lab.tick(lab.machine.next_deadline(lab.now) - lab.now)
        waits.append(round(lab.now - before, 3))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert lab.machine.snapshot().error is not None


def test_wrong_password_is_not_tried_hotly() -> None:
    lab = Lab().subscribed()
    lab.fail(ForLookup, slow=True)
    lab.run_for(SLOW_RETRY_S - 0.1)
    assert lab.count(ForLookup) == 1
    lab.run_for(0.2)
    assert lab.count(ForLookup) == 2


@pytest.mark.parametrize("state", ["subscribed", "joining", "planning", "syncing", "stable", "revoking"])
def test_refused_login_ends_the_member_from_any_state(state: str) -> None:
    lab: Lab = getattr(Lab(), state)()
    lab.feed(LoginRefused(errors.AuthenticationFailed("no")))
    assert lab.is_in(State.FAILED)
    assert [type(report.error) for report in lab.of(MembershipReport)] == [errors.AuthenticationFailed]
    assert lab.machine.fence_deadline < lab.now


def test_rejoining_at_once_has_a_limit() -> None:
    """A broker that answers every join with "again" must not be hammered."""
    lab = Lab().joining()
    for _ in range(5):
        lab.answer(ForJoin, join_answer(ErrorCode.UNKNOWN_MEMBER_ID))
        assert lab.is_in(State.JOINING)
    lab.answer(ForJoin, join_answer(ErrorCode.UNKNOWN_MEMBER_ID))
    assert lab.is_in(State.UNJOINED)
    lab.run_for(0.2)
    assert lab.is_in(State.JOINING)


def test_failed_member_does_nothing_any_more_but_close() -> None:
    lab = Lab(instance_id="a").beating()
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    sent = len(lab.of(Send))
    lab.run_for(1_000.0)
    lab.commit()
    assert len(lab.of(Send)) == sent
    assert [type(error) for error in lab.committed()] == [errors.FencedInstance]
    assert isinstance(lab.machine.snapshot().error, errors.FencedInstance)
    lab.feed(CloseRequested(leave=True))
    assert lab.machine.closed
    assert lab.count(ForLeave) == 0


# Commits.


# Closing.


@pytest.mark.parametrize("instance_id", [None, "a"])
def test_closing_sends_leave_with_a_reason_and_waits_for_the_answer(instance_id: str | None) -> None:
    lab = Lab(instance_id=instance_id).stable()
    lab.feed(CloseRequested(leave=True))
    member = lab.request(ForLeave).members[0]
    assert (member.member_id, member.group_instance_id, member.reason) == (
        ME,
        instance_id,
        "the consumer is being closed",
    )
    assert not lab.machine.closed
    lab.answer(ForLeave, LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert lab.machine.closed


def test_closing_while_the_coordinator_is_unknown_leaves_once_it_is_found() -> None:
    """Otherwise the group would wait for the session timeout of a member that nobody expects back."""
    lab = Lab().beating()
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
    assert lab.machine.coordinator is None
    lab.feed(CloseRequested(leave=True))
    assert (lab.count(ForLeave), lab.machine.closed) == (0, False)
    lab.run_for(1.0)
    lab.fail(ForLookup)
    lab.run_for(1.0)
    lab.answer(ForLookup, lookup_answer())
    assert lab.request(ForLeave).members[0].member_id == ME
    lab.answer(ForLeave, LeaveGroupResponse(error_code=0))
    assert lab.machine.closed
    assert lab.count(ForLeave) == 1


@pytest.mark.parametrize("state", ["subscribed", "joining", "planning", "syncing", "stable", "revoking"])
def test_closing_a_remaining_member_sends_nothing(state: str) -> None:
    lab: Lab = getattr(Lab(), state)()
    lab.feed(CloseRequested(leave=False))
    assert lab.machine.closed
    assert lab.count(ForLeave) == 0
    sent = len(lab.of(Send))
    lab.run_for(1_000.0)
    assert len(lab.of(Send)) == sent


def test_closing_without_an_answer_ends_when_the_leave_fails() -> None:
    lab = Lab().stable()
    lab.feed(CloseRequested(leave=True))
    lab.fail(ForLeave)
    assert lab.machine.closed


# The table of moves.
