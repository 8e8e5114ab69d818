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

from fleet_consumer.group import errors, reasons
from fleet_consumer.group.classification import Api, Verdict, error_for, rule_for
from fleet_consumer.group.joining import JoiningMember
from fleet_consumer.group.lookup import read_lookup
from fleet_consumer.group.messages import (
    Action,
    Answered,
    CalledBack,
    CloseRequested,
    CommitRequested,
    CoordinatorDoubted,
    CoordinatorWanted,
    Event,
    FinishCommit,
    ForCommit,
    ForHeartbeat,
    ForJoin,
    ForLeave,
    ForLookup,
    ForOldPlan,
    ForPlan,
    ForSync,
    ForWatch,
    LoginRefused,
    MemberIdentity,
    PlanFailed,
    Planned,
    RebalanceRequested,
    Subscribed,
    Tick,
    Unanswered,
    Unsubscribed,
)
from fleet_consumer.group.requests import heartbeat_request, lookup_request, old_plan_request
from fleet_consumer.group.states import HEARTBEATING, State
from fleet_consumer.group.timing import SLOW_RETRY_S
from fleet_consumer.wire.errors import ErrorCode, describe


class ClassicMembership(JoiningMember):
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
        if self._state in (State.LEFT, State.FAILED):
            return
        if self._state is not State.IDLE and (topics, event.pattern) == (self._named, self._pattern):
            return
        self._named, self._pattern = topics, event.pattern
        if event.pattern is None:
            self._topics, self._match_stale = topics, False
        self._watch.subscribe(topics, event.pattern)
        self._denied = frozenset()
        if self._state is State.IDLE:
            self._move(State.UNJOINED)
            self._request_rejoin(reasons.SUBSCRIBED)
        else:
            self._request_rejoin(reasons.SUBSCRIPTION_CHANGED)

    def _on_unsubscribed(self, _event: Unsubscribed, _now: float) -> None:
        """Leave the group, and be as new. Callbacks on their way to the user are void: he was told already."""
        self._subscription += 1
        if self._state in (State.IDLE, State.LEFT, State.FAILED):
            return
        if self._settings.instance_id is None:
            self._leave(reasons.UNSUBSCRIBED, closing=False)
        self._named, self._topics, self._pattern, self._match_stale = (), (), None, False
        self._identity, self._attempt, self._rejoin_reason = MemberIdentity(), None, None
        self._owned, self._giving_back, self._leader = {}, None, False
        self._heartbeat.stop()
        self._watch.subscribe(())
        self._watch.follow()
        self._old_plan.wanted = False
        self._last_error = None
        self._move(State.IDLE)

    def _on_rebalance_requested(self, event: RebalanceRequested, _now: float) -> None:
        if self._state not in (State.IDLE, State.LEFT, State.FAILED):
            self._request_rejoin(event.reason or reasons.ENFORCED)

    def _on_login_refused(self, event: LoginRefused, _now: float) -> None:
        self._fail(event.error)

    def _on_coordinator_doubted(self, event: CoordinatorDoubted, now: float) -> None:
        if event.address == self._lookup.address:
            self._lookup.lost(now)

    def _on_coordinator_wanted(self, _event: CoordinatorWanted, _now: float) -> None:
        self._coordinator_wanted = True

    def _on_commit_requested(self, event: CommitRequested, now: float) -> None:
        event.commit.requested_at = now
        self._coordinator_wanted = self._coordinator_wanted or event.commit.alone
        if self._fatal is not None:
            self._actions.append(FinishCommit(event.commit, self._fatal))
        else:
            self._actions += self._commits.start(event.commit, self._standing, now)

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
                self._last_error = event.error
                self._lookup.failed(now, wait)
            case ForWatch():
                self._watch.unanswered(now, wait)
            case ForOldPlan():
                self._old_plan.failed(now)
            case ForPlan(attempt) if attempt is self._attempt:
                self._last_error = event.error
                attempt.metadata_retry_at = now + max(self._join_backoff.next(), wait)
            case ForJoin(attempt) | ForSync(attempt) if attempt is self._attempt:
                self._last_error = event.error
                self._lookup.lost(now)
                self._end_attempt(reasons.rebalance_failed(event.error), now + max(self._join_backoff.next(), wait))
            case ForHeartbeat(identity, sent_at) if (
                identity is self._identity and sent_at == self._heartbeat.last_sent_at
            ):
                self._last_error = event.error
                self._give_up_coordinator(now)
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
            self._last_error = errors.CoordinatorUnavailable(
                f"group {self._settings.group_id!r}: no coordinator yet: {describe(code)}"
            )

    def _heartbeat_answered(self, context: ForHeartbeat, response: Any, now: float) -> None:
        code = response.error_code
        # Sent before the close and answered after the LeaveGroup, it says that this member is unknown: so it wanted.
        if context.identity is not self._identity or self._state is State.LEFT:
            return
        rule = rule_for(Api.HEARTBEAT, code)
        match rule.verdict:
            case verdict if self._joining_with_partitions and verdict not in (Verdict.OK, Verdict.REJOIN):
                # The next generation may have begun at the broker; the answer to the JoinGroup will tell.
                self._heartbeat.failed(now)
            case Verdict.OK | Verdict.REJOIN:
                self._heartbeat.succeeded(context.sent_at, now)
                self._lookup.settled()
                self._last_error = None
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
        actions, judgement = self._commits.answered(commit, response, self._standing, now)
        self._actions += actions
        current = commit.sent_as is self._identity and not self._joining_with_partitions
        match judgement.rule.verdict:
            case Verdict.COORDINATOR_LOST:
                self._lookup.lost(now)
            case Verdict.REJOIN if self._state is State.STABLE:
                self._request_rejoin(reasons.COMMIT_MET_REBALANCE)
            case (Verdict.RESET_MEMBER | Verdict.RESET_GENERATION) as verdict if current:
                keep = verdict is Verdict.RESET_GENERATION
                self._reset(keep_member_id=keep, reason=reasons.answered("OffsetCommit", describe(judgement.code)))
            case Verdict.FATAL if commit.sent_as is self._identity or judgement.code != ErrorCode.FENCED_INSTANCE_ID:
                rule = judgement.rule
                self._fail(error_for(Api.OFFSET_COMMIT, judgement.code, self._settings.group_id, rule))
            case _:
                """The commit's own business."""

    def _watch_answered(self, _context: ForWatch, response: Any, now: float) -> None:
        change = self._watch.answered(response, now)
        self._denied &= self._watch.denied
        self._report_denied(self._watch.denied)
        if change is not None and self._leader and self._state is State.STABLE:
            self._request_rejoin(change)
        if self._pattern is not None:
            matching = tuple(sorted(self._watch.own))
            if matching != self._topics and self._rejoin_reason is None:
                self._request_rejoin(reasons.MATCH_CHANGED)
            self._topics, self._match_stale = matching, False

    def _old_plan_answered(self, context: ForOldPlan, response: Any, now: float) -> None:
        planned = self._old_plan.answered(response, now)
        if planned is not None and context.identity is self._identity and self._leader:
            self._watch.old_plan_had(planned)

    def _leave_answered(self, context: ForLeave, _response: Any, _now: float) -> None:
        # Best effort, as in Java: an error here means that the session will time out instead.
        if context.closing:
            self._leaving = False

    # What time makes due.

    def _advance(self, now: float) -> None:
        if self._state in (State.LEFT, State.FAILED):
            return
        self._doubt_coordinator(now)
        if self._lookup.due(now) and (self._state is not State.IDLE or self._coordinator_wanted):
            self._lookup.in_flight = True
            self._send(lookup_request(self._settings), ForLookup(), anywhere=True)
        if self._state is State.IDLE:
            # Only those of a consumer that chose its partitions itself wait here.
            self._actions += self._commits.advance(self._standing, now)
            return
        if self._watch.due(now):
            self._watch.in_flight = True
            self._send(self._watch.request(), ForWatch(), anywhere=True)
        if self._state is State.STABLE and self._lookup.address is not None and self._old_plan.due(now):
            self._old_plan.asked(now, self._settings.request_timeout_s)
            self._send(old_plan_request(self._settings), ForOldPlan(self._identity))
        self._expire_poll_timer(now)
        self._actions += self._commits.advance(self._standing, now)
        self._beat(now)
        self._rebalance(now)

    @property
    def _joining_with_partitions(self) -> bool:
        """A cooperative member keeps reading while its JoinGroup waits. The broker takes heartbeats and commits of the
        old generation as long as others may still join (PreparingRebalance), so the session is renewed meanwhile."""
        return self._state is State.JOINING and bool(self._owned)

    def _doubt_coordinator(self, now: float) -> None:
        """A session without any good answer: the coordinator may hang, or be another one by now. The identity stays."""
        if self._state in HEARTBEATING and self._identity.valid and now >= self._heartbeat.session_deadline:
            self._give_up_coordinator(now)

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
        self._last_error = errors.PollTimedOut(
            f"group {self._settings.group_id!r}: poll was not called for {self._settings.max_poll_interval_s:g} s, "
            "so the membership was given up; handle fewer records per poll or raise max_poll_interval_ms"
        )

    def _beat(self, now: float) -> None:
        beats = self._state in HEARTBEATING or self._joining_with_partitions
        due = beats and self._identity.valid and self._lookup.address is not None
        if due and not self._heartbeat.in_flight and now >= self._heartbeat.next_at:
            self._heartbeat.sent(now)
            # An answer that comes after the session proves nothing any more.
            patience = min(self._settings.request_timeout_s, self._settings.session_timeout_s)
            context = ForHeartbeat(self._identity, now)
            self._send(heartbeat_request(self._settings, self._identity), context, timeout_s=patience)


_HANDLERS: Mapping[type, Callable[[ClassicMembership, Any, float], None]] = {
    Tick: ClassicMembership._on_tick,
    Subscribed: ClassicMembership._on_subscribed,
    Unsubscribed: ClassicMembership._on_unsubscribed,
    RebalanceRequested: ClassicMembership._on_rebalance_requested,
    LoginRefused: ClassicMembership._on_login_refused,
    CoordinatorDoubted: ClassicMembership._on_coordinator_doubted,
    CoordinatorWanted: ClassicMembership._on_coordinator_wanted,
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
    ForOldPlan: ClassicMembership._old_plan_answered,
    ForLeave: ClassicMembership._leave_answered,
}
