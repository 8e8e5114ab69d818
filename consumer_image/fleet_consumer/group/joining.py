"""How a classic member goes through a rebalance: giving back, joining, planning, taking what it was given.

Eager members give everything back before they join. Cooperative ones (KIP-429) keep what they own, give back only
what the new assignment takes from them, and then join once more, so that the leader can give it to somebody else.
After Java's `ConsumerCoordinator.onJoinPrepare` and `onJoinComplete`. Nothing here knows a thread or the time of day.
"""

from __future__ import annotations

from typing import Any

from fleet_consumer.assignors import Assignment, ClusterView
from fleet_consumer.group import errors, reasons
from fleet_consumer.group.classification import Api, Verdict, error_for, rule_for
from fleet_consumer.group.core import MemberCore
from fleet_consumer.group.messages import (
    CallBack,
    CallBackKind,
    CalledBack,
    ForJoin,
    ForPlan,
    ForSync,
    MemberIdentity,
    MembershipReport,
    PlanFailed,
    Planned,
    RebalanceAttempt,
    RunAssignor,
    flatten,
)
from fleet_consumer.group.partitions import PartitionsByTopic, by_topic, without
from fleet_consumer.group.planning import owned_counts, read_subscriptions, wanted_topics
from fleet_consumer.group.sighting import sight
from fleet_consumer.group.states import State
from fleet_consumer.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, partitions_by_topic
from fleet_consumer.wire.errors import describe
from fleet_consumer.wire.failures import MalformedMessage
from fleet_consumer.wire.join_group import JoinGroupResponse
from fleet_consumer.wire.sync_group import SyncGroupResponse


class JoiningMember(MemberCore):
    """A member's way from one assignment to the next."""

    # Before: what must be given back first.

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
        if self._giving_back is not None:
            return  # To join now would tell the leader that they are free, while the user still reads them.
        if self._match_stale:
            return  # The pattern is matched against metadata that is not older than the reason to join.
        kind, gone = self._to_give_back()
        if gone:
            self._move(State.REVOKING)
            self._give_back(kind, gone)
        elif self._lookup.address is not None:
            self._join(self._rejoin_reason, now)

    def _to_give_back(self) -> tuple[CallBackKind, PartitionsByTopic]:
        """What the user must hear of before this member joins."""
        if not self._identity.valid:
            return CallBackKind.LOST, self._owned
        if not self._cooperative:
            return CallBackKind.REVOKED, self._owned
        return CallBackKind.REVOKED, {topic: parts for topic, parts in self._owned.items() if not self._wants(topic)}

    def _give_back(self, kind: CallBackKind, share: PartitionsByTopic) -> None:
        generation, subscription = self._identity.generation, self._subscription
        self._giving_back = CallBack(kind, flatten(share), generation=generation, subscription=subscription)
        self._actions.append(self._giving_back)

    def _on_called_back(self, event: CalledBack, _now: float) -> None:
        if event.callback is not self._giving_back:
            return
        self._giving_back = None
        if self._state is State.REVOKING:
            self._owned = without(self._owned, by_topic(event.callback.partitions))
            self._move(State.UNJOINED)

    # Joining.

    def _join_answered(self, context: ForJoin, response: JoinGroupResponse, now: float) -> None:
        attempt, code = context.attempt, response.error_code
        if self._answer_is_stale(Api.JOIN_GROUP, attempt, code):
            return
        rule = rule_for(Api.JOIN_GROUP, code)
        match rule.verdict:
            case Verdict.OK:
                self._joined(attempt, response, now)
            case Verdict.ADOPT_MEMBER_ID:
                self._identity = MemberIdentity(member_id=response.member_id)
                self._end_attempt(reasons.MEMBER_ID_REQUIRED, self._hastily(now))
            case Verdict.REJOIN:
                self._end_attempt(attempt.reason, self._hastily(now))
            case Verdict.RESET_MEMBER:
                self._reset(keep_member_id=False, reason=reasons.answered("JoinGroup", describe(code)))
                self._next_join_at = self._hastily(now)
            case Verdict.RETRY | Verdict.COORDINATOR_LOST:
                if rule.verdict is Verdict.COORDINATOR_LOST:
                    self._lookup.lost(now)
                self._last_error = errors.CoordinatorUnavailable(f"JoinGroup was answered {describe(code)}")
                self._end_attempt(reasons.rebalance_failed(describe(code)), now + self._join_backoff.next())
            case _:
                self._fail(error_for(Api.JOIN_GROUP, code, self._settings.group_id, rule))

    def _joined(self, attempt: RebalanceAttempt, response: JoinGroupResponse, now: float) -> None:
        offered = {assignor.name: assignor for assignor in self._assignors}
        if response.protocol_type not in (None, PROTOCOL_TYPE) or response.protocol_name not in offered:
            self._fail_inconsistent(response.protocol_type, response.protocol_name)
            return
        self._identity = attempt.identity = MemberIdentity(
            response.generation_id, response.member_id, response.protocol_name
        )
        self._heartbeat.begin_rebalance(now)
        self._last_error = None
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

    def _plan_answered(self, context: ForPlan, response: Any, now: float) -> None:
        attempt = context.attempt
        if attempt is not self._attempt or attempt.assignor is None:
            return
        topics, owned = wanted_topics(attempt.subscriptions), owned_counts(attempt.subscriptions)
        sighting = sight(response, topics, self._watch.counts, owned)
        if attempt.doubts.remaining(sighting, now):
            # A plan without these would take them from everybody who reads them.
            attempt.metadata_retry_at = now + self._join_backoff.next()
            return
        self._report_denied(sighting.denied)
        attempt.counts = dict(sighting.counts)
        self._watch.racks.learn(response)
        if any(subscription.rack is not None for subscription in attempt.subscriptions.values()):
            attempt.racks = self._watch.racks.of_topics(response, attempt.counts.keys())
        cluster = ClusterView(partitions=attempt.counts, racks=attempt.racks)
        self._actions.append(RunAssignor(attempt, attempt.assignor, cluster, attempt.subscriptions, self._cooperative))

    def _on_planned(self, event: Planned, now: float) -> None:
        if event.attempt is self._attempt and self._state is State.PLANNING:
            self._move(State.SYNCING)
            self._sync(event.attempt, event.assignments, now)

    def _on_plan_failed(self, event: PlanFailed, now: float) -> None:
        if event.attempt is self._attempt:
            self._last_error = event.error
            self._actions.append(MembershipReport(event.error))
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

    # After: what came, what goes.

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
        listed = partitions_by_topic(received.assigned_partitions)
        share = {topic: numbers for topic, numbers in listed.items() if numbers}
        if not all(topic in attempt.topics or self._wants(topic) for topic in share):
            self._end_attempt(reasons.ASSIGNMENT_MISMATCH, now + self._join_backoff.next())
            return
        self._move(State.STABLE)
        self._attempt = None
        self._leader = attempt.leader
        self._rebalances += 1
        self._last_reason = attempt.reason
        self._last_error = None
        self._hasty_rejoins = 0
        self._join_backoff.reset()
        self._lookup.settled()
        self._heartbeat.start(attempt.sync_sent_at, now)
        self._take_lead(attempt, now)
        self._take_assignment(attempt, share, received.user_data)

    def _take_assignment(self, attempt: RebalanceAttempt, share: PartitionsByTopic, user_data: bytes | None) -> None:
        """In Java's order: what goes is revoked, the assignor hears of its plan, what is new is assigned.

        An eager member owns nothing here, so that everything is new to it and nothing goes.
        """
        before, self._owned = self._owned, share
        gone = without(before, share)
        if gone:
            self._give_back(CallBackKind.REVOKED, gone)
            self._request_rejoin(reasons.TO_REVOKE)
        if attempt.assignor is not None:
            self._tell_assignor(attempt, Assignment(share, user_data))
        added = flatten(without(share, before))
        appeared = self._watch.appeared(added)
        self._actions.append(
            CallBack(
                CallBackKind.ASSIGNED,
                added,
                generation=self._identity.generation,
                appeared=appeared,
                subscription=self._subscription,
            )
        )

    def _tell_assignor(self, attempt: RebalanceAttempt, assignment: Assignment) -> None:
        """Here and not on the user's thread: it must know before it is asked for user data again."""
        assert attempt.assignor is not None
        try:
            attempt.assignor.on_assignment(assignment, self._identity.generation)
        except Exception as cause:
            text = f"assignor {attempt.assignor.name!r}: on_assignment raised {type(cause).__name__}: {cause}"
            self._actions.append(MembershipReport(errors.AssignorFailed(text)))

    def _take_lead(self, attempt: RebalanceAttempt, now: float) -> None:
        self._old_plan.wanted = False
        if not attempt.leader:
            self._watch.follow()
        elif attempt.counts is not None:
            self._watch.lead(wanted_topics(attempt.subscriptions), attempt.counts, attempt.racks, now)
        else:
            self._watch.lead_old_plan(wanted_topics(attempt.subscriptions))
            self._old_plan.want()
