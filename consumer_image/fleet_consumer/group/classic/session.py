"""Session of a classic member: coordinator lookup, heartbeats, poll timer, effects of commits on the membership.

A cooperative member sends heartbeats with its old generation while its JoinGroup waits (Java sends none). Without these
heartbeats, `fence_deadline` would pass, and the user would get no more records of the kept partitions. Errors in the
responses to these heartbeats are ignored; only the JoinGroup response decides.

Decision: docs/decisions/0007-cooperative-members.md.
"""

from typing import Any

from fleet_consumer.group import errors, messages, reasons
from fleet_consumer.group.classic.state import MemberState
from fleet_consumer.group.classic.states import HEARTBEATING, State
from fleet_consumer.group.classification import Api, Verdict, error_for, rule_for
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.groups import GROUP_KEY_TYPE, FindCoordinatorRequest, HeartbeatRequest

# The coordinator.


def on_coordinator_wanted(member: MemberState, _event: messages.CoordinatorWanted, _now: float) -> None:
    member.coordinator_wanted = True


def on_coordinator_suspected(member: MemberState, event: messages.CoordinatorSuspected, now: float) -> None:
    if event.address == member.lookup.address:
        member.lookup.lost(now)


def on_login_refused(member: MemberState, event: messages.LoginRefused, _now: float) -> None:
    member.fail(event.error)


def on_lookup_response(member: MemberState, _context: messages.ForLookup, response: Any, now: float) -> None:
    entry = response.coordinators[0] if response.coordinators else None
    code = entry.error_code if entry is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE
    rule = rule_for(Api.FIND_COORDINATOR, code)
    if entry is not None and rule.verdict is Verdict.OK:
        member.lookup.found((entry.host, entry.port))
        member.heartbeat.restart_session(now)
        return
    member.lookup.retry_later(now)
    if rule.verdict is Verdict.FATAL:
        member.fail(error_for(Api.FIND_COORDINATOR, code, member.settings.group_id))
    else:
        member.last_error = errors.CoordinatorUnavailable(
            f"group {member.settings.group_id!r}: no coordinator yet: FindCoordinator returned {describe(code)}; "
            "retrying"
        )


def look_up(member: MemberState, now: float) -> None:
    """Send FindCoordinator when it is due. First disconnect from a coordinator that has not answered for a session
    timeout: it may hang, or another broker may be the coordinator now. The member keeps its member id and
    generation."""
    if member.state in HEARTBEATING and member.identity.valid and now >= member.heartbeat.session_deadline:
        member.give_up_coordinator(now)
    if member.lookup.due(now) and (member.state is not State.IDLE or member.coordinator_wanted):
        member.lookup.in_flight = True
        # All supported brokers know this form of the request (KIP-699).
        request = FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=(member.settings.group_id,))
        member.send(request, messages.ForLookup(), anywhere=True)


def leave_late(member: MemberState, now: float) -> None:
    """Look up the coordinator, then send the LeaveGroup of a member that was closed without a known coordinator."""
    look_up(member, now)
    reason = member.late_leave
    if reason is not None and member.lookup.address is not None:
        member.late_leave = None
        member.leave(reason, closing=True)


# Heartbeats and poll timer.


def on_heartbeat_response(member: MemberState, context: messages.ForHeartbeat, response: Any, now: float) -> None:
    code = response.error_code
    # After a close, the broker may not know the member any more, because it handled LeaveGroup before the heartbeat.
    if context.identity is not member.identity or member.state is State.LEFT:
        return
    match rule_for(Api.HEARTBEAT, code).verdict:
        case verdict if member.joining_with_partitions and verdict not in (Verdict.OK, Verdict.REJOIN):
            # The error may only mean that the broker has started the next generation; the JoinGroup response decides.
            member.heartbeat.retry_later(now)
        case (Verdict.OK | Verdict.REJOIN) as verdict:
            # OK means a stable group only for a synced member: the broker also returns OK in CompletingRebalance.
            synced = member.state in (State.STABLE, State.REVOKING)
            member.heartbeat.succeeded(context.sent_at, now, stable=synced and verdict is Verdict.OK)
            member.lookup.settled()
            member.last_error = None
            # In states other than STABLE, this member has already started the announced rebalance.
            if verdict is Verdict.REJOIN and member.state is State.STABLE:
                member.request_rejoin(reasons.GROUP_REBALANCING)
        case Verdict.COORDINATOR_LOST:
            member.lookup.lost(now)
            member.heartbeat.retry_later(now)
        case Verdict.RETRY:
            member.heartbeat.retry_later(now)
        case (Verdict.RESET_MEMBER | Verdict.RESET_GENERATION) as verdict:
            keep = verdict is Verdict.RESET_GENERATION
            member.reset(keep_member_id=keep, reason=reasons.answered("Heartbeat", describe(code)))
        case _:
            member.fail(error_for(Api.HEARTBEAT, code, member.settings.group_id))


def heartbeat(member: MemberState, now: float) -> None:
    beats = member.state in HEARTBEATING or member.joining_with_partitions
    due = beats and member.identity.valid and member.lookup.address is not None
    if due and not member.heartbeat.in_flight and now >= member.heartbeat.next_at:
        member.heartbeat.sent(now)
        request = HeartbeatRequest(
            group_id=member.settings.group_id,
            generation_id=member.identity.generation,
            member_id=member.identity.member_id,
            group_instance_id=member.settings.instance_id,
        )
        member.send(request, messages.ForHeartbeat(member.identity, now))


def expire_poll_timer(member: MemberState, now: float) -> None:
    """Give up the membership if the user has not polled for too long: a hung thread must not keep its partitions. The
    member joins again only after the user has polled.

    A dynamic member sends LeaveGroup. A static member does not (KIP-345): its partitions move when its session times
    out, unless the member restarts earlier.
    """
    late = now - member.polled_at > member.settings.max_poll_interval_s
    if not late or member.state not in HEARTBEATING or not member.identity.valid:
        return
    if member.settings.instance_id is None:
        member.leave(reasons.POLL_TIMEOUT, closing=False)
    member.reset(keep_member_id=False, reason=reasons.POLL_TIMEOUT)
    member.last_error = errors.PollTimedOut(
        f"group {member.settings.group_id!r}: poll was not called for {member.settings.max_poll_interval_s:g} s, "
        "so the membership was given up; handle fewer records per poll or raise max_poll_interval_ms"
    )


def on_leave_response(member: MemberState, context: messages.ForLeave, _response: Any, _now: float) -> None:
    """Finish closing, even if LeaveGroup failed: as in Java, the broker then removes the member at the session
    timeout."""
    if context.closing:
        member.leaving = False


# Commits.


def on_commit_requested(member: MemberState, event: messages.CommitRequested, now: float) -> None:
    event.commit.requested_at = now
    member.coordinator_wanted = member.coordinator_wanted or event.commit.alone
    if member.fatal is not None:
        member.actions.append(messages.FinishCommit(event.commit, member.fatal))
    else:
        member.actions += member.commits.start(event.commit, member.commit_context, now)


def on_commit_response(member: MemberState, context: messages.ForCommit, response: Any, now: float) -> None:
    """Handle an OffsetCommit response: finish or retry the commit, and apply its effect on the membership."""
    commit = context.commit
    if not member.commits.knows(commit):
        return
    actions, judgement = member.commits.answered(commit, response, member.commit_context, now)
    member.actions += actions
    current = commit.sent_as is member.identity and not member.joining_with_partitions
    match judgement.rule.verdict:
        case Verdict.COORDINATOR_LOST:
            member.lookup.lost(now)
        case Verdict.REJOIN if member.state is State.STABLE:
            member.request_rejoin(reasons.COMMIT_MET_REBALANCE)
        case (Verdict.RESET_MEMBER | Verdict.RESET_GENERATION) as verdict if current:
            keep = verdict is Verdict.RESET_GENERATION
            member.reset(keep_member_id=keep, reason=reasons.answered("OffsetCommit", describe(judgement.code)))
        case Verdict.FATAL if commit.sent_as is member.identity or judgement.code != ErrorCode.FENCED_INSTANCE_ID:
            member.fail(error_for(Api.OFFSET_COMMIT, judgement.code, member.settings.group_id))
        case _:
            """Only the commit is affected."""
