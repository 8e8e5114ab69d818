"""The state of a classic member, and the steps that keep it consistent.

State and table, identity and attempt change together here. `rebalance`, `session` and `subscription` decide when a step
is taken; `actions` collects in order what the shell has to do.

A static leader that returns within its session skips the assignment (KIP-814). It must still notice that a topic has
more partitions than the plan of its predecessor, including those added while it was away; the members' assignments,
from DescribeGroups, show what that plan assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_consumer.assignors import COOPERATIVE, Assignor
from fleet_consumer.contract.naming import TopicPattern, pattern_matches
from fleet_consumer.group import errors, messages, reasons
from fleet_consumer.group.classic.states import IN_REBALANCE, State, Trigger, check_move
from fleet_consumer.group.commits import CommitFlow, Standing
from fleet_consumer.group.membership import GroupSettings, Rejoin
from fleet_consumer.group.metadata import PartitionsByTopic
from fleet_consumer.group.timing import NEVER, Backoff, CoordinatorLookup, HeartbeatTimer
from fleet_consumer.group.watch import MetadataWatch, topics_denied
from fleet_consumer.wire.consumer_protocol import decode_assignment
from fleet_consumer.wire.errors import ErrorCode, MalformedMessage, is_retriable
from fleet_consumer.wire.groups import DescribeGroupsResponse, LeaveGroupRequest, LeaveGroupRequestMember
from fleet_consumer.wire.message import Request


class OldPlan:
    """Lookup of the plan: its timer, and partition counts from the response."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._next_at = NEVER
        self.wanted = False

    def want(self) -> None:
        """Begin to ask: this member leads by a plan that it does not know."""
        self.wanted = True
        self._next_at = NEVER

    def due(self, now: float) -> bool:
        return self.wanted and now >= self._next_at

    def asked(self, now: float, timeout_s: float) -> None:
        """Note that DescribeGroups was sent. A lost response delays the next request no longer than its timeout."""
        self._next_at = now + timeout_s

    def failed(self, now: float) -> None:
        """Retry after the backoff: no response came."""
        self._next_at = now + self._backoff.next()

    def answered(self, response: DescribeGroupsResponse, now: float) -> dict[str, int] | None:
        """The number of partitions of each topic that the plan assigned; None when the response does not show it.

        A principal with Read on a group may describe it. If refused nevertheless, the member stays with the counts that
        it sees from now on.
        """
        group = response.groups[0] if response.groups else None
        if group is None or group.error_code != ErrorCode.NONE:
            if group is not None and not is_retriable(group.error_code):
                self.wanted = False
            self.failed(now)
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
"""Wait for the response to a JoinGroup or SyncGroup beyond the rebalance timeout, as in Java."""
REJOINS_MAX = 10
"""Rejoins that a member remembers."""


@dataclass(slots=True, eq=False)
class MemberState:
    """Everything that a classic member knows. Times are monotonic seconds."""

    settings: GroupSettings
    assignors: Mapping[str, Assignor]
    """By name, the preferred first."""
    cooperative: bool
    """The protocol is the highest that all configured assignors support, as in Java; all support eager."""

    # Parts with timers of their own.
    lookup: CoordinatorLookup
    heartbeat: HeartbeatTimer
    watch: MetadataWatch
    old_plan: OldPlan
    commits: CommitFlow
    join_backoff: Backoff

    # Protocol.
    state: State = State.IDLE
    trigger: Trigger = Trigger.OTHER
    """The cause that is being handled; moves are checked against it."""
    identity: messages.MemberIdentity = field(default_factory=messages.MemberIdentity)
    attempt: messages.RebalanceAttempt | None = None
    """The attempt in progress. In UNJOINED and STABLE it waits for the assignors' user data for its JoinGroup."""
    leader: bool = False
    rejoin_reason: str | None = None
    """The reason for the next JoinGroup; None while there is none to send."""
    next_join_at: float = NEVER
    hasty_rejoins: int = 0
    """Rejoins in a row without a wait."""

    # Subscription.
    named: tuple[str, ...] = ()
    """The topics of the user's call."""
    topics: tuple[str, ...] = ()
    """The topics subscribed to: those named, or those that match the pattern."""
    pattern: TopicPattern | None = None
    match_stale: bool = False
    """`topics` must be matched against fresh metadata before the next join."""
    subscription: int = 0
    """Number of calls of `unsubscribe`: callbacks of earlier subscriptions are void."""
    denied: frozenset[str] = frozenset()
    """Topics whose TopicAuthorizationFailed was raised already."""

    # Ownership.
    owned: PartitionsByTopic = field(default_factory=dict)
    giving_back: messages.CallBack | None = None
    """The callback that takes partitions from the user's thread. JoinGroup waits until it returns; otherwise two
    members read one partition."""

    # User.
    polled_at: float = NEVER
    coordinator_wanted: bool = False
    """A coordinator is needed without a subscription, for lookups or commits of assigned partitions."""
    leaving: bool = False
    """Closed, and LeaveGroup is in flight or waits for the coordinator to be found."""
    late_leave: str | None = None
    """The reason of a LeaveGroup that waits for the coordinator to be found."""

    # For snapshots.
    fatal: errors.ConsumerError | None = None
    last_error: Exception | None = None
    last_reason: str = ""
    rejoins: tuple[Rejoin, ...] = ()
    """The last ones that led to a generation."""
    first_reason: str | None = None
    """The reason of the rejoin that is under way. Attempts that fail have reasons of their own; this is their cause."""

    actions: list[messages.Action] = field(default_factory=list)
    """Output of the event being handled."""

    @property
    def joining_with_partitions(self) -> bool:
        """A cooperative member keeps reading while its JoinGroup waits. The broker takes heartbeats and commits of the
        old generation as long as others may still join (PreparingRebalance), so the session is renewed meanwhile."""
        return self.state is State.JOINING and bool(self.owned)

    @property
    def standing(self) -> Standing:
        """The situation for commits.

        While REVOKING the group is in PreparingRebalance at the broker, which takes commits of the old generation.
        """
        holds, valid = self.cooperative and bool(self.owned), self.identity.valid
        joining, rebalancing = self.state is State.JOINING, self.state in IN_REBALANCE
        open_ = self.state in (State.STABLE, State.REVOKING) or (joining and holds)
        return Standing(
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
        """True if a topic is (still) subscribed to."""
        return topic in self.topics or (self.pattern is not None and pattern_matches(self.pattern, topic))

    def move(self, target: State) -> None:
        """Change the state. Raises IllegalMove for a move outside of the table."""
        check_move(self.state, self.trigger, target)
        self.state = target

    def send(self, request: Request[Any], context: messages.Context, *, anywhere: bool = False) -> None:
        """Send a request to the coordinator, or with `anywhere` to any broker."""
        channel, timeout_s = messages.Channel.MAIN, self.settings.request_timeout_s
        if isinstance(context, messages.ForJoin | messages.ForSync):
            channel, timeout_s = messages.Channel.JOIN, max(timeout_s, self.settings.rebalance_timeout_s + JOIN_GRACE_S)
        elif isinstance(context, messages.ForHeartbeat):
            # A response after the session timeout proves nothing any more.
            timeout_s = min(timeout_s, self.settings.session_timeout_s)
        address = None if anywhere else self.lookup.address
        self.actions.append(messages.Send(address, channel, request, timeout_s, context))

    def leave(self, reason: str, *, closing: bool) -> None:
        """Send LeaveGroup, if the group knows this member. While its coordinator is unknown, one that closes waits:
        otherwise the group would wait for its session timeout. Java's consumer leaves without a word then."""
        if not self.identity.member_id:
            return
        if self.lookup.address is not None:
            self.leaving = closing
            # A static member by its instance id, too, or the broker would keep its place (KIP-1092).
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
        """Disconnect from a silent coordinator: later requests on its connections would wait behind the lost one."""
        if self.lookup.address is not None:
            self.actions.append(messages.Disconnect(self.lookup.address))
            self.lookup.lost(now)

    def request_rejoin(self, reason: str) -> None:
        """Join again. The first reason wins: it is the cause, later ones tend to be its consequences."""
        if self.rejoin_reason is None:
            self.rejoin_reason = reason
        if self.first_reason is None:
            self.first_reason = reason
        if self.pattern is not None:
            self.match_stale = True
            self.watch.refresh()

    @property
    def rejoining(self) -> Rejoin | None:
        """The rejoin that is under way."""
        if self.first_reason is None:
            return None
        before = self.rejoins[-1].generation if self.rejoins else -1
        return Rejoin(before, -1, self.first_reason[: reasons.LENGTH_MAX], self.first_reason not in reasons.FOLLOWING)

    def note_rejoin(self) -> None:
        """Note that the rejoin under way has led to the present generation."""
        rejoin = self.rejoining
        if rejoin is not None:
            done = rejoin._replace(generation=self.identity.generation)
            self.rejoins, self.first_reason = (*self.rejoins, done)[-REJOINS_MAX:], None

    def end_attempt(self, reason: str, next_join_at: float) -> None:
        """Give up the attempt. The identity stays; the next attempt is a new object."""
        self.attempt = None
        self.move(State.UNJOINED)
        self.request_rejoin(reason)
        self.next_join_at = next_join_at

    def reset(self, *, keep_member_id: bool, reason: str) -> None:
        """Forget the generation, or the whole identity, that the coordinator does not know; all partitions are lost."""
        self.identity = messages.MemberIdentity(member_id=self.identity.member_id if keep_member_id else "")
        self.heartbeat.stop()
        self.attempt = None
        self.leader = False
        if self.state not in (State.UNJOINED, State.REVOKING):
            self.move(State.UNJOINED)
        self.request_rejoin(reason)

    def fail(self, error: errors.ConsumerError) -> None:
        """End the member with a fatal error, unless it has ended already."""
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
    """The state of a member before its first subscription. `jitter` returns factors around 1 for backoffs."""

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
