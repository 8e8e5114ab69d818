"""The classic protocol's member (KIP-62 and its successors) as a machine: `handle(event, now)` returns actions.

It follows Java's `AbstractCoordinator` and `ConsumerCoordinator` with one difference in form: Java joins on the
user's thread inside `poll`, this machine joins whenever it may, and waits for the user's thread only where it must:
before a rebalance, until partitions of the old generation were given back (state REVOKING), and after the poll
timer expired, until the user polls again.

All events enter by one door and in one order: the state moves, then side data, then what time makes due. Nothing here
knows a thread, a socket or the time of day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleet_consumer.assignors import Assignment, ClusterView
from fleet_consumer.group import errors, reasons
from fleet_consumer.group.classification import Api, Verdict, error_for, rule_for
from fleet_consumer.group.core import MemberCore
from fleet_consumer.group.lookup import read_lookup
from fleet_consumer.group.messages import (
    Action,
    Answered,
    CallBack,
    CallBackKind,
    CalledBack,
    CloseRequested,
    CommitRequested,
    CoordinatorDoubted,
    Event,
    FinishCommit,
    ForCommit,
    ForHeartbeat,
    ForJoin,
    ForLeave,
    ForLookup,
    ForPlan,
    ForSync,
    ForWatch,
    Identity,
    PlanFailed,
    Planned,
    RebalanceAttempt,
    Report,
    RunAssignor,
    Subscribed,
    Tick,
    Unanswered,
    flatten,
)
from fleet_consumer.group.planning import read_subscriptions, wanted_topics
from fleet_consumer.group.requests import heartbeat_request, lookup_request
from fleet_consumer.group.states import HEARTBEATING, State
from fleet_consumer.group.timing import SLOW_RETRY_S
from fleet_consumer.group.watch import partition_counts, topics_request
from fleet_consumer.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.failures import MalformedMessage
from fleet_consumer.wire.join_group import JoinGroupResponse
from fleet_consumer.wire.sync_group import SyncGroupResponse


class ClassicMembership(MemberCore):
    """One member of one group. `jitter` gives factors around 1 for backoffs (`Backoff`)."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done, in order."""
        _HANDLERS[type(event)](self, event, now)
        self._advance(now)
        actions, self._actions = self._actions, []
        return actions

    # The user's events.

    def _on_tick(self, event: Tick, _now: float) -> None:
        self._polled_at = max(self._polled_at, event.polled_at)

    def _on_subscribed(self, event: Subscribed, now: float) -> None:
        self._polled_at = now
        topics = tuple(sorted(set(event.topics)))
        if self._state in (State.LEFT, State.FAILED) or topics == self._topics:
            return
        self._topics = topics
        self._watch.subscribe(topics)
        if self._state is State.IDLE:
            self._move(State.UNJOINED)
            self._request_rejoin(reasons.SUBSCRIBED)
        else:
            self._request_rejoin(reasons.SUBSCRIPTION_CHANGED)

    def _on_called_back(self, event: CalledBack, _now: float) -> None:
        if event.callback.kind is not CallBackKind.ASSIGNED and self._state is State.REVOKING:
            self._owned = {}
            self._move(State.UNJOINED)

    def _on_coordinator_doubted(self, event: CoordinatorDoubted, now: float) -> None:
        if event.address == self._lookup.address:
            self._lookup.lost(now)

    def _on_commit_requested(self, event: CommitRequested, now: float) -> None:
        event.commit.requested_at = now
        if self._fatal is not None:
            self._actions.append(FinishCommit(event.commit, self._fatal))
        else:
            self._actions += self._commits.start(event.commit, self._state, self._identity, self._lookup.address, now)

    def _on_close(self, event: CloseRequested, now: float) -> None:
        if self._state is State.LEFT:
            return
        self._actions += self._commits.abandon(errors.ConsumerClosed("closed before the commit was confirmed"))
        if event.leave and self._state not in (State.IDLE, State.FAILED):
            self._leave(reasons.CLOSING, closing=True)
        self._attempt = None
        self._owned = {}
        self._heartbeat.stop()
        self._move(State.LEFT)

    # Answers, each to its handler.

    def _on_answered(self, event: Answered, now: float) -> None:
        _ANSWERS[type(event.context)](self, event.context, event.response, now)

    def _on_unanswered(self, event: Unanswered, now: float) -> None:
        context, wait = event.context, SLOW_RETRY_S if event.slow else 0.0
        match context:
            case ForLookup():
                self._trouble = event.error
                self._lookup.failed(now, wait)
            case ForWatch():
                self._watch.unanswered(now, wait)
            case ForPlan(attempt) if attempt is self._attempt:
                self._trouble = event.error
                attempt.metadata_retry_at = now + max(self._join_backoff.next(), wait)
            case ForJoin(attempt) | ForSync(attempt) if attempt is self._attempt:
                self._trouble = event.error
                self._lookup.lost(now)
                self._end_attempt(reasons.rebalance_failed(event.error), now + max(self._join_backoff.next(), wait))
            case ForHeartbeat(identity, sent_at) if (
                identity is self._identity and sent_at == self._heartbeat.last_sent_at
            ):
                self._trouble = event.error
                self._lookup.lost(now)
                self._heartbeat.failed(now)
            case ForCommit(commit) if self._commits.knows(commit):
                self._lookup.lost(now)
                self._actions += self._commits.unanswered(commit, event.error, now)
            case ForLeave(closing=True):
                self._leaving = False
            case _:
                """An answer that nobody waits for any more changes nothing."""

    def _lookup_answered(self, _context: ForLookup, response: Any, now: float) -> None:
        code, address = read_lookup(response)
        rule = rule_for(Api.FIND_COORDINATOR, code)
        if rule.verdict is Verdict.OK:
            self._lookup.found(address)
            self._heartbeat.restart_session(now)
            return
        self._lookup.failed(now)
        if rule.verdict is Verdict.FATAL:
            self._fail(error_for(Api.FIND_COORDINATOR, code, self._settings.group_id, rule))
        else:
            self._trouble = errors.CoordinatorUnavailable(
                f"group {self._settings.group_id!r}: no coordinator yet: {describe(code)}"
            )

    def _join_answered(self, context: ForJoin, response: JoinGroupResponse, now: float) -> None:
        attempt, code = context.attempt, response.error_code
        if self._answer_is_stale(Api.JOIN_GROUP, attempt, code):
            return
        rule = rule_for(Api.JOIN_GROUP, code)
        match rule.verdict:
            case Verdict.OK:
                self._joined(attempt, response, now)
            case Verdict.ADOPT_MEMBER_ID:
                self._identity = Identity(member_id=response.member_id)
                self._end_attempt(reasons.MEMBER_ID_REQUIRED, self._hastily(now))
            case Verdict.REJOIN:
                self._end_attempt(attempt.reason, self._hastily(now))
            case Verdict.RESET_MEMBER:
                self._reset(keep_member_id=False, reason=reasons.answered("JoinGroup", describe(code)))
                self._next_join_at = self._hastily(now)
            case Verdict.RETRY | Verdict.COORDINATOR_LOST:
                if rule.verdict is Verdict.COORDINATOR_LOST:
                    self._lookup.lost(now)
                self._trouble = errors.CoordinatorUnavailable(f"JoinGroup was answered {describe(code)}")
                self._end_attempt(reasons.rebalance_failed(describe(code)), now + self._join_backoff.next())
            case _:
                self._fail(error_for(Api.JOIN_GROUP, code, self._settings.group_id, rule))

    def _joined(self, attempt: RebalanceAttempt, response: JoinGroupResponse, now: float) -> None:
        offered = {assignor.name: assignor for assignor in self._assignors}
        if response.protocol_type not in (None, PROTOCOL_TYPE) or response.protocol_name not in offered:
            self._fail_inconsistent(response.protocol_type, response.protocol_name)
            return
        self._identity = attempt.identity = Identity(response.generation_id, response.member_id, response.protocol_name)
        self._heartbeat.begin_rebalance(now)
        self._trouble = None
        attempt.assignor = offered[response.protocol_name]
        attempt.leader = response.leader == response.member_id
        if attempt.leader:
            attempt.subscriptions = read_subscriptions(response.members)
        if attempt.leader and not response.skip_assignment:
            self._move(State.PLANNING)
            self._ask_for_counts(attempt)
        else:
            # A static leader that came back keeps the old plan (KIP-814), yet watches the topics like any leader.
            self._move(State.SYNCING)
            self._sync(attempt, (), now)

    def _plan_answered(self, context: ForPlan, response: Any, _now: float) -> None:
        attempt = context.attempt
        if attempt is not self._attempt or attempt.assignor is None:
            return
        attempt.counts, _ = partition_counts(response)
        cluster = ClusterView(partitions=attempt.counts)
        self._actions.append(RunAssignor(attempt, attempt.assignor, cluster, attempt.subscriptions))

    def _on_planned(self, event: Planned, now: float) -> None:
        if event.attempt is self._attempt and self._state is State.PLANNING:
            self._move(State.SYNCING)
            self._sync(event.attempt, event.assignments, now)

    def _on_plan_failed(self, event: PlanFailed, now: float) -> None:
        if event.attempt is self._attempt:
            self._trouble = event.error
            self._actions.append(Report(event.error))
            self._end_attempt(reasons.rebalance_failed(event.error), now + self._settings.retry_backoff_max_s)

    def _sync_answered(self, context: ForSync, response: SyncGroupResponse, now: float) -> None:
        attempt, code = context.attempt, response.error_code
        if self._answer_is_stale(Api.SYNC_GROUP, attempt, code):
            return
        rule = rule_for(Api.SYNC_GROUP, code)
        match rule.verdict:
            case Verdict.OK:
                self._synced(attempt, response, now)
            case Verdict.REJOIN:
                self._end_attempt(reasons.GROUP_REBALANCING, self._hastily(now))
            case Verdict.RESET_MEMBER | Verdict.RESET_GENERATION:
                keep = rule.verdict is Verdict.RESET_GENERATION
                self._reset(keep_member_id=keep, reason=reasons.answered("SyncGroup", describe(code)))
                self._next_join_at = self._hastily(now)
            case Verdict.COORDINATOR_LOST:
                self._lookup.lost(now)
                self._end_attempt(reasons.rebalance_failed(describe(code)), now + self._join_backoff.next())
            case _:
                self._fail(error_for(Api.SYNC_GROUP, code, self._settings.group_id, rule))

    def _synced(self, attempt: RebalanceAttempt, response: SyncGroupResponse, now: float) -> None:
        if response.protocol_name not in (None, attempt.identity.protocol):
            self._fail_inconsistent(response.protocol_type, response.protocol_name)
            return
        try:
            received = decode_assignment(response.assignment)
        except MalformedMessage as cause:
            text = f"group {self._settings.group_id!r}: the leader's assignment cannot be read: {cause}"
            self._fail(errors.UnexpectedAnswer(text))
            return
        share = {part.topic: part.partitions for part in received.assigned_partitions if part.partitions}
        if not share.keys() <= set(attempt.topics):
            self._end_attempt(reasons.ASSIGNMENT_MISMATCH, now + self._join_backoff.next())
            return
        self._move(State.STABLE)
        self._attempt = None
        self._owned = share
        self._leader = attempt.leader
        self._rebalances += 1
        self._last_reason = attempt.reason
        self._trouble = None
        self._hasty_rejoins = 0
        self._join_backoff.reset()
        self._lookup.settled()
        self._heartbeat.start(attempt.sync_sent_at, now)
        self._take_lead(attempt)
        partitions = flatten(share)
        self._actions.append(
            CallBack(
                CallBackKind.ASSIGNED,
                partitions,
                generation=self._identity.generation,
                assignor=attempt.assignor,
                assignment=Assignment(share, received.user_data),
                appeared=self._watch.appeared(partitions),
            )
        )

    def _take_lead(self, attempt: RebalanceAttempt) -> None:
        if not attempt.leader:
            self._watch.follow()
        elif attempt.counts is not None:
            self._watch.lead(wanted_topics(attempt.subscriptions), attempt.counts)
        else:
            self._watch.lead_old_plan(wanted_topics(attempt.subscriptions))

    def _heartbeat_answered(self, context: ForHeartbeat, response: Any, now: float) -> None:
        code = response.error_code
        if context.identity is not self._identity:
            return
        rule = rule_for(Api.HEARTBEAT, code)
        match rule.verdict:
            case Verdict.OK | Verdict.REJOIN:
                self._heartbeat.succeeded(context.sent_at, now)
                self._lookup.settled()
                self._trouble = None
                # Elsewhere than in STABLE the news is old: the rebalance that it announces is under way.
                if rule.verdict is Verdict.REJOIN and self._state is State.STABLE:
                    self._request_rejoin(reasons.GROUP_REBALANCING)
            case Verdict.COORDINATOR_LOST:
                self._lookup.lost(now)
                self._heartbeat.failed(now)
            case Verdict.RETRY:
                self._heartbeat.failed(now)
            case Verdict.RESET_MEMBER | Verdict.RESET_GENERATION:
                keep = rule.verdict is Verdict.RESET_GENERATION
                self._reset(keep_member_id=keep, reason=reasons.answered("Heartbeat", describe(code)))
            case _:
                self._fail(error_for(Api.HEARTBEAT, code, self._settings.group_id, rule))

    def _commit_answered(self, context: ForCommit, response: Any, now: float) -> None:
        commit = context.commit
        if not self._commits.knows(commit):
            return
        actions, judgement = self._commits.answered(commit, response, self._state, self._identity, now)
        self._actions += actions
        current = commit.sent_as is self._identity
        match judgement.rule.verdict:
            case Verdict.COORDINATOR_LOST:
                self._lookup.lost(now)
            case Verdict.REJOIN if self._state is State.STABLE:
                self._request_rejoin(reasons.COMMIT_MET_REBALANCE)
            case (Verdict.RESET_MEMBER | Verdict.RESET_GENERATION) as verdict if current:
                keep = verdict is Verdict.RESET_GENERATION
                self._reset(keep_member_id=keep, reason=reasons.answered("OffsetCommit", describe(judgement.code)))
            case Verdict.FATAL if current or judgement.code != ErrorCode.FENCED_INSTANCE_ID:
                rule = judgement.rule
                self._fail(error_for(Api.OFFSET_COMMIT, judgement.code, self._settings.group_id, rule))
            case _:
                """The commit's own business."""

    def _watch_answered(self, _context: ForWatch, response: Any, now: float) -> None:
        change = self._watch.answered(response, now)
        if change is not None and self._leader and self._state is State.STABLE:
            self._request_rejoin(reasons.metadata_changed(*change))

    def _leave_answered(self, context: ForLeave, _response: Any, _now: float) -> None:
        # Best effort, as in Java: an error here means that the session will time out instead.
        if context.closing:
            self._leaving = False

    # What time makes due.

    def _advance(self, now: float) -> None:
        if self._state in (State.IDLE, State.LEFT, State.FAILED):
            return
        self._doubt_coordinator(now)
        if self._lookup.due(now):
            self._lookup.in_flight = True
            self._send(lookup_request(self._settings), ForLookup(), anywhere=True)
        if self._watch.due(now):
            self._watch.in_flight = True
            self._send(topics_request(self._watch.topics), ForWatch(), anywhere=True)
        self._expire_poll_timer(now)
        self._actions += self._commits.advance(self._state, self._identity, self._lookup.address, now)
        self._beat(now)
        self._rebalance(now)

    def _doubt_coordinator(self, now: float) -> None:
        """A session without any good answer: the coordinator may hang, or be another one by now. The identity stays."""
        if self._state in HEARTBEATING and self._identity.valid and now >= self._heartbeat.session_deadline:
            self._lookup.lost(now)

    def _expire_poll_timer(self, now: float) -> None:
        """The user's thread has not polled for too long: it may hang, and its partitions must not hang with it.

        A static member says nothing (KIP-345): its partitions move when its session ends, unless it is restarted
        before. Either way this member takes part again only once it polls.
        """
        late = now - self._polled_at > self._settings.max_poll_interval_s
        if not late or self._state not in HEARTBEATING or not self._identity.valid:
            return
        if self._settings.instance_id is None:
            self._leave(reasons.POLL_TIMEOUT, closing=False)
        self._reset(keep_member_id=False, reason=reasons.POLL_TIMEOUT)
        self._trouble = errors.PollTimedOut(
            f"group {self._settings.group_id!r}: poll was not called for {self._settings.max_poll_interval_s:g} s, "
            "so the membership was given up; handle fewer records per poll or raise max_poll_interval_ms"
        )

    def _beat(self, now: float) -> None:
        beating = self._state in HEARTBEATING and self._identity.valid and self._lookup.address is not None
        if beating and not self._heartbeat.in_flight and now >= self._heartbeat.next_at:
            self._heartbeat.sent(now)
            self._send(heartbeat_request(self._settings, self._identity), ForHeartbeat(self._identity, now))

    def _rebalance(self, now: float) -> None:
        attempt = self._attempt
        if attempt is not None:
            if attempt.metadata_retry_at is not None and now >= attempt.metadata_retry_at:
                attempt.metadata_retry_at = None
                self._ask_for_counts(attempt)
            return
        if self._rejoin_reason is None or self._state not in (State.UNJOINED, State.STABLE):
            return
        if now < self._next_join_at or now - self._polled_at > self._settings.max_poll_interval_s:
            return
        if self._state is State.STABLE and self._lookup.address is None:
            return  # Work goes on with what is owned until there is somebody to rebalance with.
        if self._owned:
            kind = CallBackKind.REVOKED if self._identity.valid else CallBackKind.LOST
            self._move(State.REVOKING)
            self._actions.append(CallBack(kind, flatten(self._owned), generation=self._identity.generation))
        elif self._lookup.address is not None:
            self._join(self._rejoin_reason)


_HANDLERS: Mapping[type, Callable[[ClassicMembership, Any, float], None]] = {
    Tick: ClassicMembership._on_tick,
    Subscribed: ClassicMembership._on_subscribed,
    CoordinatorDoubted: ClassicMembership._on_coordinator_doubted,
    CalledBack: ClassicMembership._on_called_back,
    CommitRequested: ClassicMembership._on_commit_requested,
    CloseRequested: ClassicMembership._on_close,
    Answered: ClassicMembership._on_answered,
    Unanswered: ClassicMembership._on_unanswered,
    Planned: ClassicMembership._on_planned,
    PlanFailed: ClassicMembership._on_plan_failed,
}

_ANSWERS: Mapping[type, Callable[[ClassicMembership, Any, Any, float], None]] = {
    ForLookup: ClassicMembership._lookup_answered,
    ForJoin: ClassicMembership._join_answered,
    ForPlan: ClassicMembership._plan_answered,
    ForSync: ClassicMembership._sync_answered,
    ForHeartbeat: ClassicMembership._heartbeat_answered,
    ForCommit: ClassicMembership._commit_answered,
    ForWatch: ClassicMembership._watch_answered,
    ForLeave: ClassicMembership._leave_answered,
}
