"""Whole groups in virtual time: real members, a small coordinator of our own, and chance between them.

Each member's user reads what its callbacks gave it, slowly or quickly, and stops where they take it away. However the
group is shaken, no partition may be read by two users at once, and once it is left alone every partition has one.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleet_consumer.assignors import Assignor, load
from fleet_consumer.group.classic.machine import ClassicMachine
from fleet_consumer.group.classic.planning import collect_user_data, notify_assignor, run_assignor
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.membership import GroupSettings
from fleet_consumer.group.messages import (
    Answered,
    CallBack,
    CallBackKind,
    CalledBack,
    CloseRequested,
    CollectUserData,
    ForHeartbeat,
    ForJoin,
    ForLeave,
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
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from tests.support.assignors import CooperativeRange
from tests.unit.group.lab import lookup_answer, metadata_answer

TOPICS = {"t": 7, "u": 4}
SESSION_S = 10.0
REBALANCE_S = 12.0
"""Shorter than the time for which users may hang: the coordinator goes on without them."""
POLL_S = 30.0
STEP_S = 0.25
QUIET_STEPS = 40
"""For so long, ten seconds, a group must stay as it should be to count as settled."""


@dataclass(eq=False)
class Waiting:
    """A JoinGroup or SyncGroup that the coordinator has not answered yet."""

    who: Simulated
    send: Send


@dataclass(eq=False)
class Registered:
    """A member as the coordinator knows it."""

    member_id: str
    protocols: dict[str, bytes]
    seen_at: float
    joining: Waiting | None = None
    syncing: Waiting | None = None


class Coordinator:
    """The classic group of a broker, as small as the members' side of the protocol allows."""

    def __init__(self) -> None:
        self.members: dict[str, Registered] = {}
        self.state = "Empty"
        self.generation = 0
        self.leader = ""
        self.assignments: dict[str, bytes] = {}
        self.deadline = 0.0
        self._ids = 0

    def handle(self, who: Simulated, send: Send, now: float) -> None:
        request: Any = send.request
        match send.context:
            case ForJoin():
                self._join(who, send, request, now)
            case ForSync():
                self._sync(who, send, request, now)
            case ForHeartbeat():
                who.answer(send, HeartbeatResponse(error_code=self._beat(request, now)))
            case ForLeave():
                for leaver in request.members:
                    self._remove(leaver.member_id, now)
                who.answer(send, LeaveGroupResponse(error_code=0))

    def _join(self, who: Simulated, send: Send, request: Any, now: float) -> None:
        if not request.member_id:
            self._ids += 1
            given = f"m{self._ids:04}"
            who.answer(send, _refused_join(ErrorCode.MEMBER_ID_REQUIRED, given))
            self.members[given] = Registered(given, {}, now)
            return
        member = self.members.get(request.member_id)
        if member is None:
            who.answer(send, _refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        member.protocols = {each.name: each.metadata for each in request.protocols}
        member.joining, member.seen_at = Waiting(who, send), now
        self._prepare(now)
        self._complete_joins(now)

    def _prepare(self, now: float) -> None:
        if self.state == "PreparingRebalance":
            return
        self.state, self.deadline = "PreparingRebalance", now + REBALANCE_S
        for member in self.members.values():
            self._end_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b""))

    def _complete_joins(self, now: float) -> None:
        if self.state != "PreparingRebalance":
            return
        late = [name for name, member in self.members.items() if member.joining is None]
        if late and now < self.deadline:
            return
        for name in late:
            del self.members[name]
        if not self.members:
            self.state = "Empty"
            return
        self.generation += 1
        self.state, self.assignments = "CompletingRebalance", {}
        self.leader = self.leader if self.leader in self.members else min(self.members)
        shared = set.intersection(*(set(member.protocols) for member in self.members.values()))
        votes = [next(name for name in member.protocols if name in shared) for member in self.members.values()]
        chosen = max(sorted(set(votes)), key=votes.count)
        everybody = tuple(
            JoinGroupResponseMember(member_id=name, metadata=member.protocols[chosen])
            for name, member in self.members.items()
        )
        for name, member in self.members.items():
            assert member.joining is not None
            waiting, member.joining, member.seen_at = member.joining, None, now
            waiting.who.answer(
                waiting.send,
                JoinGroupResponse(
                    error_code=0,
                    generation_id=self.generation,
                    protocol_type="consumer",
                    protocol_name=chosen,
                    leader=self.leader,
                    member_id=name,
                    members=everybody if name == self.leader else (),
                ),
            )

    def _sync(self, who: Simulated, send: Send, request: Any, now: float) -> None:
        member = self.members.get(request.member_id)
        code = ErrorCode.NONE
        if member is None:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        elif request.generation_id != self.generation:
            code = ErrorCode.ILLEGAL_GENERATION
        elif self.state == "PreparingRebalance":
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code or member is None:
            who.answer(send, SyncGroupResponse(error_code=code, assignment=b""))
            return
        member.seen_at, member.syncing = now, Waiting(who, send)
        if request.member_id == self.leader and self.state == "CompletingRebalance":
            self.assignments = {each.member_id: each.assignment for each in request.assignments}
            self.state = "Stable"
        if self.state == "Stable":
            for name, each in self.members.items():
                self._end_sync(each, SyncGroupResponse(error_code=0, assignment=self.assignments.get(name, b"")), now)

    def _end_sync(self, member: Registered, response: SyncGroupResponse, now: float | None = None) -> None:
        if member.syncing is not None:
            waiting, member.syncing = member.syncing, None
            member.seen_at = member.seen_at if now is None else now
            waiting.who.answer(waiting.send, response)

    def _beat(self, request: Any, now: float) -> int:
        member = self.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.seen_at = now
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state == "PreparingRebalance" else ErrorCode.NONE

    def _remove(self, name: str, now: float) -> None:
        if self.members.pop(name, None) is not None:
            self._prepare(now)
            self._complete_joins(now)

    def tick(self, now: float) -> None:
        """Sessions that ended, and joins that take too long."""
        for name, member in list(self.members.items()):
            waits = member.joining is not None or member.syncing is not None
            if not waits and now - member.seen_at > SESSION_S:
                self._remove(name, now)
        self._complete_joins(now)


def _refused_join(code: int, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code, generation_id=-1, protocol_name=None, leader="", member_id=member_id, members=()
    )


@dataclass(eq=False)
class Simulated:
    """One member: the machine, the network to it, and a user who polls when chance lets him."""

    name: str
    machine: ClassicMachine
    coordinator: Coordinator
    chance: random.Random
    counts: dict[str, int]
    to_coordinator: deque[tuple[float, Send]] = field(default_factory=deque)
    to_me: list[tuple[float, Any]] = field(default_factory=list)
    changes: deque[CallBack] = field(default_factory=deque)
    reads: set[TopicPartition] = field(default_factory=set)
    polled_at: float = 0.0
    hangs_until: float = 0.0
    errors: list[Exception] = field(default_factory=list)
    now: float = 0.0

    def feed(self, event: Any) -> None:
        for action in self.machine.handle(event, self.now):
            match action:
                case Send(context=ForLookup()):
                    self.answer(action, lookup_answer())
                case Send(context=ForWatch() | ForPlan()):
                    self.answer(action, metadata_answer(self.counts))
                case Send():
                    self.to_coordinator.append((self.now + self.delay(), action))
                case RunAssignor():
                    self.to_me.append((self.now + 4 * self.delay(), run_assignor(action)))
                case CollectUserData():
                    self.to_me.append((self.now + self.delay(), collect_user_data(action)))
                case NotifyAssignor():
                    assert notify_assignor(action) is None
                case CallBack():
                    self.changes.append(action)
                case MembershipReport():
                    self.errors.append(action.error)

    def delay(self) -> float:
        return self.chance.choice([0.0, 0.0, 0.1, 0.3, 1.0])

    def answer(self, send: Send, response: Any) -> None:
        self.to_me.append((self.now + self.delay(), Answered(send.context, response)))

    def step(self, now: float) -> None:
        self.now = now
        while self.to_coordinator and self.to_coordinator[0][0] <= now:
            _, send = self.to_coordinator.popleft()
            if self.chance.random() < 0.01:  # the connection breaks, before or after the request got through
                self.to_me.append((now + self.delay(), Unanswered(send.context, OSError("reset"))))
                if self.chance.random() < 0.5:
                    continue
            self.coordinator.handle(self, send, now)
        due = [entry for entry in self.to_me if entry[0] <= now]
        self.to_me = [entry for entry in self.to_me if entry[0] > now]
        for _, event in due:
            self.feed(event)
        if now >= self.hangs_until:
            self.polled_at = now
            while self.changes:
                self.call_back(self.changes.popleft())
        self.feed(Tick(self.polled_at))

    def call_back(self, callback: CallBack) -> None:
        parts = set(callback.partitions)
        if callback.kind is CallBackKind.ASSIGNED:
            assert not parts & self.reads, f"{self.name} was given {parts & self.reads} twice"
            self.reads |= parts
        else:
            assert parts <= self.reads, f"{self.name} had {parts - self.reads} taken away that it did not have"
            self.reads -= parts
        self.feed(CalledBack(callback))

    @property
    def reading(self) -> set[TopicPartition]:
        """The partitions that this user may read now: none after the end of the session."""
        return self.reads if self.now < self.machine.fence_deadline else set()


def cooperative_members() -> tuple[Assignor, ...]:
    return (CooperativeRange(),)


def sticky_members() -> tuple[Assignor, ...]:
    return (load("cooperative-sticky"),)


def eager_members() -> tuple[Assignor, ...]:
    return (load("range"),)


class Group:
    def __init__(self, assignors: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.assignors = assignors
        self.counts = dict(TOPICS)
        self.coordinator = Coordinator()
        self.members: list[Simulated] = []
        self.now = 0.0
        self.names = 0

    def add(self) -> None:
        self.names += 1
        settings = GroupSettings(
            group_id="g",
            session_timeout_s=SESSION_S,
            heartbeat_interval_s=1.0,
            max_poll_interval_s=POLL_S,
            rebalance_timeout_s=REBALANCE_S,
            metadata_max_age_s=5.0,
        )
        machine = ClassicMachine(settings, self.assignors(), lambda: self.chance.uniform(0.8, 1.2))
        member = Simulated(
            f"user-{self.names}", machine, self.coordinator, self.chance, self.counts, polled_at=self.now
        )
        member.now = self.now
        self.members.append(member)
        member.feed(Subscribed(tuple(TOPICS)))

    def leave(self, *, dies: bool) -> None:
        gone = self.chance.choice(self.members)
        self.members.remove(gone)
        if not dies:
            gone.feed(CloseRequested(leave=True))
            for _, send in gone.to_coordinator:
                self.coordinator.handle(gone, send, self.now)

    def shake(self) -> None:
        match self.chance.randrange(40):
            case 0 if len(self.members) < 6:
                self.add()
            case 1 if len(self.members) > 1:
                self.leave(dies=False)
            case 2 if len(self.members) > 1:
                self.leave(dies=True)
            case 3 | 4:
                self.chance.choice(self.members).hangs_until = self.now + self.chance.choice([2.0, 8.0, 45.0])
            case 5 if self.chance.random() < 0.2 and self.counts["u"] < 9:
                self.counts["u"] += 1

    def step(self) -> None:
        self.now += STEP_S
        self.coordinator.tick(self.now)
        for member in self.chance.sample(self.members, len(self.members)):
            member.step(self.now)
            self.check()

    def check(self) -> None:
        owners: dict[TopicPartition, str] = {}
        for member in self.members:
            for part in member.reading:
                assert part not in owners, f"at {self.now}: {owners[part]} and {member.name} both read {part}"
                owners[part] = member.name

    @property
    def settled(self) -> bool:
        everything = {TopicPartition(topic, n) for topic, count in self.counts.items() for n in range(count)}
        read = [part for member in self.members for part in member.reading]
        stable = all(member.machine.state is State.STABLE for member in self.members)
        return stable and set(read) == everything and len(read) == len(everything)


@pytest.mark.parametrize("assignors", [cooperative_members, sticky_members, eager_members])
@pytest.mark.parametrize("run", range(6))
def test_no_partition_is_read_by_two_and_an_undisturbed_group_reads_all(assignors: Any, run: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    group = Group(assignors, seed)
    group.add()
    for _ in range(1_000):
        group.shake()
        group.step()
    quiet = 0
    for _ in range(1_600):
        group.step()
        quiet = quiet + 1 if group.settled else 0
        if quiet == QUIET_STEPS:
            break
    assert quiet == QUIET_STEPS, [
        (member.name, member.machine.state, member.reads, member.hangs_until) for member in group.members
    ]
    assert [error for member in group.members for error in member.errors] == []
    assert group.coordinator.generation > 5, "too few rebalances to show anything"
