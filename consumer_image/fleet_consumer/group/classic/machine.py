"""The classic member as a `GroupMachine`: dispatches events to the rules over one `MemberState`.

It follows Java's `AbstractCoordinator` and `ConsumerCoordinator` with one difference in form: Java joins on the
user's thread inside `poll`, this machine joins whenever it may, and waits for the user's thread only where it must:
before a rebalance, until partitions of the old generation were given back (state REVOKING), and after the poll
timer expired, until the user polls again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleet_consumer.assignors import Assignor
from fleet_consumer.group import reasons
from fleet_consumer.group.classic import rebalance, session, subscription
from fleet_consumer.group.classic.state import MemberState, new_member
from fleet_consumer.group.classic.states import State, Trigger
from fleet_consumer.group.membership import Membership
from fleet_consumer.group.messages import (
    Action,
    Address,
    Answered,
    CalledBack,
    CloseRequested,
    CommitRequested,
    CoordinatorDoubted,
    CoordinatorWanted,
    Event,
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
    PlanFailed,
    Planned,
    RebalanceRequested,
    Subscribed,
    Tick,
    Unanswered,
    Unsubscribed,
    UserDataCollected,
    UserDataFailed,
)
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.group.timing import NEVER, SLOW_RETRY_S


class ClassicMachine:
    """One member of one group under the classic protocol. `jitter` returns factors around 1 for backoffs."""

    def __init__(
        self, settings: GroupSettings, assignors: tuple[Assignor, ...], jitter: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._member = new_member(settings, assignors, jitter)

    @property
    def state(self) -> State:
        """The state of the protocol."""
        return self._member.state

    @property
    def closed(self) -> bool:
        """True once closing is complete: LeaveGroup was answered, or not sent."""
        return self._member.state is State.LEFT and not self._member.leaving

    @property
    def fatal(self) -> Exception | None:
        """The error that ended the member, else None."""
        return self._member.fatal

    @property
    def commits_pending(self) -> bool:
        """True while a commit is unfinished."""
        return self._member.commits.pending

    @property
    def fence_deadline(self) -> float:
        """End of certain ownership of the partitions."""
        return self._member.heartbeat.fence_deadline if self._member.identity.valid else NEVER

    @property
    def coordinator(self) -> Address | None:
        """The coordinator's address; None while it is unknown."""
        return self._member.lookup.address

    def next_deadline(self, now: float) -> float:
        """The time after `now` at which a Tick is due."""
        return self._member.next_deadline(now)

    def snapshot(self) -> Membership:
        """The membership as other threads may see it."""
        return self._member.snapshot()

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; return actions to carry out in order. First its own effects, then what is due by time."""
        member = self._member
        match event:
            case Answered(context, response):
                member.trigger = _CAUSES.get(type(context), Trigger.OTHER)
                _RESPONSES[type(context)](member, context, response, now)
            case Unanswered(context):
                member.trigger = _LOST.get(type(context), Trigger.OTHER)
                _on_unanswered(member, event, now)
            case _:
                member.trigger = _CAUSES.get(type(event), Trigger.OTHER)
                _EVENTS[type(event)](member, event, now)
        member.trigger = Trigger.DUE
        _advance(member, now)
        actions, member.actions = member.actions, []
        return actions


def _advance(member: MemberState, now: float) -> None:
    """Do what is due by time."""
    if member.state in (State.LEFT, State.FAILED):
        return
    session.look_up(member, now)
    if member.state is State.IDLE:
        # Only commits of a consumer that assigned its partitions itself wait here.
        member.actions += member.commits.advance(member.standing, now)
        return
    subscription.watch_topics(member, now)
    session.expire_poll_timer(member, now)
    member.actions += member.commits.advance(member.standing, now)
    session.heartbeat(member, now)
    rebalance.advance(member, now)


def _on_unanswered(member: MemberState, event: Unanswered, now: float) -> None:
    context, wait = event.context, SLOW_RETRY_S if event.slow else 0.0
    match context:
        case ForLookup():
            member.last_error = event.error
            member.lookup.failed(now, wait)
        case ForWatch():
            member.watch.unanswered(now, wait)
        case ForOldPlan():
            member.old_plan.failed(now)
        case ForPlan(attempt) if attempt is member.attempt:
            member.last_error = event.error
            attempt.metadata_retry_at = now + max(member.join_backoff.next(), wait)
        case ForJoin(attempt) | ForSync(attempt) if attempt is member.attempt:
            member.last_error = event.error
            member.lookup.lost(now)
            retry_at = now + max(member.join_backoff.next(), wait)
            member.end_attempt(reasons.rebalance_failed(event.error), retry_at)
        case ForHeartbeat(identity, sent_at) if (
            identity is member.identity and sent_at == member.heartbeat.last_sent_at
        ):
            member.last_error = event.error
            member.give_up_coordinator(now)
            member.heartbeat.failed(now)
        case ForCommit(commit) if member.commits.knows(commit):
            member.lookup.lost(now)
            member.actions += member.commits.unanswered(commit, event.error, now)
        case ForLeave(closing=True):
            member.leaving = False
        case _:
            """A response that is not awaited any more changes nothing."""


_EVENTS: Mapping[type, Callable[[MemberState, Any, float], None]] = {
    Tick: subscription.on_tick,
    Subscribed: subscription.on_subscribed,
    Unsubscribed: subscription.on_unsubscribed,
    RebalanceRequested: subscription.on_rebalance_requested,
    CloseRequested: subscription.on_close,
    LoginRefused: session.on_login_refused,
    CoordinatorDoubted: session.on_coordinator_doubted,
    CoordinatorWanted: session.on_coordinator_wanted,
    CommitRequested: session.on_commit_requested,
    CalledBack: rebalance.on_called_back,
    UserDataCollected: rebalance.on_user_data,
    UserDataFailed: rebalance.on_user_data_failed,
    Planned: rebalance.on_planned,
    PlanFailed: rebalance.on_plan_failed,
}

_RESPONSES: Mapping[type, Callable[[MemberState, Any, Any, float], None]] = {
    ForLookup: session.on_lookup_response,
    ForHeartbeat: session.on_heartbeat_response,
    ForCommit: session.on_commit_response,
    ForLeave: session.on_leave_response,
    ForJoin: rebalance.on_join_response,
    ForPlan: rebalance.on_plan_metadata,
    ForSync: rebalance.on_sync_response,
    ForWatch: subscription.on_watch_response,
    ForOldPlan: subscription.on_old_plan_response,
}

_CAUSES: Mapping[type, Trigger] = {
    Subscribed: Trigger.SUBSCRIBED,
    Unsubscribed: Trigger.UNSUBSCRIBED,
    CloseRequested: Trigger.CLOSED,
    LoginRefused: Trigger.LOGIN_REFUSED,
    CalledBack: Trigger.CALLED_BACK,
    UserDataCollected: Trigger.USER_DATA,
    Planned: Trigger.PLANNED,
    PlanFailed: Trigger.PLAN_FAILED,
    ForLookup: Trigger.LOOKUP,
    ForJoin: Trigger.JOIN,
    ForSync: Trigger.SYNC,
    ForHeartbeat: Trigger.HEARTBEAT,
    ForCommit: Trigger.COMMIT,
}
"""Triggers of events, and of responses by the context of the request."""

_LOST: Mapping[type, Trigger] = {ForJoin: Trigger.JOIN_LOST, ForSync: Trigger.SYNC_LOST}
"""Triggers of requests without a response."""
