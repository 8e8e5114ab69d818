"""Rebalance of a classic member: give up partitions, join, plan, sync, apply the assignment.

Eager members give up all partitions before they join. Cooperative members (KIP-429) keep their partitions and give up
only the partitions that the new assignment revokes. They then join again, so that the leader can assign the revoked
partitions to other members. The module follows Java's `ConsumerCoordinator.onJoinPrepare` and `onJoinComplete`.
Assignors are notified of the assignment on the coordinator thread, because a notification on the user's thread might
come after the next JoinGroup was sent.

Decision: docs/decisions/0007-cooperative-members.md.
"""

from collections.abc import Mapping
from typing import Any

from fleet_consumer.assignors import Assignment, ClusterView
from fleet_consumer.group import errors, messages, reasons
from fleet_consumer.group.classic.planning import owned_counts, read_subscriptions, wanted_topics
from fleet_consumer.group.classic.state import MemberState
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.classification import Api, Verdict, error_for, rule_for
from fleet_consumer.group.messages import CallBackKind, RebalanceAttempt
from fleet_consumer.group.metadata import PartitionsByTopic, by_topic, flatten, topics_request, without
from fleet_consumer.group.watch import GONE_AFTER_S, UnconfirmedTopics, view_of
from fleet_consumer.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    decode_assignment,
    encode_subscription,
    partitions_by_topic,
)
from fleet_consumer.wire.errors import ErrorCode, MalformedMessage, describe
from fleet_consumer.wire.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

SUBSCRIPTION_VERSION = 3
"""Version of the subscriptions that this client writes. A reader that does not know this version reads the subscription
as the newest version that it knows."""

HASTY_REJOINS_MAX = 5
"""Maximum number of consecutive rejoins without a wait; further rejoins wait for a backoff. Java has no such limit, so
a Java member can flood a faulty broker with requests."""


# Before the rebalance: partitions to give up.


def advance(member: MemberState, now: float) -> None:
    """Start the requested rebalance if it may start now. Repeat the leader's Metadata request when that request is
    due."""
    attempt = member.attempt
    if attempt is not None:
        if attempt.metadata_retry_at is not None and now >= attempt.metadata_retry_at:
            attempt.metadata_retry_at = None
            _request_counts(member, attempt)
        return
    if member.rejoin_reason is None or not _may_rejoin(member, now):
        return
    kind, leaving = _to_give_back(member)
    if leaving:
        member.move(State.REVOKING)
        _give_back(member, kind, leaving)
    elif member.lookup.address is not None:
        _prepare_join(member, member.rejoin_reason)


def _may_rejoin(member: MemberState, now: float) -> bool:
    if member.state not in (State.UNJOINED, State.STABLE):
        return False
    if now < member.next_join_at or now - member.polled_at > member.settings.max_poll_interval_s:
        return False
    if member.state is State.STABLE and member.lookup.address is None:
        return False  # Without a known coordinator, keep the partitions and continue reading.
    if member.giving_back is not None:
        return False  # A JoinGroup sent now would report the partitions as free while the user still reads them.
    # The pattern must first be matched against metadata that is newer than the reason to join.
    return not member.match_stale


def _to_give_back(member: MemberState) -> tuple[CallBackKind, PartitionsByTopic]:
    """Return the user's callback that must run before the join, and the partitions to give up. If there are no
    partitions, no callback runs."""
    if not member.identity.valid:
        return CallBackKind.LOST, member.owned
    if not member.cooperative:
        return CallBackKind.REVOKED, member.owned
    return CallBackKind.REVOKED, {topic: parts for topic, parts in member.owned.items() if not member.wants(topic)}


def _give_back(member: MemberState, kind: CallBackKind, partitions: PartitionsByTopic) -> None:
    generation, subscription = member.identity.generation, member.subscription
    member.giving_back = messages.CallBack(kind, flatten(partitions), generation=generation, subscription=subscription)
    member.actions.append(member.giving_back)


def on_called_back(member: MemberState, event: messages.CalledBack, _now: float) -> None:
    """Continue after the user's callback; if a rebalance waited for the callback, the member can now join."""
    if event.callback is not member.giving_back:
        return
    member.giving_back = None
    if member.state is State.REVOKING:
        member.owned = without(member.owned, by_topic(event.callback.partitions))
        member.move(State.UNJOINED)


# Joining.


def _prepare_join(member: MemberState, reason: str) -> None:
    """Start an attempt: request the assignors' user data for its JoinGroup. The request is an action, because assignors
    may be user code, which the machine does not call itself."""
    attempt = member.attempt = RebalanceAttempt(reason, member.identity, member.topics)
    # Metadata must be confirmed soon: the other members wait for the plan for at most one rebalance timeout.
    attempt.unconfirmed = UnconfirmedTopics(min(GONE_AFTER_S, member.settings.rebalance_timeout_s / 3))
    member.actions.append(messages.CollectUserData(attempt, tuple(member.assignors.values())))


def on_user_data(member: MemberState, event: messages.UserDataCollected, now: float) -> None:
    """Send the JoinGroup. If the member changed while the user data was collected, `advance` starts a new attempt."""
    attempt = event.attempt
    if not _is_preparing(member, attempt):
        return
    member.attempt = None
    changed = attempt.identity is not member.identity or attempt.topics != member.topics
    if changed or member.lookup.address is None or not _may_rejoin(member, now) or _to_give_back(member)[1]:
        return
    member.move(State.JOINING)
    member.attempt, member.rejoin_reason = attempt, None
    member.heartbeat.in_flight = False
    member.send(_join_request(member, attempt, event.user_data), messages.ForJoin(attempt))


def _join_request(
    member: MemberState, attempt: RebalanceAttempt, user_data: Mapping[str, bytes | None]
) -> JoinGroupRequest:
    """Build the JoinGroup with one encoded subscription per assignor; `user_data` has the preferred assignor first."""
    settings, owned = member.settings, member.owned
    partitions = tuple(ConsumerProtocolTopicPartitions(topic=topic, partitions=owned[topic]) for topic in sorted(owned))
    subscriptions = {
        name: ConsumerProtocolSubscription(
            topics=attempt.topics,
            user_data=data,
            owned_partitions=partitions,
            generation_id=attempt.identity.generation,
            rack_id=settings.rack,
        )
        for name, data in user_data.items()
    }
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=round(settings.session_timeout_s * 1000),
        rebalance_timeout_ms=round(settings.rebalance_timeout_s * 1000),
        member_id=attempt.identity.member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(
            JoinGroupRequestProtocol(name=name, metadata=encode_subscription(each, SUBSCRIPTION_VERSION))
            for name, each in subscriptions.items()
        ),
        reason=attempt.reason[: reasons.LENGTH_MAX],
    )


def on_user_data_failed(member: MemberState, event: messages.UserDataFailed, now: float) -> None:
    """Report the assignor's error and retry the join later; until then the membership is unchanged."""
    if _is_preparing(member, event.attempt):
        member.attempt = None
        member.last_error = event.error
        member.actions.append(messages.MembershipReport(event.error))
        member.next_join_at = now + member.settings.retry_backoff_max_s


def _is_preparing(member: MemberState, attempt: RebalanceAttempt) -> bool:
    """True if `attempt` is the current attempt and waits for user data; results for an earlier attempt are ignored."""
    return attempt is member.attempt and member.state in (State.UNJOINED, State.STABLE)


def on_join_response(member: MemberState, context: messages.ForJoin, response: JoinGroupResponse, now: float) -> None:
    attempt, code = context.attempt, response.error_code
    if _is_stale(member, Api.JOIN_GROUP, context, code):
        return
    match rule_for(Api.JOIN_GROUP, code).verdict:
        case Verdict.OK:
            _joined(member, attempt, response, now)
        case Verdict.ADOPT_MEMBER_ID:
            member.identity = messages.MemberIdentity(member_id=response.member_id)
            member.end_attempt(reasons.MEMBER_ID_REQUIRED, _hastily(member, now))
        case Verdict.REJOIN:
            member.end_attempt(attempt.reason, _hastily(member, now))
        case Verdict.RESET_MEMBER:
            member.reset(keep_member_id=False, reason=reasons.answered("JoinGroup", describe(code)))
            member.next_join_at = _hastily(member, now)
        case (Verdict.RETRY | Verdict.COORDINATOR_LOST) as verdict:
            if verdict is Verdict.COORDINATOR_LOST:
                member.lookup.lost(now)
            member.last_error = errors.CoordinatorUnavailable(
                f"group {member.settings.group_id!r}: JoinGroup returned {describe(code)}; retrying"
            )
            member.end_attempt(reasons.rebalance_failed(describe(code)), now + member.join_backoff.next())
        case _:
            member.fail(error_for(Api.JOIN_GROUP, code, member.settings.group_id))


def _joined(member: MemberState, attempt: RebalanceAttempt, response: JoinGroupResponse, now: float) -> None:
    assignor = member.assignors.get(response.protocol_name or "")
    if response.protocol_type not in (None, PROTOCOL_TYPE) or assignor is None:
        _fail_inconsistent(member, response.protocol_type, response.protocol_name)
        return
    member.identity = attempt.identity = messages.MemberIdentity(
        response.generation_id, response.member_id, response.protocol_name
    )
    member.heartbeat.begin_rebalance(now)
    member.last_error = None
    attempt.assignor = assignor
    attempt.leader = response.leader == response.member_id
    if attempt.leader:
        attempt.subscriptions = read_subscriptions(response.members)
    if attempt.leader and not response.skip_assignment:
        member.move(State.PLANNING)
        _request_counts(member, attempt)
    else:
        # A restarted static leader keeps the old plan (KIP-814), but watches the topics like any other leader.
        _sync(member, attempt, (), now)


# Planning, by the leader.


def _request_counts(member: MemberState, attempt: RebalanceAttempt) -> None:
    member.send(topics_request(wanted_topics(attempt.subscriptions)), messages.ForPlan(attempt), anywhere=True)


def on_plan_metadata(member: MemberState, context: messages.ForPlan, response: Any, now: float) -> None:
    """Run the assignor with the partition counts of a Metadata response, once they are confirmed."""
    attempt = context.attempt
    if attempt is not member.attempt or attempt.assignor is None:
        return
    topics, owned = wanted_topics(attempt.subscriptions), owned_counts(attempt.subscriptions)
    view = view_of(response, topics, member.watch.counts, owned)
    if attempt.unconfirmed.remaining(view, now):
        # A plan without the unconfirmed topics would revoke their partitions from all members.
        attempt.metadata_retry_at = now + member.join_backoff.next()
        return
    member.report_denied(view.denied)
    attempt.counts = dict(view.counts)
    member.watch.racks.learn(response)
    if any(subscription.rack is not None for subscription in attempt.subscriptions.values()):
        attempt.racks = member.watch.racks.of_topics(response, attempt.counts.keys())
    cluster = ClusterView(partitions=attempt.counts, racks=attempt.racks)
    run = messages.RunAssignor(attempt, attempt.assignor, cluster, attempt.subscriptions, member.cooperative)
    member.actions.append(run)


def on_planned(member: MemberState, event: messages.Planned, now: float) -> None:
    if event.attempt is member.attempt and member.state is State.PLANNING:
        _sync(member, event.attempt, event.assignments, now)


def on_plan_failed(member: MemberState, event: messages.PlanFailed, now: float) -> None:
    if event.attempt is member.attempt and member.state is State.PLANNING:
        member.last_error = event.error
        member.actions.append(messages.MembershipReport(event.error))
        member.end_attempt(reasons.rebalance_failed(event.error), now + member.settings.retry_backoff_max_s)


# Syncing.


def _sync(
    member: MemberState, attempt: RebalanceAttempt, assignments: tuple[SyncGroupRequestAssignment, ...], now: float
) -> None:
    member.move(State.SYNCING)
    attempt.sync_sent_at = now
    request = SyncGroupRequest(
        group_id=member.settings.group_id,
        generation_id=attempt.identity.generation,
        member_id=attempt.identity.member_id,
        group_instance_id=member.settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=attempt.identity.protocol,
        assignments=assignments,
    )
    member.send(request, messages.ForSync(attempt))


def on_sync_response(member: MemberState, context: messages.ForSync, response: SyncGroupResponse, now: float) -> None:
    attempt, code = context.attempt, response.error_code
    if _is_stale(member, Api.SYNC_GROUP, context, code):
        return
    match rule_for(Api.SYNC_GROUP, code).verdict:
        case Verdict.OK:
            _synced(member, attempt, response, now)
        case Verdict.REJOIN:
            member.end_attempt(reasons.GROUP_REBALANCING, _hastily(member, now))
        case (Verdict.RESET_MEMBER | Verdict.RESET_GENERATION) as verdict:
            keep = verdict is Verdict.RESET_GENERATION
            member.reset(keep_member_id=keep, reason=reasons.answered("SyncGroup", describe(code)))
            member.next_join_at = _hastily(member, now)
        case Verdict.COORDINATOR_LOST:
            member.lookup.lost(now)
            member.end_attempt(reasons.rebalance_failed(describe(code)), now + member.join_backoff.next())
        case _:
            member.fail(error_for(Api.SYNC_GROUP, code, member.settings.group_id))


def _synced(member: MemberState, attempt: RebalanceAttempt, response: SyncGroupResponse, now: float) -> None:
    if response.protocol_name not in (None, attempt.identity.protocol):
        _fail_inconsistent(member, response.protocol_type, response.protocol_name)
        return
    try:
        received = decode_assignment(response.assignment)
    except MalformedMessage as cause:
        seen = f"group {member.settings.group_id!r}: the assignment from the leader cannot be read: {cause}"
        member.fail(errors.UnexpectedAnswer(f"{seen}; check the client that leads the group"))
        return
    listed = partitions_by_topic(received.assigned_partitions)
    assigned = {topic: numbers for topic, numbers in listed.items() if numbers}
    if not all(topic in attempt.topics or member.wants(topic) for topic in assigned):
        member.end_attempt(reasons.ASSIGNMENT_MISMATCH, now + member.join_backoff.next())
        return
    member.move(State.STABLE)
    member.attempt = None
    member.leader = attempt.leader
    member.last_reason = attempt.reason
    member.record_rejoin()
    member.last_error = None
    member.hasty_rejoins = 0
    member.join_backoff.reset()
    member.lookup.settled()
    member.heartbeat.start(attempt.sync_sent_at, now)
    _watch_as_leader(member, attempt, now)
    _take_assignment(member, attempt, assigned, received.user_data)


# After the rebalance: partitions gained and lost.


def _take_assignment(
    member: MemberState, attempt: RebalanceAttempt, assigned: PartitionsByTopic, user_data: bytes | None
) -> None:
    """Revoke, notify the assignor, then assign, in Java's order. For an eager member, all partitions are new."""
    before, member.owned = member.owned, assigned
    revoked = without(before, assigned)
    if revoked:
        _give_back(member, CallBackKind.REVOKED, revoked)
        member.request_rejoin(reasons.TO_REVOKE)
    generation = member.identity.generation
    if attempt.assignor is not None:
        member.actions.append(messages.NotifyAssignor(attempt.assignor, Assignment(assigned, user_data), generation))
    added = flatten(without(assigned, before))
    appeared = member.watch.initial_partitions.appeared(added)
    member.actions.append(messages.CallBack(CallBackKind.ASSIGNED, added, generation, appeared, member.subscription))


def _watch_as_leader(member: MemberState, attempt: RebalanceAttempt, now: float) -> None:
    member.old_plan.wanted = False
    if not attempt.leader:
        member.watch.follow()
    elif attempt.counts is not None:
        member.watch.lead(wanted_topics(attempt.subscriptions), attempt.counts, attempt.racks, now)
    else:
        member.watch.lead_old_plan(wanted_topics(attempt.subscriptions))
        member.old_plan.want()


def _hastily(member: MemberState, now: float) -> float:
    """Return the time of the next rejoin: now or, after more than `HASTY_REJOINS_MAX` consecutive rejoins without a
    wait, the end of a backoff."""
    member.hasty_rejoins += 1
    return now if member.hasty_rejoins <= HASTY_REJOINS_MAX else now + member.join_backoff.next()


def is_awaited(member: MemberState, context: messages.ForJoin | messages.ForSync) -> bool:
    """True if the request belongs to the current attempt and its outcome has not been handled yet."""
    state = State.JOINING if isinstance(context, messages.ForJoin) else State.SYNCING
    return context.attempt is member.attempt and member.state is state


def _is_stale(member: MemberState, api: Api, context: messages.ForJoin | messages.ForSync, code: int) -> bool:
    """True for a response that is no longer awaited. FENCED_INSTANCE_ID ends the member even in such a response."""
    if is_awaited(member, context):
        return False
    if code == ErrorCode.FENCED_INSTANCE_ID:
        member.fail(error_for(api, code, member.settings.group_id))
    return True


def _fail_inconsistent(member: MemberState, protocol_type: str | None, protocol: str | None) -> None:
    text = (
        f"group {member.settings.group_id!r} uses protocol {protocol!r} of type {protocol_type!r}, "
        f"but this member offers {', '.join(member.assignors)} of type {PROTOCOL_TYPE!r}; "
        "list an assignor that all members have, or choose another group id"
    )
    member.fail(errors.InconsistentProtocol(text))
