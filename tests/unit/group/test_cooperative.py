"""Cooperative rebalancing (KIP-429), in virtual time: what is kept, what is given back, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_consumer.assignors import EAGER, Assignment, Assignor, ClusterView, Subscription
from fleet_consumer.group import errors
from fleet_consumer.group.classic.planning import plan
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import (
    CallBack,
    ForCommit,
    ForHeartbeat,
    ForJoin,
    ForLookup,
    ForPlan,
    ForSync,
    ForWatch,
    MembershipReport,
    RunAssignor,
    Subscribed,
)
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.consumer_protocol import ConsumerProtocolSubscription, decode_subscription
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import HeartbeatResponse
from tests.support.assignors import CooperativeRange, DirectRange
from tests.unit.group.lab import ME, OTHER, Lab, commit_answer, join_answer, lookup_answer, metadata_answer, sync_answer

NAME = CooperativeRange.name


def lab(**settings: Any) -> Lab:
    """A cooperative member."""
    return Lab(assignors=(CooperativeRange(),), **settings)


def joined(member: Lab, generation: int, **changes: Any) -> Lab:
    member.answer(ForJoin, join_answer(protocol_name=NAME, generation_id=generation, **changes))
    return member


def stable(**settings: Any) -> Lab:
    """Stable in generation 1 with t-0, t-1, and told so."""
    member = joined(lab(**settings).joining(), 1)
    member.answer(ForSync, sync_answer())
    member.called_back()
    return member


def rejoining(**settings: Any) -> Lab:
    """The same, with its next JoinGroup on the way."""
    member = stable(**settings)
    member.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.is_in(State.JOINING)
    return member


def given(member: Lab, generation: int, **topics: tuple[int, ...]) -> Lab:
    """Join and sync answered."""
    joined(member, generation)
    member.answer(ForSync, sync_answer(topics=topics))
    return member


def subscription(member: Lab) -> ConsumerProtocolSubscription:
    return decode_subscription(member.request(ForJoin).protocols[0].metadata)


def calls(member: Lab) -> list[tuple[str, tuple[int, ...]]]:
    return [(call.kind.value, tuple(part.partition for part in call.partitions)) for call in member.of(CallBack)]


# Which protocol.


class EagerPart(CooperativeRange):
    name = "eager-part"
    protocol = EAGER


@pytest.mark.parametrize(
    ("assignors", "cooperative"),
    [
        ((CooperativeRange(),), True),
        ((CooperativeRange(), DirectRange()), True),
        (("range", CooperativeRange()), False),
        ((CooperativeRange(), EagerPart()), False),
        (("range", "roundrobin"), False),
    ],
)
def test_protocol_is_the_highest_that_all_configured_assignors_support(
    assignors: tuple[str | Assignor, ...], cooperative: bool
) -> None:
    member = Lab(assignors=assignors).joining()
    name = assignors[0] if isinstance(assignors[0], str) else assignors[0].name
    member.answer(ForJoin, join_answer(protocol_name=name))
    member.answer(ForSync, sync_answer())
    member.called_back()
    member.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.is_in(State.JOINING if cooperative else State.REVOKING)


# Join-prepare.


def test_member_keeps_its_partitions_and_sends_owned_generation_and_user_data() -> None:
    member = stable(rack="r1")
    first = subscription(member)
    assert (first.owned_partitions, first.generation_id, first.rack_id) == ((), -1, "r1")
    member.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert calls(member) == [("assigned", (0, 1))]
    told = subscription(member)
    assert [(part.topic, part.partitions) for part in told.owned_partitions] == [("t", (0, 1))]
    assert (told.generation_id, told.user_data) == (1, b"cooperative-range for t")
    assert member.machine.snapshot().assignment == {"t": (0, 1)}


def test_only_topics_no_longer_subscribed_are_revoked_before_joining() -> None:
    member = joined(lab(topics=("t", "u")).joining(), 1)
    member.answer(ForSync, sync_answer(topics={"t": (0, 1), "u": (0,)}))
    member.called_back()
    member.feed(Subscribed(("t",)))
    assert member.is_in(State.REVOKING)
    assert member.of(CallBack)[-1].partitions == (TopicPartition("u", 0),)
    member.called_back()
    assert [part.topic for part in subscription(member).owned_partitions] == ["t"]
    assert subscription(member).topics == ("t",)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_lost_generation_loses_everything(code: int) -> None:
    member = stable()
    member.beat(code)
    assert calls(member) == [("assigned", (0, 1)), ("lost", (0, 1))]
    member.called_back()
    assert subscription(member).owned_partitions == ()
    assert subscription(member).generation_id == -1


def test_poll_interval_that_ends_loses_everything() -> None:
    member = stable(max_poll_interval_s=60.0)
    member.polls = False
    for _ in range(19):
        member.beat()
    member.run_for(10.0)
    member.polls = True
    member.tick()
    assert calls(member)[-1] == ("lost", (0, 1))


# Join-complete.


def test_same_assignment_again_calls_assigned_with_nothing_and_settles() -> None:
    member = given(rejoining(), 2, t=(0, 1))
    assert calls(member) == [("assigned", (0, 1)), ("assigned", ())]
    member.called_back()
    joins = member.count(ForJoin)
    member.beat()
    assert (member.state, member.count(ForJoin)) == (State.STABLE, joins)


def test_new_partitions_alone_are_assigned() -> None:
    member = given(rejoining(), 2, t=(0, 1, 5), u=())
    assert calls(member)[1:] == [("assigned", (5,))]
    assert member.machine.snapshot().assignment == {"t": (0, 1, 5)}


def test_partitions_taken_away_are_revoked_before_the_member_rejoins() -> None:
    member = given(rejoining(), 2, t=(1, 2))
    assert calls(member)[1:] == [("revoked", (0,)), ("assigned", (2,))]
    assert member.is_in(State.STABLE)
    assert member.machine.snapshot().assignment == {"t": (1, 2)}
    joins = member.count(ForJoin)
    member.run_for(30.0)
    assert member.count(ForJoin) == joins  # the user still reads what is to be revoked
    member.called_back()
    assert (member.state, member.count(ForJoin)) == (State.JOINING, joins + 1)
    assert member.request(ForJoin).reason == "need to revoke partitions and re-join"
    assert [part.partitions for part in subscription(member).owned_partitions] == [(1, 2)]
    assert subscription(member).generation_id == 2


def test_callbacks_of_a_generation_that_was_lost_meanwhile_come_before_the_loss_of_the_rest() -> None:
    member = given(rejoining(), 2, t=(1, 2))
    member.beat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert calls(member)[1:] == [("revoked", (0,)), ("assigned", (2,))]
    member.called_back()
    assert calls(member)[3:] == [("lost", (1, 2))]
    member.called_back()
    assert member.is_in(State.JOINING)


def test_assignor_hears_of_every_assignment_with_its_generation_before_it_is_asked_again() -> None:
    assignor = CooperativeRange()
    member = joined(Lab(assignors=(assignor,)).joining(), 1)
    member.answer(ForSync, sync_answer())
    assert [(dict(share.partitions), generation) for share, generation in assignor.told] == [({"t": (0, 1)}, 1)]
    member.beat(ErrorCode.REBALANCE_IN_PROGRESS)  # before the user has polled
    given(member, 2, t=(0,))
    assert [generation for _, generation in assignor.told] == [1, 2]


class Raises(CooperativeRange):
    """Raises where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where: str | None = where

    def subscription_user_data(self, topics: Any) -> bytes | None:
        if self.where == "data":
            raise LookupError("no data")
        return None

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        if self.where == "assignment":
            raise LookupError("no thanks")


def test_assignor_raising_in_on_assignment_is_reported_and_the_assignment_holds() -> None:
    member = joined(Lab(assignors=(Raises("assignment"),)).joining(), 1)
    member.answer(ForSync, sync_answer())
    assert [str(report.error) for report in member.of(MembershipReport)] == [
        "assignor 'cooperative-range': on_assignment raised LookupError: no thanks"
    ]
    assert calls(member) == [("assigned", (0, 1))]


def test_assignor_that_has_no_user_data_keeps_the_member_out_until_it_has() -> None:
    assignor = Raises("data")
    member = Lab(assignors=(assignor,)).subscribed()
    member.answer(ForLookup, lookup_answer())
    assert member.is_in(State.UNJOINED)
    assert [type(report.error) for report in member.of(MembershipReport)] == [errors.AssignorFailed]
    assert "LookupError: no data" in str(member.machine.snapshot().error)
    assignor.where = None
    member.run_for(1.1)
    assert member.is_in(State.JOINING)


# During a rebalance.


def test_heartbeats_renew_the_session_while_the_join_waits() -> None:
    """Records of kept partitions flow on, however long others take to join; so the fence must not fall."""
    member = rejoining()
    for _ in range(30):
        member.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.is_in(State.JOINING)
    assert member.machine.fence_deadline > member.now + 40.0


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR])
def test_heartbeat_that_is_overtaken_by_the_next_generation_resets_nothing(code: int) -> None:
    member = rejoining()
    member.run_for(3.1)
    member.answer(ForHeartbeat, HeartbeatResponse(error_code=code))
    assert member.is_in(State.JOINING)
    given(member, 2, t=(0, 1))
    assert calls(member)[1:] == [("assigned", ())]


def test_eager_member_does_not_beat_while_its_join_waits() -> None:
    member = Lab().revoking()
    member.called_back()
    beats = member.count(ForHeartbeat)
    member.run_for(30.0)
    assert (member.state, member.count(ForHeartbeat)) == (State.JOINING, beats)


def test_partitions_are_kept_through_a_sync_that_came_too_late() -> None:
    member = joined(rejoining(), 2)
    member.answer(ForSync, sync_answer(ErrorCode.REBALANCE_IN_PROGRESS))
    assert member.is_in(State.JOINING)
    assert [part.partitions for part in subscription(member).owned_partitions] == [(0, 1)]
    given(member, 3, t=(0, 1))
    assert calls(member) == [("assigned", (0, 1)), ("assigned", ())]


def test_partitions_are_kept_through_a_coordinator_that_goes_away_while_joining() -> None:
    member = rejoining()
    member.fail(ForJoin)
    assert member.is_in(State.UNJOINED)
    member.run_for(0.3)
    member.answer(ForLookup, lookup_answer(address=("other", 1)))
    assert member.is_in(State.JOINING)
    assert [part.partitions for part in subscription(member).owned_partitions] == [(0, 1)]


# Commits.


def test_commit_while_the_join_waits_goes_out_in_the_old_generation() -> None:
    member = rejoining()
    member.commit(sync=False)
    assert member.request(ForCommit).generation_id_or_member_epoch == 1
    member.answer(ForCommit, commit_answer())
    assert member.committed() == [None]


@pytest.mark.parametrize(
    "code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID]
)
@pytest.mark.parametrize("sync", [True, False])
def test_commit_that_a_rebalance_overtook_is_repeated_in_the_new_generation(code: int, sync: bool) -> None:
    member = rejoining()
    member.commit(sync=sync)
    member.answer(ForCommit, commit_answer(code))
    if not sync:
        assert [type(error) for error in member.committed()] == [errors.RebalanceInProgress]
        return
    assert member.committed() == []
    given(member, 2, t=(0, 1))
    member.run_for(1.1)
    assert member.request(ForCommit).generation_id_or_member_epoch == 2
    member.answer(ForCommit, commit_answer())
    assert member.committed() == [None]


@pytest.mark.parametrize("state", ["planning", "syncing"])
def test_commit_during_planning_or_syncing_waits_for_the_new_generation(state: str) -> None:
    member = joined(rejoining(), 2, leader=ME if state == "planning" else OTHER)
    commits = member.count(ForCommit)
    member.commit()
    member.commit(sync=False)
    assert [type(error) for error in member.committed()] == [errors.RebalanceInProgress]
    if state == "planning":
        member.answer(ForPlan, metadata_answer({"t": 2}))
        member.planned()
    assert member.count(ForCommit) == commits
    member.answer(ForSync, sync_answer())
    member.run_for(1.1)
    member.answer(ForCommit, commit_answer())
    assert member.committed()[1:] == [None]


def test_waiting_commit_that_times_out_in_a_rebalance_reports_it() -> None:
    member = joined(rejoining(), 2)
    member.commit()
    member.run_for(11.0)
    assert [type(error) for error in member.committed()] == [errors.RebalanceInProgress]


def test_waiting_commit_of_a_member_that_was_expelled_is_refused() -> None:
    member = joined(rejoining(), 2)
    member.commit()
    member.answer(ForSync, sync_answer(ErrorCode.UNKNOWN_MEMBER_ID))
    member.run_for(1.1)
    assert [type(error) for error in member.committed()] == [errors.CommitFailed]
    assert member.count(ForCommit) == 0


# The leader's check of its assignor.


def test_leader_of_a_cooperative_group_runs_its_assignor_under_the_check() -> None:
    member = joined(lab().joining(), 1, leader=ME)
    member.answer(ForPlan, metadata_answer({"t": 2}))
    assert member.of(RunAssignor)[-1].cooperative
    eager = Lab().planning()
    eager.answer(ForPlan, metadata_answer({"t": 2}))
    assert not eager.of(RunAssignor)[-1].cooperative


CLUSTER = ClusterView({"t": 4})
OWNED = {"a": Subscription(("t",), owned={"t": (0, 1, 2, 3)}, generation=1), "b": Subscription(("t",))}


def test_custom_cooperative_assignor_that_moves_a_partition_directly_is_refused() -> None:
    with pytest.raises(errors.AssignorFailed, match=r"moved t-[23] directly from 'a' to 'b'"):
        plan(DirectRange(), CLUSTER, OWNED, cooperative=True)
    plan(CooperativeRange(), CLUSTER, OWNED, cooperative=True)
    plan(DirectRange(), CLUSTER, OWNED, cooperative=False)


def test_cooperative_sticky_is_trusted_as_in_java() -> None:
    class Named(DirectRange):
        name = "cooperative-sticky"

    plan(Named(), CLUSTER, OWNED, cooperative=True)


def test_returning_static_leader_keeps_watching_in_a_cooperative_group() -> None:
    member = joined(lab(instance_id="a", metadata_max_age_s=10.0).joining(), 1, leader=ME, skip_assignment=True)
    member.answer(ForSync, sync_answer())
    member.called_back()
    member.run_for(10.0)
    member.answer(ForWatch, metadata_answer({"t": 3}))
    assert member.is_in(State.JOINING)
    assert calls(member) == [("assigned", (0, 1))]
