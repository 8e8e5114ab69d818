"""Heartbeats of a member, its fence, and its coordinator's loss, in virtual time."""

from __future__ import annotations

import pytest

from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import (
    CoordinatorSuspected,
    Disconnect,
    ForHeartbeat,
    ForJoin,
    ForLookup,
    ForSync,
    Subscribed,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import HeartbeatResponse
from tests.unit.group.lab import COORDINATOR, ME, Lab, join_answer, lookup_answer, sync_answer


def test_heartbeats_keep_their_interval_one_at_a_time() -> None:
    lab = Lab().stable()
    lab.run_for(3.0)
    assert lab.count(ForHeartbeat) == 1
    lab.run_for(30.0)
    assert lab.count(ForHeartbeat) == 1
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=0))
    assert lab.count(ForHeartbeat) == 2


def test_fence_falls_one_session_after_the_last_good_heartbeat_was_sent() -> None:
    """Not after it was answered: the broker's timer may have started when it was sent."""
    lab = Lab().stable()
    lab.run_for(3.0)
    sent_at = lab.now
    lab.run_for(20.0)
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=0))
    assert lab.machine.fence_deadline == sent_at + 45.0


@pytest.mark.parametrize(("assignor", "state"), [("range", State.REVOKING), ("cooperative-sticky", State.JOINING)])
def test_fence_falls_one_rebalance_timeout_after_the_last_heartbeat_before_the_rebalance(
    assignor: str, state: State
) -> None:
    """The broker removes a member whose JoinGroup comes too late, or never, although its heartbeats are answered."""
    lab = Lab(assignors=(assignor,), rebalance_timeout_s=20.0).joining()
    lab.answer(ForJoin, join_answer(protocol_name=assignor))
    lab.answer(ForSync, sync_answer())
    lab.beat()
    stable_at = lab.now
    while lab.now < stable_at + 19.0:
        lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert lab.is_in(state)
    assert lab.machine.fence_deadline == pytest.approx(stable_at + 20.0, abs=0.01)


def test_heartbeats_while_the_others_sync_do_not_put_off_the_end_of_the_wait_for_the_plan() -> None:
    """The broker removes a leader that plans for longer than the rebalance timeout."""
    lab = Lab(assignors=("cooperative-sticky",), rebalance_timeout_s=20.0).joining()
    lab.answer(ForJoin, join_answer(protocol_name="cooperative-sticky"))
    lab.answer(ForSync, sync_answer())
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    joined_at = lab.now
    lab.answer(ForJoin, join_answer(protocol_name="cooperative-sticky", generation_id=2, leader=ME))
    assert lab.is_in(State.PLANNING)
    for _ in range(5):
        lab.beat()
    assert lab.machine.fence_deadline == pytest.approx(joined_at + 20.0, abs=0.01)


def test_unanswered_session_drops_the_coordinator_and_the_next_gets_a_full_session() -> None:
    lab = Lab().stable()
    lab.run_for(45.0)
    assert lab.machine.coordinator is None
    assert (lab.state, lab.machine.snapshot().generation) == (State.STABLE, 1)
    lab.run_for(0.2)
    lab.answer(ForLookup, lookup_answer(address=("other", 1)))
    assert lab.asked(ForHeartbeat).address == ("other", 1)
    lab.run_for(44.0)
    assert lab.machine.coordinator == ("other", 1)


def test_suspected_coordinator_loses_its_connections() -> None:
    """It may be the same broker that is found again; on the old connection everything waits for what it owes."""
    lab = Lab().stable()
    lab.run_for(45.0)
    assert [action.address for action in lab.of(Disconnect)] == [COORDINATOR]


def test_heartbeat_without_an_answer_costs_the_connections_too() -> None:
    lab = Lab().beating()
    lab.fail(ForHeartbeat)
    assert [action.address for action in lab.of(Disconnect)] == [COORDINATOR]


@pytest.mark.parametrize(("session_s", "request_s", "patience"), [(10.0, 30.0, 10.0), (45.0, 30.0, 30.0)])
def test_heartbeat_is_not_waited_for_longer_than_a_session(session_s: float, request_s: float, patience: float) -> None:
    lab = Lab(session_timeout_s=session_s, request_timeout_s=request_s).beating()
    assert lab.asked(ForHeartbeat).timeout_s == patience


def test_time_out_of_a_heartbeat_to_the_old_coordinator_does_not_cost_the_new_one() -> None:
    lab = Lab().stable()
    lab.run_for(45.0)
    old = lab.asked(ForHeartbeat)
    lab.run_for(0.2)
    lab.answer(ForLookup, lookup_answer(address=("other", 1)))
    lab.feed_failure(old)
    assert lab.machine.coordinator == ("other", 1)


def test_slow_sync_is_followed_by_a_heartbeat_at_once() -> None:
    """The fence counts from when the sync was sent; a heartbeat renews it."""
    lab = Lab().syncing()
    lab.run_for(2.0)
    lab.now += 40.0
    lab.answer(ForSync, sync_answer())
    assert lab.new[-1] == lab.asked(ForHeartbeat)


def test_slow_sync_does_not_put_the_fence_back_behind_a_newer_heartbeat() -> None:
    """Partitions that a rebalance then takes away are revoked, not lost: the session never ended."""
    lab = Lab(session_timeout_s=10.0).syncing()
    lab.beat()
    lab.beat()
    lab.beat()
    fence = lab.machine.fence_deadline
    lab.run_for(2.0)
    lab.answer(ForSync, sync_answer())
    assert lab.machine.fence_deadline == fence
    assert fence > lab.now


def test_another_request_that_finds_no_coordinator_makes_it_unknown() -> None:
    lab = Lab().stable()
    lab.feed(CoordinatorSuspected(("elsewhere", 1)))
    assert lab.machine.coordinator == COORDINATOR
    lab.feed(CoordinatorSuspected(COORDINATOR))
    assert lab.machine.coordinator is None


def test_stable_member_keeps_its_partitions_while_no_coordinator_is_known() -> None:
    lab = Lab().stable()
    lab.feed(CoordinatorSuspected(COORDINATOR))
    lab.feed(Subscribed(("t", "u")))
    assert lab.is_in(State.STABLE)
