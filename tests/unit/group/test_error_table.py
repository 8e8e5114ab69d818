"""Outcomes of every error code in every group API: the table of Java's handlers, written down a second time.

The first time is `group.classification`; here the outcome is stated on a real machine: state, member id, generation,
coordinator, error reported to the user. Every code of the protocol and an unknown one are tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fleet_consumer.group import errors
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.messages import ForHeartbeat, ForJoin, ForLookup, ForSync, MembershipReport
from fleet_consumer.wire.errors import ErrorCode as E
from fleet_consumer.wire.groups import HeartbeatResponse
from tests.support.assignors import CooperativeRange
from tests.unit.group.lab import ME, ForCommit, Lab, commit_answer, join_answer, lookup_answer, sync_answer

UNKNOWN_CODE = 9_999
ALL_CODES = [int(code) for code in E] + [UNKNOWN_CODE]


@dataclass(frozen=True)
class Outcome:
    """The member after the answer, before any time has passed."""

    state: State
    member_id: str = ME
    generation: int = 1
    coordinator: bool = True
    told: type[errors.ConsumerError] | None = None


def observe(lab: Lab) -> Outcome:
    snapshot = lab.machine.snapshot()
    told = [type(report.error) for report in lab.of(MembershipReport)]
    assert len(told) <= 1
    return Outcome(
        lab.state,
        snapshot.member_id,
        snapshot.generation,
        snapshot.coordinator is not None,
        told[0] if told else None,  # type: ignore[arg-type]
    )


def fatal(kind: type[errors.ConsumerError], member_id: str = ME, *, coordinator: bool = True) -> Outcome:
    return Outcome(State.FAILED, member_id, -1, coordinator, told=kind)


REFUSALS = {
    E.INCONSISTENT_GROUP_PROTOCOL: errors.InconsistentProtocol,
    E.INVALID_SESSION_TIMEOUT: errors.InvalidSessionTimeout,
    E.INVALID_GROUP_ID: errors.InvalidGroupId,
    E.GROUP_MAX_SIZE_REACHED: errors.GroupFull,
    E.GROUP_AUTHORIZATION_FAILED: errors.GroupAuthorizationFailed,
}


@pytest.mark.parametrize("code", ALL_CODES)
def test_find_coordinator(code: int) -> None:
    waiting = Outcome(State.UNJOINED, "", -1, coordinator=False)
    expected = {
        E.NONE: Outcome(State.JOINING, "", -1),
        E.COORDINATOR_NOT_AVAILABLE: waiting,
        E.NOT_COORDINATOR: waiting,
        E.COORDINATOR_LOAD_IN_PROGRESS: waiting,
        E.REQUEST_TIMED_OUT: waiting,
        **{refusal: fatal(kind, "", coordinator=False) for refusal, kind in REFUSALS.items()},
    }
    lab = Lab().subscribed()
    lab.answer(ForLookup, lookup_answer(code))
    assert observe(lab) == expected.get(E(code) if code != UNKNOWN_CODE else code) or (  # type: ignore[call-overload]
        code not in expected and observe(lab) == fatal(errors.UnexpectedAnswer, "", coordinator=False)
    )


@pytest.mark.parametrize("code", ALL_CODES)
def test_join_group(code: int) -> None:
    """The member had an id and a generation before, as in a rebalance of a running group."""
    lost = Outcome(State.UNJOINED, ME, 1, coordinator=False)
    again = Outcome(State.JOINING, ME, 1)
    expected: dict[int, Outcome] = {
        E.NONE: Outcome(State.SYNCING, ME, 2),
        E.COORDINATOR_NOT_AVAILABLE: lost,
        E.NOT_COORDINATOR: lost,
        E.COORDINATOR_LOAD_IN_PROGRESS: Outcome(State.UNJOINED, ME, 1),
        E.REBALANCE_IN_PROGRESS: again,
        E.UNKNOWN_MEMBER_ID: Outcome(State.JOINING, "", -1),
        E.MEMBER_ID_REQUIRED: Outcome(State.JOINING, "given", -1),
        E.FENCED_INSTANCE_ID: fatal(errors.FencedInstance),
        E.UNSUPPORTED_VERSION: fatal(errors.UnsupportedByCoordinator),
        **{refusal: fatal(kind) for refusal, kind in REFUSALS.items()},
    }
    lab = Lab().revoking()
    lab.called_back()
    before = lab.count(ForJoin)
    member_id = "given" if code == E.MEMBER_ID_REQUIRED else ME
    lab.answer(ForJoin, join_answer(code, generation_id=2, member_id=member_id))
    assert observe(lab) == expected.get(code, fatal(errors.UnexpectedAnswer))
    assert lab.count(ForJoin) - before == (1 if lab.is_in(State.JOINING) else 0)


@pytest.mark.parametrize("code", ALL_CODES)
def test_sync_group(code: int) -> None:
    lost = Outcome(State.UNJOINED, ME, 1, coordinator=False)
    expected: dict[int, Outcome] = {
        E.NONE: Outcome(State.STABLE),
        E.COORDINATOR_NOT_AVAILABLE: lost,
        E.NOT_COORDINATOR: lost,
        E.REBALANCE_IN_PROGRESS: Outcome(State.JOINING),
        E.COORDINATOR_LOAD_IN_PROGRESS: Outcome(State.JOINING),
        E.UNKNOWN_MEMBER_ID: Outcome(State.JOINING, "", -1),
        E.ILLEGAL_GENERATION: Outcome(State.JOINING, ME, -1),
        E.FENCED_INSTANCE_ID: fatal(errors.FencedInstance),
        E.GROUP_AUTHORIZATION_FAILED: fatal(errors.GroupAuthorizationFailed),
        E.INCONSISTENT_GROUP_PROTOCOL: fatal(errors.InconsistentProtocol),
    }
    lab = Lab().syncing()
    lab.answer(ForSync, sync_answer(code))
    assert observe(lab) == expected.get(code, fatal(errors.UnexpectedAnswer))


@pytest.mark.parametrize("code", ALL_CODES)
def test_heartbeat(code: int) -> None:
    lost = Outcome(State.STABLE, coordinator=False)
    expected: dict[int, Outcome] = {
        E.NONE: Outcome(State.STABLE),
        E.COORDINATOR_NOT_AVAILABLE: lost,
        E.NOT_COORDINATOR: lost,
        E.COORDINATOR_LOAD_IN_PROGRESS: Outcome(State.STABLE),
        E.REBALANCE_IN_PROGRESS: Outcome(State.REVOKING),
        # What it owned is lost, and the user must hear of that before it joins again.
        E.UNKNOWN_MEMBER_ID: Outcome(State.REVOKING, "", -1),
        E.ILLEGAL_GENERATION: Outcome(State.REVOKING, ME, -1),
        E.FENCED_INSTANCE_ID: fatal(errors.FencedInstance),
        E.GROUP_AUTHORIZATION_FAILED: fatal(errors.GroupAuthorizationFailed),
    }
    lab = Lab().beating()
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=code))
    assert observe(lab) == expected.get(code, fatal(errors.UnexpectedAnswer))


@pytest.mark.parametrize("code", ALL_CODES)
def test_offset_commit_that_waits(code: int) -> None:
    """Second in each pair: the error raised from the commit; `retried` while it is pending."""
    retried = "retried"
    lost = Outcome(State.STABLE, coordinator=False)
    expected: dict[int, tuple[Outcome, object]] = {
        E.NONE: (Outcome(State.STABLE), None),
        E.COORDINATOR_NOT_AVAILABLE: (lost, retried),
        E.NOT_COORDINATOR: (lost, retried),
        E.REQUEST_TIMED_OUT: (lost, retried),
        E.COORDINATOR_LOAD_IN_PROGRESS: (Outcome(State.STABLE), retried),
        E.UNKNOWN_TOPIC_OR_PARTITION: (Outcome(State.STABLE), retried),
        E.UNKNOWN_TOPIC_ID: (Outcome(State.STABLE), retried),
        E.REBALANCE_IN_PROGRESS: (Outcome(State.REVOKING), errors.RebalanceInProgress),
        E.UNKNOWN_MEMBER_ID: (Outcome(State.REVOKING, "", -1), errors.CommitFailed),
        E.ILLEGAL_GENERATION: (Outcome(State.REVOKING, ME, -1), errors.CommitFailed),
        E.FENCED_INSTANCE_ID: (fatal(errors.FencedInstance), errors.FencedInstance),
        E.GROUP_AUTHORIZATION_FAILED: (fatal(errors.GroupAuthorizationFailed), errors.GroupAuthorizationFailed),
        E.TOPIC_AUTHORIZATION_FAILED: (Outcome(State.STABLE), errors.TopicAuthorizationFailed),
        E.OFFSET_METADATA_TOO_LARGE: (Outcome(State.STABLE), errors.CommitRefused),
        E.INVALID_COMMIT_OFFSET_SIZE: (Outcome(State.STABLE), errors.CommitRefused),
    }
    lab = Lab().committing()
    lab.answer(ForCommit, commit_answer(code))
    ended = lab.committed()
    told = retried if not ended else None if ended[0] is None else type(ended[0])
    assert (observe(lab), told) == expected.get(code, (Outcome(State.STABLE), errors.RetriableCommitFailed))


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS])
def test_offset_commit_that_does_not_wait_fails_where_the_other_retries(code: int) -> None:
    lab = Lab().committing(sync=False)
    lab.answer(ForCommit, commit_answer(code))
    assert [type(error) for error in lab.committed()] == [errors.RetriableCommitFailed]


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID])
def test_commit_answer_to_an_older_generation_resets_nothing(code: int) -> None:
    """The commit left before a rebalance and is answered during the next: the caller hears it, the member goes on."""
    lab = Lab().committing()
    lab.beat(E.REBALANCE_IN_PROGRESS)
    lab.called_back()
    lab.answer(ForJoin, join_answer(generation_id=2))
    lab.answer(ForCommit, commit_answer(code))
    assert observe(lab) == Outcome(State.SYNCING, generation=2)
    assert [type(error) for error in lab.committed()] == [errors.RebalanceInProgress]
    lab.answer(ForSync, sync_answer())
    assert observe(lab) == Outcome(State.STABLE, generation=2)


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID])
def test_heartbeat_answer_to_an_older_generation_resets_nothing(code: int) -> None:
    lab = Lab().beating()
    old = lab.asked(ForHeartbeat)
    lab.feed_answer(old, HeartbeatResponse(error_code=E.REBALANCE_IN_PROGRESS))
    lab.called_back()
    lab.answer(ForJoin, join_answer(generation_id=2))
    lab.feed_answer(old, HeartbeatResponse(error_code=code))
    assert observe(lab) == Outcome(State.SYNCING, generation=2)


@pytest.mark.parametrize("kind", [ForJoin, ForSync])
def test_being_fenced_is_final_even_in_a_stale_answer(kind: type) -> None:
    lab = Lab().syncing() if kind is ForSync else Lab().joining()
    stale = lab.asked(kind)
    lab.fail(kind)
    answer = join_answer(E.FENCED_INSTANCE_ID) if kind is ForJoin else sync_answer(E.FENCED_INSTANCE_ID)
    lab.feed_answer(stale, answer)
    assert lab.is_in(State.FAILED)


@pytest.mark.parametrize(("state", "kind"), [("joining", ForJoin), ("syncing", ForSync), ("beating", ForHeartbeat)])
def test_lost_connection_costs_the_coordinator_and_not_the_identity(state: str, kind: type) -> None:
    lab: Lab = getattr(Lab(), state)()
    before = lab.machine.snapshot()
    lab.fail(kind)
    after = lab.machine.snapshot()
    assert after.coordinator is None
    assert (after.member_id, after.generation) == (before.member_id, before.generation)
    lab.run_for(0.2)
    assert lab.count(ForLookup) == 2


# The same answers for a cooperative member, which holds t-0 and t-1 through the rebalance.


def cooperative(lab: Lab, generation: int = 1) -> Lab:
    lab.answer(ForJoin, join_answer(protocol_name=CooperativeRange.name, generation_id=generation))
    return lab


def cooperative_rejoining() -> Lab:
    lab = cooperative(Lab(assignors=(CooperativeRange(),)).joining())
    lab.answer(ForSync, sync_answer())
    lab.called_back()
    lab.beat(E.REBALANCE_IN_PROGRESS)
    assert lab.is_in(State.JOINING)
    return lab


def told_of(lab: Lab) -> list[str]:
    """The callbacks since the first assignment."""
    return lab.callbacks()[1:]


@pytest.mark.parametrize("code", ALL_CODES)
def test_join_group_of_a_cooperative_member(code: int) -> None:
    """Only an answer that takes the identity away costs partitions, and then all of them at once."""
    lost = Outcome(State.UNJOINED, ME, 1, coordinator=False)
    expected: dict[int, Outcome] = {
        E.NONE: Outcome(State.SYNCING, ME, 2),
        E.COORDINATOR_NOT_AVAILABLE: lost,
        E.NOT_COORDINATOR: lost,
        E.COORDINATOR_LOAD_IN_PROGRESS: Outcome(State.UNJOINED, ME, 1),
        E.REBALANCE_IN_PROGRESS: Outcome(State.JOINING, ME, 1),
        E.UNKNOWN_MEMBER_ID: Outcome(State.REVOKING, "", -1),
        E.MEMBER_ID_REQUIRED: Outcome(State.REVOKING, "given", -1),
        E.FENCED_INSTANCE_ID: fatal(errors.FencedInstance),
        E.UNSUPPORTED_VERSION: fatal(errors.UnsupportedByCoordinator),
        **{refusal: fatal(kind) for refusal, kind in REFUSALS.items()},
    }
    lab = cooperative_rejoining()
    member_id = "given" if code == E.MEMBER_ID_REQUIRED else ME
    lab.answer(ForJoin, join_answer(code, generation_id=2, member_id=member_id, protocol_name=CooperativeRange.name))
    assert observe(lab) == expected.get(code, fatal(errors.UnexpectedAnswer))
    assert told_of(lab) == (["lost"] if lab.is_in(State.REVOKING) else [])


@pytest.mark.parametrize("code", ALL_CODES)
def test_sync_group_of_a_cooperative_member(code: int) -> None:
    lost = Outcome(State.UNJOINED, ME, 2, coordinator=False)
    expected: dict[int, Outcome] = {
        E.NONE: Outcome(State.STABLE, ME, 2),
        E.COORDINATOR_NOT_AVAILABLE: lost,
        E.NOT_COORDINATOR: lost,
        E.REBALANCE_IN_PROGRESS: Outcome(State.JOINING, ME, 2),
        E.COORDINATOR_LOAD_IN_PROGRESS: Outcome(State.JOINING, ME, 2),
        E.UNKNOWN_MEMBER_ID: Outcome(State.REVOKING, "", -1),
        E.ILLEGAL_GENERATION: Outcome(State.REVOKING, ME, -1),
        E.FENCED_INSTANCE_ID: fatal(errors.FencedInstance),
        E.GROUP_AUTHORIZATION_FAILED: fatal(errors.GroupAuthorizationFailed),
        E.INCONSISTENT_GROUP_PROTOCOL: fatal(errors.InconsistentProtocol),
    }
    lab = cooperative(cooperative_rejoining(), 2)
    lab.answer(ForSync, sync_answer(code))
    assert observe(lab) == expected.get(code, fatal(errors.UnexpectedAnswer))
    told = {State.REVOKING: ["lost"], State.STABLE: ["assigned"]}
    assert told_of(lab) == told.get(lab.state, [])


@pytest.mark.parametrize("code", ALL_CODES)
def test_heartbeat_of_a_cooperative_member_whose_join_waits(code: int) -> None:
    """Whatever it says, the answer to the JoinGroup is the one that counts."""
    lab = cooperative_rejoining()
    lab.run_for(lab.settings.heartbeat_interval_s + 0.001)
    lab.answer(ForHeartbeat, HeartbeatResponse(error_code=code))
    assert observe(lab) == Outcome(State.JOINING)
    assert told_of(lab) == []


@pytest.mark.parametrize("code", ALL_CODES)
def test_offset_commit_of_a_cooperative_member_whose_join_waits(code: int) -> None:
    retried = "retried"
    joining = Outcome(State.JOINING)
    lost = Outcome(State.JOINING, coordinator=False)
    expected: dict[int, tuple[Outcome, object]] = {
        E.NONE: (joining, None),
        E.COORDINATOR_NOT_AVAILABLE: (lost, retried),
        E.NOT_COORDINATOR: (lost, retried),
        E.REQUEST_TIMED_OUT: (lost, retried),
        E.COORDINATOR_LOAD_IN_PROGRESS: (joining, retried),
        E.UNKNOWN_TOPIC_OR_PARTITION: (joining, retried),
        E.UNKNOWN_TOPIC_ID: (joining, retried),
        # The next generation has begun at the broker: the same offsets are committed in it.
        E.REBALANCE_IN_PROGRESS: (joining, retried),
        E.UNKNOWN_MEMBER_ID: (joining, retried),
        E.ILLEGAL_GENERATION: (joining, retried),
        E.FENCED_INSTANCE_ID: (fatal(errors.FencedInstance), errors.FencedInstance),
        E.GROUP_AUTHORIZATION_FAILED: (fatal(errors.GroupAuthorizationFailed), errors.GroupAuthorizationFailed),
        E.TOPIC_AUTHORIZATION_FAILED: (joining, errors.TopicAuthorizationFailed),
        E.OFFSET_METADATA_TOO_LARGE: (joining, errors.CommitRefused),
        E.INVALID_COMMIT_OFFSET_SIZE: (joining, errors.CommitRefused),
    }
    lab = cooperative_rejoining()
    lab.commit()
    lab.answer(ForCommit, commit_answer(code))
    ended = lab.committed()
    told = retried if not ended else None if ended[0] is None else type(ended[0])
    assert (observe(lab), told) == expected.get(code, (joining, errors.RetriableCommitFailed))
