"""The classic member as a `GroupMachine`: dispatches events to functions that change one `MemberState`.

It follows Java's `AbstractCoordinator` and `ConsumerCoordinator`, with one difference. Java joins on the user's thread
inside `poll`; this machine joins as soon as the protocol allows. It waits for the user's thread in two cases only. In
state REVOKING, it waits until the user's thread has given back the partitions of the old generation. After the poll
timer has expired, it waits until the user calls `poll` again.

This module also handles the user's subscription calls, and changes of the subscribed topics.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fleet_consumer.assignors import Assignor
from fleet_consumer.group import errors, messages, reasons
from fleet_consumer.group.classic import rebalance, session
from fleet_consumer.group.classic.state import MemberState, new_member
from fleet_consumer.group.classic.states import State, Trigger
from fleet_consumer.group.membership import GroupSettings, Membership
from fleet_consumer.group.timing import NEVER, SLOW_RETRY_S
from fleet_consumer.wire.groups import DescribeGroupsRequest


def on_tick(member: MemberState, event: messages.Tick, _now: float) -> None:
    member.polled_at = max(member.polled_at, event.polled_at)


def on_subscribed(member: MemberState, event: messages.Subscribed, now: float) -> None:
    """Apply a subscription. An unchanged subscription has no effect."""
    member.polled_at = now
    topics = tuple(sorted(set(event.topics)))
    if member.state in (State.LEFT, State.FAILED):
        return
    if member.state is not State.IDLE and (topics, event.pattern) == (member.named, member.pattern):
        return
    member.named, member.pattern = topics, event.pattern
    if event.pattern is None:
        member.topics, member.match_stale = topics, False
    member.watch.subscribe(topics, event.pattern)
    member.denied = frozenset()
    if member.state is State.IDLE:
        member.move(State.UNJOINED)
        member.request_rejoin(reasons.SUBSCRIBED)
    else:
        member.request_rejoin(reasons.SUBSCRIPTION_CHANGED)


def on_unsubscribed(member: MemberState, _event: messages.Unsubscribed, _now: float) -> None:
    """Leave the group and reset all state. Callbacks that have not reached the user yet are ignored."""
    member.subscription += 1
    if member.state in (State.IDLE, State.LEFT, State.FAILED):
        return
    if member.settings.instance_id is None:
        member.leave(reasons.UNSUBSCRIBED, closing=False)
    member.named, member.topics, member.pattern, member.match_stale = (), (), None, False
    member.identity, member.attempt = messages.MemberIdentity(), None
    member.rejoin_reason = member.first_reason = None
    member.owned, member.giving_back, member.leader = {}, None, False
    member.heartbeat.stop()
    member.watch.subscribe(())
    member.watch.follow()
    member.old_plan.wanted = False
    member.last_error = None
    member.move(State.IDLE)


def on_rebalance_requested(member: MemberState, event: messages.RebalanceRequested, _now: float) -> None:
    if member.state not in (State.IDLE, State.LEFT, State.FAILED):
        member.request_rejoin(event.reason or reasons.ENFORCED)


def on_close(member: MemberState, event: messages.CloseRequested, _now: float) -> None:
    if member.state is State.LEFT:
        return
    member.actions += member.commits.abandon(
        errors.ConsumerClosed(f"group {member.settings.group_id!r}: closed before the commit was confirmed")
    )
    if event.leave and member.state not in (State.IDLE, State.FAILED):
        member.leave(reasons.CLOSING, closing=True)
    member.attempt = None
    member.owned = {}
    member.heartbeat.stop()
    member.move(State.LEFT)


def on_watch_response(member: MemberState, _context: messages.ForWatch, response: Any, now: float) -> None:
    """Handle a Metadata response for `MetadataWatch`. Request a rejoin if this leader's plan is outdated, or if the
    pattern matches other topics than before."""
    change = member.watch.answered(response, now)
    member.denied &= member.watch.denied
    member.report_denied(member.watch.denied)
    if change is not None and member.leader and member.state is State.STABLE:
        member.request_rejoin(change)
    if member.pattern is not None:
        matching = tuple(sorted(member.watch.own))
        if matching != member.topics and member.rejoin_reason is None:
            member.request_rejoin(reasons.MATCH_CHANGED)
        member.topics, member.match_stale = matching, False


def on_old_plan_response(member: MemberState, context: messages.ForOldPlan, response: Any, now: float) -> None:
    """Handle a DescribeGroups response. It shows the plan of the group that this restarted static leader keeps."""
    planned = member.old_plan.answered(response, now)
    if planned is not None and context.identity is member.identity and member.leader:
        member.watch.old_plan_had(planned)


def watch_topics(member: MemberState, now: float) -> None:
    if member.watch.due(now):
        member.watch.in_flight = True
        member.send(member.watch.request(), messages.ForWatch(), anywhere=True)
    if member.state is State.STABLE and member.lookup.address is not None and member.old_plan.due(now):
        member.old_plan.asked(now, member.settings.request_timeout_s)
        member.send(DescribeGroupsRequest(groups=(member.settings.group_id,)), messages.ForOldPlan(member.identity))


IDLE_TICK_S = 1.0
"""Seconds until the next Tick if no timer is set. After the poll timer has expired, the next call of `poll` is noticed
within this time."""


class ClassicMachine:
    """One member of one group under the classic protocol. `jitter` returns a random factor around 1, by which each
    backoff is multiplied."""

    def __init__(
        self, settings: GroupSettings, assignors: tuple[Assignor, ...], jitter: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._member = new_member(settings, assignors, jitter)

    @property
    def state(self) -> State:
        return self._member.state

    @property
    def closed(self) -> bool:
        return self._member.state is State.LEFT and not self._member.leaving

    @property
    def fatal(self) -> Exception | None:
        return self._member.fatal

    @property
    def commits_pending(self) -> bool:
        return self._member.commits.pending

    @property
    def fence_deadline(self) -> float:
        return self._member.heartbeat.fence_deadline if self._member.identity.valid else NEVER

    @property
    def coordinator(self) -> messages.Address | None:
        return self._member.lookup.address

    def next_deadline(self, now: float) -> float:
        """Return the time of the next Tick: the next timer, or `IDLE_TICK_S` from now if no timer is in the future.
        Timers in the past are ignored: the last `handle` did not act on them, because they wait for some other
        event."""
        member = self._member
        times = [member.polled_at + member.settings.max_poll_interval_s, member.next_join_at, member.lookup.next_at]
        times += [
            member.heartbeat.next_at,
            member.heartbeat.session_deadline,
            member.watch.next_at,
            member.commits.next_at,
        ]
        if member.attempt is not None and member.attempt.metadata_retry_at is not None:
            times.append(member.attempt.metadata_retry_at)
        return min((at for at in times if at > now), default=now + IDLE_TICK_S)

    def snapshot(self) -> Membership:
        member = self._member
        return Membership(
            group_id=member.settings.group_id,
            instance_id=member.settings.instance_id,
            member_id=member.identity.member_id,
            generation=member.identity.generation,
            leader=member.leader,
            protocol=member.identity.protocol,
            state=member.state.word,
            coordinator=member.lookup.address,
            assignment=member.owned,
            last_heartbeat_at=member.heartbeat.last_good_sent_at,
            last_rebalance_reason=member.last_reason,
            rejoins=member.rejoins if member.rejoining is None else (*member.rejoins, member.rejoining),
            revoking=member.state is State.REVOKING,
            error=member.fatal or member.last_error or member.watch.error,
        )

    def handle(self, event: messages.Event, now: float) -> list[messages.Action]:
        """Handle one event, then everything that is due. Returns the actions to carry out, in order."""
        member = self._member
        match event:
            case messages.Answered(context, response):
                member.trigger, on_response = _RESPONSES[type(context)]
                on_response(member, context, response, now)
            case messages.Unanswered(context):
                member.trigger = _LOST.get(type(context), Trigger.OTHER)
                _on_unanswered(member, event, now)
            case _:
                member.trigger, on_event = _EVENTS[type(event)]
                on_event(member, event, now)
        member.trigger = Trigger.DUE
        _advance(member, now)
        actions, member.actions = member.actions, []
        return actions


def _advance(member: MemberState, now: float) -> None:
    if member.late_leave is not None:
        session.leave_late(member, now)
    if member.state in (State.LEFT, State.FAILED):
        return
    session.look_up(member, now)
    if member.state is State.IDLE:
        # Without a subscription, only commits of a consumer with manually assigned partitions can be waiting.
        member.actions += member.commits.advance(member.commit_context, now)
        return
    watch_topics(member, now)
    session.expire_poll_timer(member, now)
    member.actions += member.commits.advance(member.commit_context, now)
    session.heartbeat(member, now)
    rebalance.advance(member, now)


def _on_unanswered(member: MemberState, event: messages.Unanswered, now: float) -> None:
    context, wait = event.context, SLOW_RETRY_S if event.slow else 0.0
    match context:
        case messages.ForLookup():
            member.last_error = event.error
            member.lookup.retry_later(now, wait)
        case messages.ForWatch():
            member.watch.unanswered(now, wait)
        case messages.ForOldPlan():
            member.old_plan.retry_later(now)
        case messages.ForPlan(attempt) if attempt is member.attempt:
            member.last_error = event.error
            attempt.metadata_retry_at = now + max(member.join_backoff.next(), wait)
        case messages.ForJoin(attempt) | messages.ForSync(attempt) if rebalance.is_awaited(member, context):
            member.last_error = event.error
            member.lookup.lost(now)
            retry_at = now + max(member.join_backoff.next(), wait)
            member.end_attempt(reasons.rebalance_failed(event.error), retry_at)
        case messages.ForHeartbeat(identity, sent_at) if (
            identity is member.identity and sent_at == member.heartbeat.last_sent_at
        ):
            member.last_error = event.error
            member.give_up_coordinator(now)
            member.heartbeat.retry_later(now)
        case messages.ForCommit(commit) if member.commits.knows(commit):
            member.lookup.lost(now)
            member.actions += member.commits.unanswered(commit, event.error, now)
        case messages.ForLeave(closing=True):
            member.leaving = False
        case _:
            """A response that is no longer awaited changes nothing."""


_EVENTS: Mapping[type, tuple[Trigger, Callable[[MemberState, Any, float], None]]] = {
    messages.Tick: (Trigger.OTHER, on_tick),
    messages.Subscribed: (Trigger.SUBSCRIBED, on_subscribed),
    messages.Unsubscribed: (Trigger.UNSUBSCRIBED, on_unsubscribed),
    messages.RebalanceRequested: (Trigger.OTHER, on_rebalance_requested),
    messages.CloseRequested: (Trigger.CLOSED, on_close),
    messages.LoginRefused: (Trigger.LOGIN_REFUSED, session.on_login_refused),
    messages.CoordinatorSuspected: (Trigger.OTHER, session.on_coordinator_suspected),
    messages.CoordinatorWanted: (Trigger.OTHER, session.on_coordinator_wanted),
    messages.CommitRequested: (Trigger.OTHER, session.on_commit_requested),
    messages.CalledBack: (Trigger.CALLED_BACK, rebalance.on_called_back),
    messages.UserDataCollected: (Trigger.USER_DATA, rebalance.on_user_data),
    messages.UserDataFailed: (Trigger.OTHER, rebalance.on_user_data_failed),
    messages.Planned: (Trigger.PLANNED, rebalance.on_planned),
    messages.PlanFailed: (Trigger.PLAN_FAILED, rebalance.on_plan_failed),
}

_RESPONSES: Mapping[type, tuple[Trigger, Callable[[MemberState, Any, Any, float], None]]] = {
    messages.ForLookup: (Trigger.LOOKUP, session.on_lookup_response),
    messages.ForHeartbeat: (Trigger.HEARTBEAT, session.on_heartbeat_response),
    messages.ForCommit: (Trigger.COMMIT, session.on_commit_response),
    messages.ForLeave: (Trigger.OTHER, session.on_leave_response),
    messages.ForJoin: (Trigger.JOIN, rebalance.on_join_response),
    messages.ForPlan: (Trigger.OTHER, rebalance.on_plan_metadata),
    messages.ForSync: (Trigger.SYNC, rebalance.on_sync_response),
    messages.ForWatch: (Trigger.OTHER, on_watch_response),
    messages.ForOldPlan: (Trigger.OTHER, on_old_plan_response),
}
"""The trigger and handler of each response, keyed by the context of its request."""

_LOST: Mapping[type, Trigger] = {messages.ForJoin: Trigger.JOIN_LOST, messages.ForSync: Trigger.SYNC_LOST}
"""Triggers for requests that got no response, keyed by the context of the request. For all other contexts, the trigger
is OTHER."""
