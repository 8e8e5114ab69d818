"""The coordinator thread next to a broker that says what the test wants: silence, refusals, its own end."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fleet_consumer import ConsumerSettings
from fleet_consumer.assignors import Assignment, Assignor, load
from fleet_consumer.assignors.range import RangeAssignor
from fleet_consumer.clock import SystemClock
from fleet_consumer.consumer.engine import classic_member
from fleet_consumer.consumer.settings import group_settings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import CallBack, FinishCommit, MembershipReport
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartitions,
    encode_assignment,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.offsets import OffsetCommitRequest
from fleet_consumer.wire.topics import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.waiting import eventually
from tests.unit.net.scripted_broker import SILENT, Answer, Asked, ScriptedBroker

PART = TopicPartition("t", 0)
PATIENCE_S = 60.0


def always(answer: Answer) -> Callable[[Asked], Answer]:
    return lambda _: answer


class GroupBroker(ScriptedBroker):
    """A broker that coordinates a group of one member, which follows and is given t-0."""

    def __init__(self) -> None:
        super().__init__()
        found = FindCoordinatorResponseCoordinator(
            key="g", node_id=0, host=self.address.host, port=self.address.port, error_code=0, error_message=None
        )
        share = ConsumerProtocolTopicPartitions(topic="t", partitions=(0,))
        assignment = encode_assignment(ConsumerProtocolAssignment(assigned_partitions=(share,)), 3)
        answers: dict[type[Request[Any]], Answer] = {
            FindCoordinatorRequest: FindCoordinatorResponse(coordinators=(found,)),
            MetadataRequest: self._one_topic(),
            JoinGroupRequest: JoinGroupResponse(
                error_code=0,
                generation_id=1,
                protocol_type="consumer",
                protocol_name="range",
                leader="other",
                member_id="m",
                members=(),
            ),
            SyncGroupRequest: SyncGroupResponse(
                error_code=0, protocol_type="consumer", protocol_name="range", assignment=assignment
            ),
            HeartbeatRequest: HeartbeatResponse(error_code=0),
            LeaveGroupRequest: LeaveGroupResponse(error_code=0, members=()),
        }
        for request, answer in answers.items():
            self.on(request, always(answer))

    def _one_topic(self) -> MetadataResponse:
        part = MetadataResponsePartition(error_code=0, partition_index=0, leader_id=0, replica_nodes=(), isr_nodes=())
        return MetadataResponse(
            brokers=(MetadataResponseBroker(node_id=0, host=self.address.host, port=self.address.port),),
            topics=(MetadataResponseTopic(error_code=0, name="t", partitions=(part,)),),
        )

    def heard(self, request: type[Request[Any]]) -> list[Asked]:
        return [asked for asked in list(self.asked) if isinstance(asked.request, request)]


@contextlib.contextmanager
def member(broker: ScriptedBroker, assignor: Assignor | None = None, **changes: Any) -> Iterator[CoordinatorThread]:
    """A subscribed member, closed without a word at the end."""
    connection = ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="test")
    settings = ConsumerSettings(connection=connection, group_id="g", heartbeat_interval_ms=200, **changes)
    clock = SystemClock()
    thread = classic_member(
        connection, group_settings(settings), (assignor or load("range"),), clock=clock, on_change=lambda: None
    )
    thread.start()
    thread.subscribe(["t"])
    try:
        yield thread
    finally:
        thread.close(leave=False, timeout_s=5.0)


def await_stable(thread: CoordinatorThread) -> None:
    eventually(lambda: thread.snapshot.state == "Stable", timeout_s=PATIENCE_S, what="the member to be Stable")


def test_silent_connection_to_the_coordinator_is_given_up_with_the_session() -> None:
    with GroupBroker() as broker, member(broker, session_timeout_ms=1_000) as thread:
        await_stable(thread)
        mute: set[int] = set()

        def beat(asked: Asked) -> Answer:
            if not mute:
                mute.add(asked.connection)
            return SILENT if asked.connection in mute else HeartbeatResponse(error_code=0)

        broker.on(HeartbeatRequest, beat)

        def fresh() -> list[Asked]:
            return [asked for asked in broker.heard(HeartbeatRequest) if mute and asked.connection > max(mute)]

        eventually(fresh, timeout_s=PATIENCE_S, what="a heartbeat on a fresh connection")
        muted_at = next(asked.at for asked in broker.heard(HeartbeatRequest) if asked.connection in mute)
        # Far below the request time-out of 30 s, which that heartbeat would have waited for.
        assert fresh()[0].at - muted_at < 15.0


def test_close_without_any_time_leaves_the_group() -> None:
    """Others would wait for a whole session."""
    with GroupBroker() as broker, member(broker) as thread:
        await_stable(thread)
        thread.close(leave=True, timeout_s=0.0)
        eventually(lambda: broker.heard(LeaveGroupRequest), timeout_s=PATIENCE_S, what="LeaveGroup")


def test_close_leaves_the_group_though_its_commits_take_all_its_time() -> None:
    with GroupBroker() as broker, member(broker) as thread:
        await_stable(thread)
        # Brokers answer in order: behind a commit without an answer there are none to heartbeats either. One to a
        # heartbeat would end the connection, and a member that is looking for its coordinator cannot leave.
        broker.on(OffsetCommitRequest, always(SILENT))
        broker.on(HeartbeatRequest, always(SILENT))
        ticket = thread.commit({PART: OffsetAndMetadata(7)}, SystemClock().monotonic() + 60.0)
        eventually(lambda: broker.heard(OffsetCommitRequest), timeout_s=PATIENCE_S, what="the commit to be sent")
        assert thread.close(leave=True, timeout_s=3.0)
        assert isinstance(ticket.error, errors.ConsumerClosed)
        eventually(lambda: broker.heard(LeaveGroupRequest), timeout_s=PATIENCE_S, what="LeaveGroup")


def test_close_does_not_wait_for_a_coordinator_that_is_not_found() -> None:
    with GroupBroker() as broker, member(broker) as thread:
        await_stable(thread)
        nowhere = FindCoordinatorResponseCoordinator(
            key="g", node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=None
        )
        broker.on(FindCoordinatorRequest, always(FindCoordinatorResponse(coordinators=(nowhere,))))
        broker.on(HeartbeatRequest, always(HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)))
        eventually(lambda: thread.snapshot.coordinator is None, timeout_s=PATIENCE_S, what="the coordinator to be lost")
        began = SystemClock().monotonic()
        assert thread.close(leave=True, timeout_s=2 * PATIENCE_S)
        assert SystemClock().monotonic() - began < PATIENCE_S
        assert not broker.heard(LeaveGroupRequest)


class Exiting(RangeAssignor):
    """An assignor of a user's that means to end the process, when it is asked for its data a second time."""

    def __init__(self) -> None:
        self.asked = 0

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        self.asked += 1
        if self.asked > 1:
            raise SystemExit(1)
        return None


def test_commits_end_with_the_thread_that_was_to_make_them() -> None:
    """Their callers would wait for a minute for what nobody does any more."""
    with GroupBroker() as broker, member(broker, assignor=Exiting()) as thread:
        broker.on(OffsetCommitRequest, lambda _: SILENT)
        await_stable(thread)
        under_way = thread.commit({PART: OffsetAndMetadata(7)}, SystemClock().monotonic() + 60.0)
        eventually(lambda: broker.heard(OffsetCommitRequest), timeout_s=PATIENCE_S, what="the commit to be sent")
        thread.enforce_rebalance("so that the assignor is asked again")
        thread.called_back(next(change for change in thread.changes if isinstance(change, CallBack)))
        eventually(lambda: _given_back(thread, under_way), timeout_s=PATIENCE_S, what="the thread to end")
        assert under_way.wait(PATIENCE_S)
        assert isinstance(under_way.error, errors.InternalFailure)
        late = thread.commit({PART: OffsetAndMetadata(8)}, SystemClock().monotonic() + 60.0)
        assert late.wait(PATIENCE_S)
        assert isinstance(late.error, errors.InternalFailure)
        assert [change.commit.ticket for change in thread.changes if isinstance(change, FinishCommit)] == [
            under_way,
            late,
        ]


def _given_back(thread: CoordinatorThread, under_way: Ticket[None]) -> bool:
    """Run callbacks until the commit has ended."""
    for change in list(thread.changes):
        if isinstance(change, CallBack):
            thread.called_back(change)
    return under_way.done


class Failing(RangeAssignor):
    """An assignor whose hooks raise, the one for user data once."""

    def __init__(self) -> None:
        self.asked_on: list[str] = []

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        self.asked_on.append(threading.current_thread().name)
        if len(self.asked_on) == 1:
            raise LookupError("no data yet")
        return None

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        raise LookupError("no thanks")


def test_hooks_that_raise_are_reported_and_the_member_joins() -> None:
    assignor = Failing()
    with GroupBroker() as broker, member(broker, assignor=assignor) as thread:
        await_stable(thread)
        eventually(lambda: len(thread.changes) == 3, timeout_s=PATIENCE_S, what="two errors and an assignment")
        first, second, assigned = thread.changes
        assert isinstance(first, MembershipReport)
        assert "subscription_user_data raised LookupError: no data yet" in str(first.error)
        assert isinstance(second, MembershipReport)
        assert "on_assignment raised LookupError: no thanks" in str(second.error)
        assert isinstance(assigned, CallBack)
        assert set(assignor.asked_on) == {"coordinator-g"}


class ContestedInbox(deque[Any]):
    """An inbox whose item another thread takes just before `popleft`."""

    def popleft(self) -> Any:
        self.clear()
        return super().popleft()


def test_thread_ends_in_order_though_another_one_empties_its_inbox_at_that_moment() -> None:
    """An assignor that answers while the coordinator thread ends checks the inbox, too."""
    changes: list[None] = []
    connection = ConnectionSettings(bootstrap_servers=("localhost:1",), client_id="test")
    settings = group_settings(ConsumerSettings(connection=connection, group_id="g"))
    thread = classic_member(
        connection, settings, (load("range"),), clock=SystemClock(), on_change=lambda: changes.append(None)
    )
    thread._inbox = ContestedInbox([object()])
    thread._end(None)
    assert changes, "the user's thread heard of the end"
