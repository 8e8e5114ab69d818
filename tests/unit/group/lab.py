"""Test bench of a member: virtual time, and a scripted coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fleet_consumer.assignors import Assignor, load
from fleet_consumer.group.classic.machine import ClassicMachine
from fleet_consumer.group.classic.planning import collect_user_data, notify_assignor, run_assignor
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.membership import GroupSettings, OffsetAndMetadata
from fleet_consumer.group.messages import (
    Action,
    Answered,
    CallBack,
    CalledBack,
    CollectUserData,
    Commit,
    CommitRequested,
    Context,
    Event,
    FinishCommit,
    ForCommit,
    ForHeartbeat,
    ForJoin,
    ForLookup,
    ForPlan,
    ForSync,
    ForWatch,
    MembershipReport,
    NotifyAssignor,
    RunAssignor,
    Send,
    Subscribed,
    Tick,
    Unanswered,
)
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    encode_assignment,
    encode_subscription,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from fleet_consumer.wire.offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from fleet_consumer.wire.topics import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

A = TypeVar("A")
COORDINATOR = ("kafka", 9092)
ME = "member-1"
OTHER = "member-2"
PART = TopicPartition("t", 0)


def lookup_answer(code: int = ErrorCode.NONE, address: tuple[str, int] = COORDINATOR) -> FindCoordinatorResponse:
    entry = FindCoordinatorResponseCoordinator(
        key="g", node_id=1, host=address[0], port=address[1], error_code=code, error_message=None
    )
    return FindCoordinatorResponse(coordinators=(entry,))


def join_answer(code: int = ErrorCode.NONE, **changes: Any) -> JoinGroupResponse:
    wanted = encode_subscription(ConsumerProtocolSubscription(topics=("t",)), 3)
    fields: dict[str, Any] = {
        "error_code": code,
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": OTHER,
        "member_id": ME,
        "members": (),
    }
    if changes.get("leader") == ME:
        fields["members"] = tuple(JoinGroupResponseMember(member_id=name, metadata=wanted) for name in (ME, OTHER))
    return JoinGroupResponse(**{**fields, **changes})


def sync_answer(code: int = ErrorCode.NONE, topics: Mapping[str, Sequence[int]] | None = None) -> SyncGroupResponse:
    share = {"t": (0, 1)} if topics is None else topics
    blob = encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=tuple(
                ConsumerProtocolTopicPartitions(topic=topic, partitions=tuple(numbers))
                for topic, numbers in share.items()
            )
        ),
        3,
    )
    return SyncGroupResponse(error_code=code, assignment=blob if code == ErrorCode.NONE else b"")


def commit_answer(code: int = ErrorCode.NONE) -> OffsetCommitResponse:
    part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return OffsetCommitResponse(topics=(OffsetCommitResponseTopic(name="t", partitions=(part,)),))


def metadata_answer(counts: Mapping[str, int], failures: Mapping[str, int] | None = None) -> MetadataResponse:
    topics = [
        MetadataResponseTopic(
            error_code=0,
            name=topic,
            partitions=tuple(
                MetadataResponsePartition(
                    error_code=0, partition_index=n, leader_id=1, replica_nodes=(1,), isr_nodes=(1,)
                )
                for n in range(count)
            ),
        )
        for topic, count in counts.items()
    ]
    topics += [
        MetadataResponseTopic(error_code=code, name=topic, partitions=()) for topic, code in (failures or {}).items()
    ]
    return MetadataResponse(brokers=(), topics=tuple(topics))


class Lab:
    """Feeds one machine, moves time, records its actions. The user polls at every event while `polls`."""

    def __init__(
        self, *, assignors: Sequence[str | Assignor] = ("range",), topics: tuple[str, ...] = ("t",), **settings: Any
    ) -> None:
        loaded = tuple(load(entry) if isinstance(entry, str) else entry for entry in assignors)
        self.settings = GroupSettings(group_id="g", **settings)
        self.machine = ClassicMachine(self.settings, loaded)
        self.topics = topics
        self.now = 100.0
        self.polls = True
        self.answers_user_data = True
        self.actions: list[Action] = []
        self.new: list[Action] = []
        self._ran = 0

    @property
    def state(self) -> State:
        return self.machine.state

    def feed(self, event: Event) -> list[Action]:
        """Handle an event, and carry out the calls into assignors that follow, as the thread does."""
        self.new = []
        events = [event]
        while events:
            for action in self.machine.handle(events.pop(0), self.now):
                self.new.append(action)
                if isinstance(action, CollectUserData) and self.answers_user_data:
                    events.append(collect_user_data(action))
                elif isinstance(action, NotifyAssignor) and (failure := notify_assignor(action)) is not None:
                    self.new.append(MembershipReport(failure))
        self.actions += self.new
        return self.new

    def tick(self, seconds: float = 0.0) -> list[Action]:
        """Let time pass in one go."""
        self.now += seconds
        return self.feed(Tick(self.now if self.polls else 0.0))

    def run_for(self, seconds: float) -> None:
        """Let time pass from one deadline to the next, as the thread does."""
        end = self.now + seconds
        while self.now < end:
            self.tick(min(end, self.machine.next_deadline(self.now)) - self.now)

    def answer(self, kind: type[Any], response: Any) -> list[Action]:
        """Answer the last request of this kind."""
        return self.feed(Answered(self.asked(kind).context, response))

    def fail(self, kind: type[Any], error: Exception | None = None, *, slow: bool = False) -> list[Action]:
        """Let the last request of this kind go unanswered."""
        return self.feed(Unanswered(self.asked(kind).context, error or OSError("connection lost"), slow))

    def feed_answer(self, send: Send, response: Any) -> list[Action]:
        """Answer one particular request."""
        return self.feed(Answered(send.context, response))

    def feed_failure(self, send: Send) -> list[Action]:
        """Let one particular request go unanswered."""
        return self.feed(Unanswered(send.context, OSError("timed out")))

    def is_in(self, state: State) -> bool:
        """True if the member is in this state; a call, because mypy would narrow a property."""
        return self.machine.state is state

    def request(self, kind: type[Any]) -> Any:
        """The message of the last request of this kind."""
        return self.asked(kind).request

    def asked(self, kind: type[Any]) -> Send:
        """The last request of this kind."""
        return [send for send in self.of(Send) if isinstance(send.context, kind)][-1]

    def count(self, kind: type[Any]) -> int:
        """The number of requests of this kind so far."""
        return len([send for send in self.of(Send) if isinstance(send.context, kind)])

    def of(self, kind: type[A]) -> list[A]:
        """All actions of a kind so far."""
        return [action for action in self.actions if isinstance(action, kind)]

    def callbacks(self) -> list[str]:
        return [callback.kind.value for callback in self.of(CallBack)]

    def called_back(self) -> list[Action]:
        """The user's thread has run every callback so far."""
        new: list[Action] = []
        for callback in self.of(CallBack)[self._ran :]:
            self._ran += 1
            new += self.feed(CalledBack(callback))
        return new

    # The way to each state.

    def subscribed(self) -> Lab:
        self.feed(Subscribed(self.topics))
        return self

    def joining(self) -> Lab:
        self.subscribed()
        self.answer(ForWatch, metadata_answer(dict.fromkeys(self.topics, 2)))
        self.answer(ForLookup, lookup_answer())
        assert self.state is State.JOINING
        return self

    def syncing(self) -> Lab:
        self.joining().answer(ForJoin, join_answer())
        assert self.state is State.SYNCING
        return self

    def planning(self) -> Lab:
        self.joining().answer(ForJoin, join_answer(leader=ME))
        assert self.state is State.PLANNING
        return self

    def stable(self) -> Lab:
        self.syncing().answer(ForSync, sync_answer())
        assert self.state is State.STABLE
        return self

    def leading(self, counts: Mapping[str, int] | None = None) -> Lab:
        self.planning()
        self.answer(ForPlan, metadata_answer(counts or {"t": 2}))
        self.planned()
        self.answer(ForSync, sync_answer())
        assert self.state is State.STABLE
        return self

    def revoking(self) -> Lab:
        self.stable().beat(ErrorCode.REBALANCE_IN_PROGRESS)
        assert self.state is State.REVOKING
        return self

    def beating(self) -> Lab:
        """Stable, with a heartbeat on its way."""
        self.stable()
        self.run_for(self.settings.heartbeat_interval_s)
        assert self.count(ForHeartbeat)
        return self

    def committing(self, *, sync: bool = True) -> Lab:
        """Stable, with a commit on its way."""
        self.stable().commit(sync=sync)
        return self

    # What a user or a thread does.

    def beat(self, code: int = ErrorCode.NONE) -> list[Action]:
        """Wait for the next heartbeat and answer it."""
        before = self.count(ForHeartbeat)
        self.run_for(self.settings.heartbeat_interval_s + 0.001)
        assert self.count(ForHeartbeat) > before
        return self.answer(ForHeartbeat, HeartbeatResponse(error_code=code))

    def commit(self, *, sync: bool = True, alone: bool = False) -> Commit:
        deadline = self.now + 10 if sync else None
        commit = Commit({PART: OffsetAndMetadata(7)}, deadline, ticket=object(), alone=alone)
        self.feed(CommitRequested(commit))
        return commit

    def committed(self) -> list[Exception | None]:
        """The outcomes of commits so far."""
        return [finish.error for finish in self.of(FinishCommit)]

    def planned(self) -> list[Action]:
        """Run the assignor that was asked for."""
        job = self.of(RunAssignor)[-1]
        return self.feed(run_assignor(job))


__all__ = [
    "COORDINATOR",
    "ME",
    "OTHER",
    "PART",
    "Context",
    "ForCommit",
    "Lab",
    "commit_answer",
    "join_answer",
    "lookup_answer",
    "metadata_answer",
    "sync_answer",
]
