"""What a classic member is, and the steps that it can take; `classic` decides when it takes them.

Every step leaves the member consistent: the state moves by the table, identity and attempt go together, and what is
to be done outside is noted as actions in order. Nothing here knows a thread, a socket or the time of day.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet_consumer.assignors import COOPERATIVE, Assignor
from fleet_consumer.contract.naming import TopicPattern, pattern_matches
from fleet_consumer.group import errors
from fleet_consumer.group.classification import Api, error_for, rule_for
from fleet_consumer.group.commit_flow import CommitFlow, Standing
from fleet_consumer.group.lookup import CoordinatorLookup
from fleet_consumer.group.membership import Membership
from fleet_consumer.group.messages import (
    Action,
    CallBack,
    Channel,
    Context,
    Disconnect,
    ForJoin,
    ForLeave,
    ForPlan,
    ForSync,
    MemberIdentity,
    MembershipReport,
    RebalanceAttempt,
    Send,
)
from fleet_consumer.group.metadata import topics_request
from fleet_consumer.group.old_plan import OldPlan
from fleet_consumer.group.partitions import PartitionsByTopic
from fleet_consumer.group.planning import wanted_topics
from fleet_consumer.group.requests import join_request, leave_request, sync_request
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.group.sighting import GONE_AFTER_S, Doubts
from fleet_consumer.group.states import State, check_move
from fleet_consumer.group.timing import NEVER, Backoff, HeartbeatTimer
from fleet_consumer.group.watch import MetadataWatch, topics_denied
from fleet_consumer.wire.consumer_protocol import PROTOCOL_TYPE
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.sync_group import SyncGroupRequestAssignment

HASTY_REJOINS_MAX = 5
"""How often in a row a member joins again without waiting. Java sets no limit; a broken broker would be hammered."""

IDLE_TICK_S = 1.0
"""How often time is looked at when nothing is due: so soon is it noticed that the user polls again."""


class MemberCore:
    """State, identity, timers and steps of one member of one group."""

    def __init__(
        self, settings: GroupSettings, assignors: tuple[Assignor, ...], jitter: Callable[[], float] = lambda: 1.0
    ) -> None:
        def backoff() -> Backoff:
            return Backoff(settings.retry_backoff_s, settings.retry_backoff_max_s, jitter)

        self._settings = settings
        self._assignors = assignors
        self._state = State.IDLE
        self._identity = MemberIdentity()
        self._attempt: RebalanceAttempt | None = None
        self._leader = False
        # What the user named, and what that comes to.
        self._named: tuple[str, ...] = ()
        self._topics: tuple[str, ...] = ()
        # With a pattern, the topics follow from metadata, and no join goes out before they are fresh.
        self._pattern: TopicPattern | None = None
        self._match_stale = False
        # How often the user has unsubscribed.
        self._subscription = 0
        self._owned: PartitionsByTopic = {}
        # The callback that takes partitions from the user's thread; nothing is joined before it has run.
        self._giving_back: CallBack | None = None
        self._rejoin_reason: str | None = None
        self._last_reason = ""
        self._rebalances = 0
        self._next_join_at = NEVER
        self._hasty_rejoins = 0
        self._polled_at = NEVER
        self._leaving = False
        self._fatal: errors.ConsumerError | None = None
        self._last_error: Exception | None = None
        self._coordinator_wanted = False
        # Topics that the user was told not to be allowed to see.
        self._denied: frozenset[str] = frozenset()
        self._lookup = CoordinatorLookup(backoff())
        self._heartbeat = HeartbeatTimer(settings.session_timeout_s, settings.heartbeat_interval_s, backoff())
        self._watch = MetadataWatch(settings.metadata_max_age_s, backoff(), settings.rack)
        self._old_plan = OldPlan(backoff())
        self._commits = CommitFlow(settings, backoff())
        self._join_backoff = backoff()
        self._actions: list[Action] = []

    @property
    def state(self) -> State:
        """Where this member is in the protocol."""
        return self._state

    @property
    def closed(self) -> bool:
        """Whether everything was said that closing had to say."""
        return self._state is State.LEFT and not self._leaving

    @property
    def fatal(self) -> Exception | None:
        """The error that has ended this member, None while none has."""
        return self._fatal

    @property
    def commits_pending(self) -> bool:
        """Whether a commit has not come to its end."""
        return self._commits.pending

    @property
    def fence_deadline(self) -> float:
        """Until when this member's partitions are surely its own."""
        return self._heartbeat.fence_deadline if self._identity.valid else NEVER

    @property
    def coordinator(self) -> tuple[str, int] | None:
        """The coordinator's address, None while it is unknown."""
        return self._lookup.address

    def next_deadline(self, now: float) -> float:
        """When time alone makes something due; a Tick is wanted then, and at least every `IDLE_TICK_S`.

        What lies in the past waits for something else than time, or the last event would have done it.
        """
        times = [self._polled_at + self._settings.max_poll_interval_s, self._next_join_at, self._lookup.next_at]
        times += [self._heartbeat.next_at, self._heartbeat.session_deadline, self._watch.next_at]
        times += [at for at in (self._commits.next_at,) if at is not None]
        if self._attempt is not None and self._attempt.metadata_retry_at is not None:
            times.append(self._attempt.metadata_retry_at)
        return min((at for at in times if at > now), default=now + IDLE_TICK_S)

    @property
    def _standing(self) -> Standing:
        """What decides about commits now."""
        return Standing(self._state, self._identity, self._lookup.address, self._cooperative and bool(self._owned))

    def picture(self) -> Membership:
        """This member as others may see it."""
        return Membership(
            group_id=self._settings.group_id,
            instance_id=self._settings.instance_id,
            member_id=self._identity.member_id,
            generation=self._identity.generation,
            leader=self._leader,
            protocol=self._identity.protocol,
            state=self._state.word,
            coordinator=self._lookup.address,
            assignment=self._owned,
            last_heartbeat_at=self._heartbeat.last_good_sent_at,
            rebalances=self._rebalances,
            last_rebalance_reason=self._last_reason,
            error=self._fatal or self._last_error or self._watch.error,
        )

    @property
    def _cooperative(self) -> bool:
        """The protocol is the highest that all configured assignors support, as in Java; all support eager."""
        return all(assignor.protocol is COOPERATIVE for assignor in self._assignors)

    def _join(self, reason: str, now: float) -> None:
        attempt = RebalanceAttempt(reason, self._identity, self._topics)
        # The others wait at most a rebalance timeout for the plan.
        attempt.doubts = Doubts(min(GONE_AFTER_S, self._settings.rebalance_timeout_s / 3))
        try:
            request = join_request(self._settings, self._identity, self._assignors, self._topics, self._owned, reason)
        except errors.AssignorFailed as failure:
            self._last_error = failure
            self._actions.append(MembershipReport(failure))
            self._next_join_at = now + self._settings.retry_backoff_max_s
            return
        self._move(State.JOINING)
        self._attempt, self._rejoin_reason = attempt, None
        self._heartbeat.in_flight = False
        self._send(request, ForJoin(attempt), channel=Channel.JOIN, timeout_s=self._settings.join_timeout_s)

    def _ask_for_counts(self, attempt: RebalanceAttempt) -> None:
        self._send(topics_request(wanted_topics(attempt.subscriptions)), ForPlan(attempt), anywhere=True)

    def _sync(self, attempt: RebalanceAttempt, assignments: tuple[SyncGroupRequestAssignment, ...], now: float) -> None:
        attempt.sync_sent_at = now
        request = sync_request(self._settings, attempt.identity, assignments)
        self._send(request, ForSync(attempt), channel=Channel.JOIN, timeout_s=self._settings.join_timeout_s)

    def _leave(self, reason: str, *, closing: bool) -> None:
        if self._lookup.address is not None and self._identity.member_id:
            self._leaving = closing
            self._send(leave_request(self._settings, self._identity, reason), ForLeave(closing))

    def _send(
        self,
        request: Request[Any],
        context: Context,
        *,
        channel: Channel = Channel.MAIN,
        timeout_s: float | None = None,
        anywhere: bool = False,
    ) -> None:
        address = None if anywhere else self._lookup.address
        patience = self._settings.request_timeout_s if timeout_s is None else timeout_s
        self._actions.append(Send(address, channel, request, patience, context))

    def _report_denied(self, denied: frozenset[str]) -> None:
        """Raise TopicAuthorizationFailed from the user's next poll, once for each topic that is refused anew."""
        if denied - self._denied:
            self._actions.append(MembershipReport(topics_denied(denied)))
        self._denied |= denied

    def _give_up_coordinator(self, now: float) -> None:
        """A coordinator that did not answer: whatever follows on the same connection would wait behind what it owes."""
        if self._lookup.address is not None:
            self._actions.append(Disconnect(self._lookup.address))
            self._lookup.lost(now)

    def _end_attempt(self, reason: str, next_join_at: float) -> None:
        """This attempt came to nothing; the identity stays, the next attempt is a new object."""
        self._attempt = None
        self._move(State.UNJOINED)
        self._request_rejoin(reason)
        self._next_join_at = next_join_at

    def _reset(self, *, keep_member_id: bool, reason: str) -> None:
        """The coordinator does not know this generation, or this member, any more: what it owned is lost."""
        self._identity = MemberIdentity(member_id=self._identity.member_id if keep_member_id else "")
        self._heartbeat.stop()
        self._attempt = None
        self._leader = False
        if self._state not in (State.UNJOINED, State.REVOKING):
            self._move(State.UNJOINED)
        self._request_rejoin(reason)

    def _request_rejoin(self, reason: str) -> None:
        """The first reason wins: it is the cause, later ones tend to be its consequences."""
        if self._rejoin_reason is None:
            self._rejoin_reason = reason
        if self._pattern is not None:
            self._match_stale = True
            self._watch.refresh()

    def _wants(self, topic: str) -> bool:
        """Whether a topic is (still) subscribed to."""
        return topic in self._topics or (self._pattern is not None and pattern_matches(self._pattern, topic))

    def _hastily(self, now: float) -> float:
        """When to join again after an answer that asks for it at once."""
        self._hasty_rejoins += 1
        return now if self._hasty_rejoins <= HASTY_REJOINS_MAX else now + self._join_backoff.next()

    def _answer_is_stale(self, api: Api, attempt: RebalanceAttempt, code: int) -> bool:
        """Whether an answer belongs to an older attempt; being fenced is final even then."""
        if attempt is self._attempt:
            return False
        if code == ErrorCode.FENCED_INSTANCE_ID and self._state is not State.LEFT:
            self._fail(error_for(api, code, self._settings.group_id, rule_for(api, code)))
        return True

    def _fail_inconsistent(self, protocol_type: str | None, protocol: str | None) -> None:
        names = ", ".join(assignor.name for assignor in self._assignors)
        text = (
            f"group {self._settings.group_id!r} uses protocol {protocol!r} of type {protocol_type!r}, "
            f"this member offers {names} of type {PROTOCOL_TYPE!r}"
        )
        self._fail(errors.InconsistentProtocol(text))

    def _fail(self, error: errors.ConsumerError) -> None:
        if self._state in (State.FAILED, State.LEFT):
            return
        self._fatal = error
        self._identity = MemberIdentity(member_id=self._identity.member_id)
        self._attempt = None
        self._leader = False
        self._heartbeat.stop()
        self._actions += self._commits.abandon(error)
        self._actions.append(MembershipReport(error))
        self._move(State.FAILED)

    def _move(self, target: State) -> None:
        check_move(self._state, target)
        self._state = target
