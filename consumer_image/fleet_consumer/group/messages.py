"""What goes into a group machine and what comes out of it.

Events carry no time: `handle(event, now)` does. A `Send` carries a context that comes back untouched with the answer,
so that an answer finds exactly the attempt, heartbeat or commit that it belongs to, however late it comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from fleet_consumer.assignors import Assignor, ClusterView, Subscription
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.group.errors import FatalConsumerError
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.metadata import Racks
from fleet_consumer.group.sighting import Doubts
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.sync_group import SyncGroupRequestAssignment

Address = tuple[str, int]
"""A broker as (host, port)."""


class Channel(Enum):
    """Connections to the coordinator: a JoinGroup may block its own for minutes, so heartbeats need another."""

    MAIN = "main"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Member id and generation change together, as one value; answers to older ones must not touch newer state.

    Compared by `is`: an identity that was reset and regained is a new one even if its numbers are the same.
    """

    generation: int = -1
    member_id: str = ""
    protocol: str | None = None

    @property
    def valid(self) -> bool:
        """Whether the coordinator has given this identity a generation."""
        return self.generation >= 0 and self.member_id != ""


@dataclass(slots=True, eq=False)
class RebalanceAttempt:
    """One way through join and sync. A new JoinGroup is a new attempt; what belongs to an older one is ignored."""

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
    """One commit of a user's. `deadline` None: no retries. `sent_as` is the identity it was last sent with.

    `alone`: by a consumer that chose its partitions itself. It is no member, and the broker takes its commits while the
    group has none. `ids` are those of the topics whose records were read, where they are known: a topic that has taken
    over the name of one has another id, and must not get its position.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    deadline: float | None
    ticket: Any
    alone: bool = False
    ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    requested_at: float = 0.0
    sent_as: MemberIdentity | None = None


# Contexts of requests.


@dataclass(frozen=True, slots=True)
class ForLookup:
    """A FindCoordinator."""


@dataclass(frozen=True, slots=True)
class ForJoin:
    """A JoinGroup of `attempt`."""

    attempt: RebalanceAttempt


@dataclass(frozen=True, slots=True)
class ForPlan:
    """The leader's Metadata request before it plans."""

    attempt: RebalanceAttempt


@dataclass(frozen=True, slots=True)
class ForSync:
    """A SyncGroup of `attempt`."""

    attempt: RebalanceAttempt


@dataclass(frozen=True, slots=True)
class ForHeartbeat:
    """A Heartbeat sent at `sent_at` as `identity`."""

    identity: MemberIdentity
    sent_at: float


@dataclass(frozen=True, slots=True)
class ForCommit:
    """An OffsetCommit."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class ForWatch:
    """A Metadata request that looks for changed partition counts."""


@dataclass(frozen=True, slots=True)
class ForOldPlan:
    """A DescribeGroups of a leader that came back, sent as `identity`."""

    identity: MemberIdentity


@dataclass(frozen=True, slots=True)
class ForLeave:
    """A LeaveGroup; `closing` when nothing follows it."""

    closing: bool


Context = ForLookup | ForJoin | ForPlan | ForSync | ForHeartbeat | ForCommit | ForWatch | ForOldPlan | ForLeave


# Events.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the user's thread was last seen in `poll` at `polled_at`."""

    polled_at: float


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The user wants these topics, or with `pattern` whatever matches it; from now on only these."""

    topics: tuple[str, ...]
    pattern: TopicPattern | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The user wants nothing any more; he has heard that his partitions are gone."""


@dataclass(frozen=True, slots=True)
class RebalanceRequested:
    """The user wants a rebalance, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A broker answered."""

    context: Context
    response: Any


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer, and none will come. `slow`: the cause (a wrong password) will not go away within seconds."""

    context: Context
    error: Exception
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """The assignor is done."""

    attempt: RebalanceAttempt
    assignments: tuple[SyncGroupRequestAssignment, ...]


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """The assignor raised, or its plan broke the contract."""

    attempt: RebalanceAttempt
    error: Exception


@dataclass(frozen=True, slots=True)
class LoginRefused:
    """A broker refused the credentials, or there is no TLS with it, and nobody will renew them."""

    error: FatalConsumerError


@dataclass(frozen=True, slots=True)
class CoordinatorDoubted:
    """Some other request found that the broker at `address` does not coordinate the group (now)."""

    address: Address


@dataclass(frozen=True, slots=True)
class CoordinatorWanted:
    """Somebody who is no member yet has a question for the coordinator."""


@dataclass(frozen=True, slots=True)
class CalledBack:
    """The user's thread has finished a callback."""

    callback: CallBack


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """The user wants offsets committed."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The user closes; `leave`: tell the coordinator."""

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
    | LoginRefused
    | CoordinatorDoubted
    | CoordinatorWanted
    | CalledBack
    | CommitRequested
    | CloseRequested
)


# Actions.


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; `address` None: to any broker."""

    address: Address | None
    channel: Channel
    request: Request[Any]
    timeout_s: float
    context: Context


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close this member's connections to a broker that has been silent; what waits for it there ends unanswered."""

    address: Address


@dataclass(frozen=True, slots=True)
class RunAssignor:
    """Run the assignor off this thread, then report Planned or PlanFailed.

    `cooperative`: members keep their partitions meanwhile, so that the plan may not move one directly (KIP-429).
    """

    attempt: RebalanceAttempt
    assignor: Assignor
    cluster: ClusterView
    subscriptions: Mapping[str, Subscription]
    cooperative: bool


class CallBackKind(Enum):
    """Which of the user's callbacks."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


@dataclass(frozen=True, slots=True, eq=False)
class CallBack:
    """Run a callback on the user's thread, in order, then report CalledBack.

    `partitions` are only those that come or go; a cooperative member keeps others. For ASSIGNED, `appeared` are the
    partitions that did not exist at this consumer's first assignment. `subscription` counts how often the user has
    unsubscribed before: what belongs to an earlier one is void.
    """

    kind: CallBackKind
    partitions: tuple[TopicPartition, ...]
    generation: int = -1
    appeared: frozenset[TopicPartition] = frozenset()
    subscription: int = 0


@dataclass(frozen=True, slots=True)
class FinishCommit:
    """A commit came to its end; `error` None: stored."""

    commit: Commit
    error: Exception | None


@dataclass(frozen=True, slots=True)
class MembershipReport:
    """Raise this from the user's next call."""

    error: Exception


Action = Send | Disconnect | RunAssignor | CallBack | FinishCommit | MembershipReport


def flatten(partitions: Mapping[str, Sequence[int]]) -> tuple[TopicPartition, ...]:
    """Partitions by topic as one tuple, in order."""
    return tuple(TopicPartition(topic, number) for topic in sorted(partitions) for number in sorted(partitions[topic]))
