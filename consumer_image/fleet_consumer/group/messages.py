"""Events and actions of a group machine: its input and its output.

Events carry no time, because the time is an argument of `handle(event, now)`. Each `Send` carries a context, and the
event with the response carries the same context. So even a late response can be matched with its attempt, heartbeat or
commit.
"""

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
from fleet_consumer.group.watch import UnconfirmedTopics
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.groups import SyncGroupRequestAssignment
from fleet_consumer.wire.message import Request

Address = tuple[str, int]
"""A broker as (host, port)."""


class Channel(Enum):
    """The two connections to the coordinator. JOIN carries JoinGroup and SyncGroup, which may block their connection
    for minutes. MAIN carries all other requests, such as heartbeats."""

    MAIN = "main"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Member id and generation, which change together.

    A response to a request with an older identity must not change newer state. Identities are compared with `is`: after
    a reset, even the same member id and generation are a new identity.
    """

    generation: int = -1
    member_id: str = ""
    protocol: str | None = None

    @property
    def valid(self) -> bool:
        """True once the coordinator has assigned a generation."""
        return self.generation >= 0 and self.member_id != ""


@dataclass(slots=True, eq=False)
class RebalanceAttempt:
    """One attempt to join and sync. Responses and results of earlier attempts are ignored.

    `topics` are the topics in the JoinGroup. `identity` is the identity in the JoinGroup and, after the response, the
    identity in the response. Four fields are used by the leader only. `subscriptions` has the subscriptions of all
    members. `counts` and `racks` describe the partitions in its plan. `unconfirmed` has the topics whose metadata must
    be confirmed before the plan is made.
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
    unconfirmed: UnconfirmedTopics = field(default_factory=UnconfirmedTopics)
    sync_sent_at: float = 0.0


@dataclass(slots=True, eq=False)
class Commit:
    """A commit that the user requested. If `deadline` is None, the commit is not retried. `sent_as` is the member's
    identity in the last request. `alone` is True if the consumer's partitions were assigned manually. Such a consumer
    is not a member, and the broker accepts its commits only while the group has no members.

    `ids` are the known ids of topics whose records were read. A recreated topic with the same name has another id, and
    must not get the former topic's position.
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
    """A context, event or action; each subclass becomes a frozen dataclass."""

    def __init_subclass__(cls, *, eq: bool = True) -> None:
        dataclass(frozen=True, eq=eq)(cls)


# Contexts of requests.


class ForLookup(Message):
    """A FindCoordinator request."""


class ForJoin(Message):
    attempt: RebalanceAttempt


class ForPlan(Message):
    """The leader's Metadata request before planning."""

    attempt: RebalanceAttempt


class ForSync(Message):
    attempt: RebalanceAttempt


class ForHeartbeat(Message):
    identity: MemberIdentity
    sent_at: float


class ForCommit(Message):
    commit: Commit


class ForWatch(Message):
    """A Metadata request of the `MetadataWatch`, which notices changed topics."""


class ForOldPlan(Message):
    """A DescribeGroups request with which a restarted static leader reads the old plan; sent with `identity`."""

    identity: MemberIdentity


class ForLeave(Message):
    """A LeaveGroup request; `closing` if it is the member's last request."""

    closing: bool


Context = ForLookup | ForJoin | ForPlan | ForSync | ForHeartbeat | ForCommit | ForWatch | ForOldPlan | ForLeave


# Events.


class Tick(Message):
    """Time has passed. `polled_at`: when the user's thread was last in `poll`, in monotonic seconds."""

    polled_at: float


class Subscribed(Message):
    """The user subscribed to these topics, or to all topics that match `pattern`. Replaces any earlier subscription."""

    topics: tuple[str, ...]
    pattern: TopicPattern | None = None


class Unsubscribed(Message):
    """The user unsubscribed, and has already been notified that the partitions are lost."""


class RebalanceRequested(Message):
    reason: str


class Answered(Message):
    context: Context
    response: Any


class Unanswered(Message):
    """A request failed without a response. `slow` is True if the cause, such as a wrong password, is unlikely to vanish
    within seconds, so the next attempt waits longer."""

    context: Context
    error: Exception
    slow: bool = False


class Planned(Message):
    attempt: RebalanceAttempt
    assignments: tuple[SyncGroupRequestAssignment, ...]


class PlanFailed(Message):
    """The assignor raised, or its plan broke the contract."""

    attempt: RebalanceAttempt
    error: Exception


class UserDataCollected(Message):
    """The assignors' user data for a JoinGroup, keyed by assignor name."""

    attempt: RebalanceAttempt
    user_data: Mapping[str, bytes | None]


class UserDataFailed(Message):
    """An assignor's user-data hook raised, or returned something other than bytes or None."""

    attempt: RebalanceAttempt
    error: Exception


class LoginRefused(Message):
    """A broker refused the credentials or the TLS handshake failed, and the credentials are never renewed."""

    error: FatalConsumerError


class CoordinatorSuspected(Message):
    """The broker at `address` is no longer the coordinator, according to a request outside of the machine."""

    address: Address


class CoordinatorWanted(Message):
    """A lookup needs the coordinator, even before the first subscription."""


class CalledBack(Message):
    callback: "CallBack"


class CommitRequested(Message):
    commit: Commit


class CloseRequested(Message):
    """The user closes the consumer. If `leave`, the member sends LeaveGroup."""

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
    | CoordinatorSuspected
    | CoordinatorWanted
    | CalledBack
    | CommitRequested
    | CloseRequested
)


# Actions.


class Send(Message):
    """Send a request, to any broker if `address` is None."""

    address: Address | None
    channel: Channel
    request: Request[Any]
    timeout_s: float
    context: Context


class Disconnect(Message):
    """Close the member's connections to a silent broker; their pending requests end with Unanswered."""

    address: Address


class RunAssignor(Message):
    """Run the assignor on its own thread, then report Planned or PlanFailed.

    `cooperative`: members keep their partitions during the rebalance. So the plan must not move a partition directly
    from one member to another (KIP-429).
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
    """Call the assignor's `on_assignment`, before any later CollectUserData. Its error is reported; the membership is
    unchanged."""

    assignor: Assignor
    assignment: Assignment
    generation: int


class CallBackKind(Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class CallBack(Message, eq=False):
    """Run a callback on the user's thread, after all earlier callbacks, then report CalledBack.

    `partitions` are the partitions gained or lost; a cooperative member may own further partitions. For ASSIGNED,
    `appeared` are the gained partitions that did not exist when the member subscribed. `subscription` is the number of
    `unsubscribe` calls so far; a callback with a lower number belongs to an earlier subscription and is ignored.
    """

    kind: CallBackKind
    partitions: tuple[TopicPartition, ...]
    generation: int = -1
    appeared: frozenset[TopicPartition] = frozenset()
    subscription: int = 0


class FinishCommit(Message):
    """Finish a commit; its offsets are stored if `error` is None."""

    commit: Commit
    error: Exception | None


class MembershipReport(Message):
    """Raise `error` from the user's next call."""

    error: Exception


Action = Send | Disconnect | RunAssignor | CollectUserData | NotifyAssignor | CallBack | FinishCommit | MembershipReport
