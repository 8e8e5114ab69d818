"""The state of a classic member, and the methods that keep it consistent.

Fields that must change together, such as state, identity and attempt, are changed by methods here. `rebalance`,
`session` and `machine` decide which methods to call. `actions` collects the actions for the coordinator thread, in
order.

A static leader that restarts within its session makes no plan (KIP-814). It must still notice partitions that its
predecessor's plan lacks, including partitions added while the leader was down. The predecessor's plan is read from the
members' assignments in DescribeGroups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_consumer.assignors import COOPERATIVE, Assignor
from fleet_consumer.contract.naming import TopicPattern, pattern_matches
from fleet_consumer.group import errors, messages, reasons
from fleet_consumer.group.classic.states import IN_REBALANCE, State, Trigger, check_move
from fleet_consumer.group.commits import CommitContext, CommitFlow
from fleet_consumer.group.membership import GroupSettings, Rejoin
from fleet_consumer.group.metadata import PartitionsByTopic
from fleet_consumer.group.timing import NEVER, Backoff, CoordinatorLookup, HeartbeatTimer
from fleet_consumer.group.watch import MetadataWatch, topics_denied
from fleet_consumer.wire.consumer_protocol import decode_assignment
from fleet_consumer.wire.errors import ErrorCode, MalformedMessage, is_retriable
from fleet_consumer.wire.groups import DescribeGroupsResponse, LeaveGroupRequest, LeaveGroupRequestMember
from fleet_consumer.wire.message import Request


class OldPlan:
    """Lookup with DescribeGroups of the plan that the group had before this static leader restarted. Has the lookup's
    retry timer, and reads the partition counts of the plan."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._next_at = NEVER
        self.wanted = False

    def want(self) -> None:
        """Start the lookup. Called when this member leads the group and does not know the current plan."""
        self.wanted = True
        self._next_at = NEVER

    def due(self, now: float) -> bool:
        return self.wanted and now >= self._next_at

    def asked(self, now: float, timeout_s: float) -> None:
        """Record that DescribeGroups was sent. If its response is lost, the next request is sent after the timeout."""
        self._next_at = now + timeout_s

    def retry_later(self, now: float) -> None:
        self._next_at = now + self._backoff.next()

    def answered(self, response: DescribeGroupsResponse, now: float) -> dict[str, int] | None:
        """Return each topic's partition count in the plan, or None if the response lacks the plan.

        The permission Read on a group includes Describe, so DescribeGroups should not be refused. If the broker refuses
        it, the lookup ends, and the member continues with the partition counts that it knows.
        """
        group = response.groups[0] if response.groups else None
        if group is None or group.error_code != ErrorCode.NONE:
            if group is not None and not is_retriable(group.error_code):
                self.wanted = False
            self.retry_later(now)
            return None
        self.wanted = False
        self._backoff.reset()
        counts: dict[str, int] = {}
        for member in group.members:
            try:
                given = decode_assignment(member.member_assignment)
            except MalformedMessage:
                return None
            for part in given.assigned_partitions:
                if part.partitions:
                    counts[part.topic] = max(counts.get(part.topic, 0), max(part.partitions) + 1)
        return counts


JOIN_GRACE_S = 5.0
"""Seconds by which the request timeout of a JoinGroup or SyncGroup exceeds the rebalance timeout, as in Java."""
REJOINS_MAX = 10
"""Maximum length of `MemberState.rejoins`."""


@dataclass(slots=True, eq=False)
class MemberState:
    """State of a classic member. Times are monotonic seconds."""

    settings: GroupSettings
    assignors: Mapping[str, Assignor]
    """Assignors by name, the preferred assignor first."""
    cooperative: bool
    """True if all assignors are cooperative. As in Java, a member uses the highest rebalance protocol that all its
    assignors support."""

    # Components with their own timers.
    lookup: CoordinatorLookup
    heartbeat: HeartbeatTimer
    watch: MetadataWatch
    old_plan: OldPlan
    commits: CommitFlow
    join_backoff: Backoff

    # Protocol.
    state: State = State.IDLE
    trigger: Trigger = Trigger.OTHER
    """The trigger of the event that is being handled. `move` allows only the moves that the table in `states` lists for
    this trigger."""
    identity: messages.MemberIdentity = field(default_factory=messages.MemberIdentity)
    attempt: messages.RebalanceAttempt | None = None
    """The attempt to join that is in progress, or None. In states UNJOINED and STABLE, its JoinGroup is not sent yet,
    because the assignors' user data is still being collected."""
    leader: bool = False
    rejoin_reason: str | None = None
    """The reason for the next JoinGroup, or None if no JoinGroup is to be sent."""
    next_join_at: float = NEVER
    hasty_rejoins: int = 0
    """Number of consecutive rejoins without a wait (`HASTY_REJOINS_MAX`)."""

    # Subscription.
    named: tuple[str, ...] = ()
    """The topics named in the user's `subscribe` call."""
    topics: tuple[str, ...] = ()
    """The subscribed topics: the named topics, or the topics that match the pattern."""
    pattern: TopicPattern | None = None
    match_stale: bool = False
    """True if the pattern must be matched against fresh metadata before the next join."""
    subscription: int = 0
    """Number of `unsubscribe` calls so far. A callback with a lower number belongs to an earlier subscription and is
    ignored."""
    denied: frozenset[str] = frozenset()
    """Topics for which TopicAuthorizationFailed was already raised."""

    # Ownership.
    owned: PartitionsByTopic = field(default_factory=dict)
    giving_back: messages.CallBack | None = None
    """The running or queued user callback that gives partitions back, or None. JoinGroup waits for this callback;
    otherwise two members could read one partition."""

    # User.
    polled_at: float = NEVER
    coordinator_wanted: bool = False
    """True if the coordinator is needed without a subscription: for lookups, or for commits of manually assigned
    partitions."""
    leaving: bool = False
    """True if the member is closed, but its LeaveGroup is in flight or waits for the coordinator lookup."""
    late_leave: str | None = None
    """The reason for a LeaveGroup that waits for the coordinator lookup; None if no LeaveGroup waits."""

    # For snapshots.
    fatal: errors.ConsumerError | None = None
    last_error: Exception | None = None
    last_reason: str = ""
    rejoins: tuple[Rejoin, ...] = ()
    """The last rejoins that led to a generation, oldest first."""
    first_reason: str | None = None
    """The reason for which the current rejoin began; None if no rejoin is in progress. If an attempt fails,
    `rejoin_reason` has the reason for the next attempt instead."""

    actions: list[messages.Action] = field(default_factory=list)
    """Actions that result from the event being handled."""

    @property
    def joining_with_partitions(self) -> bool:
        """True while a cooperative member waits for the JoinGroup response and keeps reading its partitions.

        The broker answers JoinGroup only when all members have joined. Until then (state PreparingRebalance), the
        broker accepts heartbeats and commits of the old generation, and these heartbeats renew the session.
        """
        return self.state is State.JOINING and bool(self.owned)

    @property
    def commit_context(self) -> CommitContext:
        """The member's state, for commits. In state REVOKING, the group is in PreparingRebalance at the broker, and the
        broker accepts commits of the old generation."""
        holds, valid = self.cooperative and bool(self.owned), self.identity.valid
        joining, rebalancing = self.state is State.JOINING, self.state in IN_REBALANCE
        open_ = self.state in (State.STABLE, State.REVOKING) or (joining and holds)
        return CommitContext(
            self.identity,
            self.lookup.address,
            holds=holds,
            may_commit=open_ and valid,
            rebalancing=rebalancing,
            joining=joining,
            keeps=holds and valid and (rebalancing or self.state is State.UNJOINED),
            expelled=self.state is State.REVOKING and not valid,
        )

    def wants(self, topic: str) -> bool:
        return topic in self.topics or (self.pattern is not None and pattern_matches(self.pattern, topic))

    def move(self, target: State) -> None:
        """Change the state. Raises IllegalMove if the table does not allow it."""
        check_move(self.state, self.trigger, target)
        self.state = target

    def send(self, request: Request[Any], context: messages.Context, *, anywhere: bool = False) -> None:
        channel, timeout_s = messages.Channel.MAIN, self.settings.request_timeout_s
        if isinstance(context, messages.ForJoin | messages.ForSync):
            channel, timeout_s = messages.Channel.JOIN, max(timeout_s, self.settings.rebalance_timeout_s + JOIN_GRACE_S)
        elif isinstance(context, messages.ForHeartbeat):
            # The timeout is at most the session timeout: a later response would not show that the session is alive.
            timeout_s = min(timeout_s, self.settings.session_timeout_s)
        address = None if anywhere else self.lookup.address
        self.actions.append(messages.Send(address, channel, request, timeout_s, context))

    def leave(self, reason: str, *, closing: bool) -> None:
        """Send LeaveGroup if the member has a member id.

        If the coordinator is unknown, a closing member waits until the coordinator is found. Without LeaveGroup, the
        group would wait for the member's session timeout. Java's consumer does not wait: it closes without LeaveGroup.
        """
        if not self.identity.member_id:
            return
        if self.lookup.address is not None:
            self.leaving = closing
            # A static member also sends its instance id; otherwise the broker would keep the member (KIP-1092).
            member = LeaveGroupRequestMember(
                member_id=self.identity.member_id,
                group_instance_id=self.settings.instance_id,
                reason=reason[: reasons.LENGTH_MAX],
            )
            request = LeaveGroupRequest(group_id=self.settings.group_id, members=(member,))
            self.send(request, messages.ForLeave(closing))
        elif closing:
            self.leaving, self.late_leave = True, reason

    def report_denied(self, denied: frozenset[str]) -> None:
        """Raise TopicAuthorizationFailed from the user's next poll, once for each newly refused topic."""
        if denied - self.denied:
            self.actions.append(messages.MembershipReport(topics_denied(denied)))
        self.denied |= denied

    def give_up_coordinator(self, now: float) -> None:
        """Disconnect from a coordinator that does not answer: new requests would wait behind the unanswered request."""
        if self.lookup.address is not None:
            self.actions.append(messages.Disconnect(self.lookup.address))
            self.lookup.lost(now)

    def request_rejoin(self, reason: str) -> None:
        """Request a rejoin. The reason of an earlier request is kept, because later reasons often follow from it."""
        if self.rejoin_reason is None:
            self.rejoin_reason = reason
        if self.first_reason is None:
            self.first_reason = reason
        if self.pattern is not None:
            self.match_stale = True
            self.watch.refresh()

    @property
    def rejoining(self) -> Rejoin | None:
        if self.first_reason is None:
            return None
        before = self.rejoins[-1].generation if self.rejoins else -1
        return Rejoin(before, -1, self.first_reason[: reasons.LENGTH_MAX], self.first_reason not in reasons.FOLLOWING)

    def record_rejoin(self) -> None:
        rejoin = self.rejoining
        if rejoin is not None:
            done = rejoin._replace(generation=self.identity.generation)
            self.rejoins, self.first_reason = (*self.rejoins, done)[-REJOINS_MAX:], None

    def end_attempt(self, reason: str, next_join_at: float) -> None:
        """End the attempt, keep the identity, and request a new attempt, which starts at `next_join_at` or later."""
        self.attempt = None
        self.move(State.UNJOINED)
        self.request_rejoin(reason)
        self.next_join_at = next_join_at

    def reset(self, *, keep_member_id: bool, reason: str) -> None:
        """Discard the invalid generation and, unless `keep_member_id`, the member id. The partitions are lost."""
        self.identity = messages.MemberIdentity(member_id=self.identity.member_id if keep_member_id else "")
        self.heartbeat.stop()
        self.attempt = None
        self.leader = False
        if self.state not in (State.UNJOINED, State.REVOKING):
            self.move(State.UNJOINED)
        self.request_rejoin(reason)

    def fail(self, error: errors.ConsumerError) -> None:
        if self.state in (State.FAILED, State.LEFT):
            return
        self.fatal = error
        self.identity = messages.MemberIdentity(member_id=self.identity.member_id)
        self.attempt = None
        self.leader = False
        self.heartbeat.stop()
        self.actions += self.commits.abandon(error)
        self.actions.append(messages.MembershipReport(error))
        self.move(State.FAILED)


def new_member(settings: GroupSettings, assignors: tuple[Assignor, ...], jitter: Callable[[], float]) -> MemberState:
    """Return a member's state before its first subscription. `jitter` returns a factor around 1 for each backoff."""

    def backoff() -> Backoff:
        return Backoff(settings.retry_backoff_s, settings.retry_backoff_max_s, jitter)

    return MemberState(
        settings,
        {assignor.name: assignor for assignor in assignors},
        all(assignor.protocol is COOPERATIVE for assignor in assignors),
        lookup=CoordinatorLookup(backoff()),
        heartbeat=HeartbeatTimer(
            settings.session_timeout_s, settings.rebalance_timeout_s, settings.heartbeat_interval_s, backoff()
        ),
        watch=MetadataWatch(settings.metadata_max_age_s, backoff(), settings.rack),
        old_plan=OldPlan(backoff()),
        commits=CommitFlow(settings, backoff()),
        join_backoff=backoff(),
    )
