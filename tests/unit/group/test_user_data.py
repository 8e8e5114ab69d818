"""User data of custom assignors: collected outside of the machine, which must cope with errors and late answers."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_consumer.assignors import Assignment
from fleet_consumer.group import errors
from fleet_consumer.group.classic.planning import collect_user_data
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import (
    Answered,
    CloseRequested,
    CollectUserData,
    ForHeartbeat,
    ForJoin,
    ForLookup,
    ForSync,
    MembershipReport,
    NotifyAssignor,
    RebalanceRequested,
    Send,
    Subscribed,
    Unsubscribed,
    UserDataCollected,
)
from fleet_consumer.wire.consumer_protocol import decode_subscription
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import HeartbeatResponse
from tests.support.assignors import CooperativeRange
from tests.unit.group.lab import Lab, join_answer, lookup_answer, sync_answer

NAME = CooperativeRange.name


class Scripted(CooperativeRange):
    """Returns or raises what the test wants, and counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.data: Any = b"mine"
        self.calls = 0

    def subscription_user_data(self, topics: Any) -> Any:
        self.calls += 1
        if isinstance(self.data, Exception):
            raise self.data
        return self.data


class Forbidden(CooperativeRange):
    """Must not be called."""

    def subscription_user_data(self, topics: Any) -> bytes | None:
        raise AssertionError("subscription_user_data ran inside handle()")

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        raise AssertionError("on_assignment ran inside handle()")


def waiting(assignor: CooperativeRange) -> Lab:
    """Ready to join, with the user data not collected yet."""
    lab = Lab(assignors=(assignor,))
    lab.answers_user_data = False
    lab.subscribed().answer(ForLookup, lookup_answer())
    return lab


def stable(assignor: CooperativeRange) -> Lab:
    """Stable, and waiting for user data from the next rebalance on."""
    lab = Lab(assignors=(assignor,)).joining()
    lab.answer(ForJoin, join_answer(protocol_name=NAME))
    lab.answer(ForSync, sync_answer())
    lab.called_back()
    lab.answers_user_data = False
    return lab


def reply(lab: Lab, number: int = -1) -> None:
    """Answer a request for user data."""
    lab.feed(collect_user_data(lab.of(CollectUserData)[number]))


def test_handle_calls_no_assignor() -> None:
    lab = waiting(Forbidden())
    (action,) = lab.of(CollectUserData)
    assert lab.is_in(State.UNJOINED)
    lab.feed(UserDataCollected(action.attempt, {NAME: b"x"}))
    assert lab.is_in(State.JOINING)
    lab.answer(ForJoin, join_answer(protocol_name=NAME))
    actions = lab.machine.handle(Answered(lab.asked(ForSync).context, sync_answer()), lab.now)
    assert [type(each) for each in actions if isinstance(each, NotifyAssignor)] == [NotifyAssignor]
    assert lab.is_in(State.STABLE)


def test_user_data_goes_out_with_the_join() -> None:
    lab = waiting(Scripted())
    assert lab.count(ForJoin) == 0
    reply(lab)
    (protocol,) = lab.request(ForJoin).protocols
    assert (protocol.name, decode_subscription(protocol.metadata).user_data) == (NAME, b"mine")


@pytest.mark.parametrize("data", [bytearray(b"mine"), memoryview(b"mine")])
def test_any_kind_of_bytes_is_user_data(data: Any) -> None:
    assignor = Scripted()
    assignor.data = data
    lab = waiting(assignor)
    reply(lab)
    assert decode_subscription(lab.request(ForJoin).protocols[0].metadata).user_data == b"mine"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (LookupError("no data"), "subscription_user_data raised LookupError: no data"),
        ("text", "subscription_user_data returned str; return bytes or None"),
        ([1, 2], "subscription_user_data returned list; return bytes or None"),
    ],
)
def test_failing_hook_is_reported_and_the_join_tried_again_after_the_longest_backoff(data: Any, text: str) -> None:
    assignor = Scripted()
    assignor.data = data
    lab = waiting(assignor)
    reply(lab)
    assert [str(report.error) for report in lab.of(MembershipReport)] == [f"assignor {NAME!r}: {text}"]
    assert isinstance(lab.machine.snapshot().error, errors.AssignorFailed)
    lab.run_for(0.9)
    assert (lab.state, len(lab.of(CollectUserData))) == (State.UNJOINED, 1)
    assignor.data = None
    lab.run_for(0.2)
    reply(lab)
    assert lab.is_in(State.JOINING)


def test_failing_hook_of_a_stable_member_leaves_it_stable_with_its_partitions() -> None:
    assignor = Scripted()
    lab = stable(assignor)
    assignor.data = LookupError("no data")
    lab.feed(RebalanceRequested("test"))
    reply(lab)
    assert (lab.state, lab.machine.snapshot().assignment) == (State.STABLE, {"t": (0, 1)})
    lab.run_for(1.1)
    assert len(lab.of(CollectUserData)) == 3  # the first join, and two for this rebalance


def test_session_goes_on_while_the_hook_takes_long() -> None:
    lab = stable(Scripted())
    lab.feed(RebalanceRequested("test"))
    for _ in range(20):
        lab.beat()
    assert (lab.state, len(lab.of(CollectUserData))) == (State.STABLE, 2)
    assert lab.machine.fence_deadline > lab.now + 40.0
    reply(lab)
    assert lab.is_in(State.JOINING)


def sent(lab: Lab) -> int:
    return len(lab.of(Send))


@pytest.mark.parametrize("event", [Unsubscribed(), CloseRequested(leave=False)])
def test_answer_after_the_end_of_the_subscription_changes_nothing(event: Any) -> None:
    for failing in (False, True):
        assignor = Scripted()
        lab = waiting(assignor)
        lab.feed(event)
        state, requests = lab.state, sent(lab)
        assignor.data = LookupError("late") if failing else b"late"
        reply(lab)
        assert (lab.state, sent(lab), lab.of(MembershipReport)) == (state, requests, [])


def test_answer_to_an_attempt_that_another_replaced_changes_nothing() -> None:
    lab = waiting(Scripted())
    lab.feed(Unsubscribed())
    lab.feed(Subscribed(("u",)))
    first, second = lab.of(CollectUserData)
    assert (first.attempt.topics, second.attempt.topics) == (("t",), ("u",))
    reply(lab, 0)
    assert (lab.state, lab.count(ForJoin)) == (State.UNJOINED, 0)
    reply(lab, 1)
    assert lab.is_in(State.JOINING)
    for _ in range(2):
        reply(lab, 1)
        assert (lab.state, lab.count(ForJoin)) == (State.JOINING, 1)


def test_subscription_that_changed_meanwhile_is_the_one_that_joins() -> None:
    lab = waiting(Scripted())
    lab.feed(Subscribed(("t", "u")))
    reply(lab)
    assert lab.count(ForJoin) == 0
    reply(lab)
    assert decode_subscription(lab.request(ForJoin).protocols[0].metadata).topics == ("t", "u")


def test_identity_that_was_lost_meanwhile_is_given_up_before_the_join() -> None:
    """The LOST callback does not wait for the hook."""
    lab = stable(Scripted())
    lab.feed(RebalanceRequested("test"))
    lab.run_for(lab.settings.heartbeat_interval_s + 0.001)
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert (lab.state, lab.callbacks()[-1]) == (State.REVOKING, "lost")
    reply(lab)
    assert lab.is_in(State.REVOKING)
    lab.called_back()
    reply(lab)
    assert lab.is_in(State.JOINING)
    assert lab.request(ForJoin).member_id == ""


def test_coordinator_that_was_lost_meanwhile_is_found_before_the_join() -> None:
    lab = stable(Scripted())
    lab.feed(RebalanceRequested("test"))
    lab.run_for(lab.settings.heartbeat_interval_s + 0.001)
    lab.fail(ForHeartbeat)
    joins = lab.count(ForJoin)
    reply(lab)
    assert (lab.state, lab.count(ForJoin)) == (State.STABLE, joins)
    lab.run_for(0.3)
    lab.answer(ForLookup, lookup_answer())
    reply(lab)
    assert (lab.state, lab.count(ForJoin)) == (State.JOINING, joins + 1)
