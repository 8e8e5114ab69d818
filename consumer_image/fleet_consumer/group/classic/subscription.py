"""Subscription of a classic member: the user's calls, and the topics that they lead to."""

from __future__ import annotations

from typing import Any

from fleet_consumer.group import errors, messages, reasons
from fleet_consumer.group.classic.state import MemberState
from fleet_consumer.group.classic.states import State
from fleet_consumer.wire.groups import DescribeGroupsRequest


def on_tick(member: MemberState, event: messages.Tick, _now: float) -> None:
    """Note the time of the user's last poll."""
    member.polled_at = max(member.polled_at, event.polled_at)


def on_subscribed(member: MemberState, event: messages.Subscribed, now: float) -> None:
    """Take a subscription; the same one again changes nothing."""
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
    """Leave the group and forget everything. Callbacks in flight to the user are void."""
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
    """Leave the group, if so wished, and end."""
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
    """Take a Metadata response of the watch: topics that match the pattern, changes that need a new plan."""
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
    """Take a DescribeGroups response: the plan that this restarted static leader leads by."""
    planned = member.old_plan.answered(response, now)
    if planned is not None and context.identity is member.identity and member.leader:
        member.watch.old_plan_had(planned)


def watch_topics(member: MemberState, now: float) -> None:
    """Send the requests about topics that are due."""
    if member.watch.due(now):
        member.watch.in_flight = True
        member.send(member.watch.request(), messages.ForWatch(), anywhere=True)
    if member.state is State.STABLE and member.lookup.address is not None and member.old_plan.due(now):
        member.old_plan.asked(now, member.settings.request_timeout_s)
        member.send(DescribeGroupsRequest(groups=(member.settings.group_id,)), messages.ForOldPlan(member.identity))
