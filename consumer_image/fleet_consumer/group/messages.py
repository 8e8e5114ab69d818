"""Events and actions of a group machine: its input and its output.

Events carry no time: `handle(event, now)` does. A `Send` carries a context that comes back untouched with the response,
so that a response finds exactly the attempt, heartbeat or commit that it belongs to, however late it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, dataclass_transform
from uuid import UUID

from fleet_consumer.assignors import Assignment, Assignor, ClusterView, Subscription
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.group.errors import FatalConsumerError
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.metadata import Racks
from fleet_consumer.group.watch import Doubts
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.groups import SyncGroupRequestAssignment
from fleet_consumer.wire.message import Request

Address = tuple[str, int]
"""A broker as (host, port)."""


class Channel(Enum):
    """Connections to the coordinator: a JoinGroup may block its own for minutes, so heartbeats need another."""

    MAIN = "main"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Member id and generation, which change together. Responses to older ones must not touch newer state.

    Compared by `is`: an identity that was reset and regained is a new one even if its numbers are the same.
    """

    generation: int = -1
    member_id: str = ""
    protocol: str | None = None

    @property
    def valid(self) -> bool:
        """True once the coordinator has given a generation."""
        return self.generation >= 0 and self.member_id != ""


@dataclass(slots=True, eq=False)
class RebalanceAttempt:
    """One pass through join and sync. Responses and results of earlier attempts are ignored.

    `topics` and `identity` are those of the JoinGroup. The leader has the group's `subscriptions`, the partition
    `counts` and `racks` that it plans with, and `doubts` about them.
    """

    reason: str
    identity: MemberIdentity
    topics: tuple[str, ...]
    assignor: Assignor | None = None
    leader: bool = False
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    counts: dict[str, int] | None = None
    racks: Mapping[str, Racks] | None = None
    metadata_retry_at: float | None = None
    doubts: Doubts = field(default_factory=Doubts)
    sync_sent_at: float = 0.0


@dataclass(slots=True, eq=False)
class Commit:
    """One commit of the user. `deadline` None: no retries. `sent_as` is the identity it was last sent with.

    `alone`: by a consumer that assigned its partitions itself. It is no member, and the broker takes its commits while
    the group has none. `ids` are the known ids of the topics whose records were read: a topic made anew under the same
    name has another id, and must not get the position.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    deadline: float | None
    ticket: Any
    alone: bool = False
    ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    requested_at: float = 0.0
    sent_as: MemberIdentity | None = None


@dataclass_transform(frozen_default=True)
class Message:
    """A context, event or action. Each class of it is a frozen dataclass."""

    def __init_subclass__(cls, *, eq: bool = True) -> None:
        dataclass(frozen=True, eq=eq)(cls)


# Contexts of requests.


class ForLookup(Message):
    """A FindCoordinator."""


class ForJoin(Message):
    """A JoinGroup of `attempt`."""

    attempt: RebalanceAttempt


class ForPlan(Message):
    """The leader's Metadata request before planning."""

    attempt: RebalanceAttempt


class ForSync(Message):
    """A SyncGroup of `attempt`."""

    attempt: RebalanceAttempt


class ForHeartbeat(Message):
    """A Heartbeat sent at `sent_at` as `identity`."""

    identity: MemberIdentity
    sent_at: float


class ForCommit(Message):
    """An OffsetCommit."""

    commit: Commit


class ForWatch(Message):
    """A Metadata request of the watch for changed topics."""


class ForOldPlan(Message):
    """A DescribeGroups of a restarted static leader, sent as `identity`."""

    identity: MemberIdentity


class ForLeave(Message):
    """A LeaveGroup; `closing` when nothing follows it."""

    closing: bool


Context = ForLookup | ForJoin | ForPlan | ForSync | ForHeartbeat | ForCommit | ForWatch | ForOldPlan | ForLeave


# Events.


class Tick(Message):
    """Time has passed; the user's thread was last seen in `poll` at `polled_at`."""

    polled_at: float


class Subscribed(Message):
    """The user subscribed to these topics, or with `pattern` to all that match; replaces an earlier subscription."""

    topics: tuple[str, ...]
    pattern: TopicPattern | None = None


class Unsubscribed(Message):
    """The user unsubscribed, and was already notified of the loss of the partitions."""


class RebalanceRequested(Message):
    """The user asked for a rebalance."""

    reason: str


class Answered(Message):
    context: Context
    response: Any


class Unanswered(Message):
    """A request failed without a response. `slow`: the cause (a wrong password) will not go away within seconds."""

    context: Context
    error: Exception
    slow: bool = False


class Planned(Message):
    """The assignor's plan."""

    attempt: RebalanceAttempt
    assignments: tuple[SyncGroupRequestAssignment, ...]


class PlanFailed(Message):
    """The assignor raised, or its plan broke the contract."""

    attempt: RebalanceAttempt
    error: Exception


class UserDataCollected(Message):
    """The assignors' user data for a JoinGroup, by assignor name."""

    attempt: RebalanceAttempt
    user_data: Mapping[str, bytes | None]


class UserDataFailed(Message):
    """An assignor's user-data hook raised, or returned something other than bytes or None."""

    attempt: RebalanceAttempt
    error: Exception


class LoginRefused(Message):
    """A broker refused the credentials or the TLS handshake failed, and the credentials are never renewed."""

    error: FatalConsumerError


class CoordinatorDoubted(Message):
    """Another request found that the broker at `address` is not the coordinator any more."""

    address: Address


class CoordinatorWanted(Message):
    """A lookup needs the coordinator, also before the first subscription."""


class CalledBack(Message):
    """The user's thread has run a callback."""

    callback: CallBack


class CommitRequested(Message):
    commit: Commit


class CloseRequested(Message):
    """The user closes the consumer; `leave`: send LeaveGroup."""

    leave: bool


Event = (
    Tick
    | Subscribed
    | Unsubscribed
    | RebalanceRequested
    | Answered
    | Unanswered
    | Planned
    | PlanFailed
    | UserDataCollected
    | UserDataFailed
    | LoginRefused
    | CoordinatorDoubted
    | CoordinatorWanted
    | CalledBack
    | CommitRequested
    | CloseRequested
)


# Actions.


class Send(Message):
    """Send a request; `address` None: to any broker."""

    address: Address | None
    channel: Channel
    request: Request[Any]
    timeout_s: float
    context: Context


class Disconnect(Message):
    """Close the member's connections to a silent broker; pending requests on them end with Unanswered."""

    address: Address


class RunAssignor(Message):
    """Run the assignor on a thread of its own, then report Planned or PlanFailed.

    `cooperative`: members keep their partitions meanwhile, so the plan must not move one directly (KIP-429).
    """

    attempt: RebalanceAttempt
    assignor: Assignor
    cluster: ClusterView
    subscriptions: Mapping[str, Subscription]
    cooperative: bool


class CollectUserData(Message):
    """Call `subscription_user_data` of each assignor, then report UserDataCollected or UserDataFailed."""

    attempt: RebalanceAttempt
    assignors: tuple[Assignor, ...]


class NotifyAssignor(Message):
    """Call `on_assignment`, before any later CollectUserData. An error is reported to the user and changes nothing."""

    assignor: Assignor
    assignment: Assignment
    generation: int


class CallBackKind(Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class CallBack(Message, eq=False):
    """Run a callback on the user's thread, in order, then report CalledBack.

    `partitions` are those that come or go; a cooperative member keeps others. For ASSIGNED, `appeared` are the
    partitions that did not exist at the first assignment. `subscription` counts the calls of `unsubscribe` before: a
    callback of an earlier subscription is void.
    """

    kind: CallBackKind
    partitions: tuple[TopicPartition, ...]
    generation: int = -1
    appeared: frozenset[TopicPartition] = frozenset()
    subscription: int = 0


class FinishCommit(Message):
    """Finish a commit; `error` None: stored."""

    commit: Commit
    error: Exception | None


class MembershipReport(Message):
    """Raise `error` from the user's next call."""

    error: Exception


Action = Send | Disconnect | RunAssignor | CollectUserData | NotifyAssignor | CallBack | FinishCommit | MembershipReport
