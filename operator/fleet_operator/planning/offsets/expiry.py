"""Time at which the commits of a group without members expire, and when the operator has to prevent that. Pure.

Brokers delete all commits of a group `offsets.retention.minutes` after its last member left; when they were made does
not count (Kafka: `ClassicGroup.offsetExpirationCondition`). A member that joins and leaves restarts that time. So
the operator visits an empty group at a quarter of the time: three more visits may fail before anything is lost.

The time is counted from the last visit, which stands in the group's state. Where none does, nobody knows since when the
group is empty, as the operator may have been away: it is visited soon, each group at a moment of its own. The same
holds for the retry workers' group, whose visits stand nowhere: the next process visits it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract.naming import content_hash
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning import times
from fleet_operator.planning.observation import UNKNOWN_STATE, GroupObservation
from fleet_operator.planning.problem import Problem

EMPTY: Final = "Empty"
DEAD: Final = "Dead"
SHORTEST_RETENTION_S: Final = 86_400.0
"""The retention that is assumed while brokers do not tell theirs: Kafka's shortest default ever."""
VISIT_SHARE: Final = 0.25
"""The part of the retention after which a group is visited again; up to a quarter of it earlier, by its name."""
FIRST_S: Final = 3600.0
"""Time within which a group is visited that has no visit on record, where the retention is long enough."""
FIRST_SHARE: Final = 0.25
"""The same as a part of the time between two visits, where that is short."""
RETRY_S: Final = 60.0
RETRY_S_MAX: Final = 3600.0
"""Pause after a visit that failed, doubled each time."""
AHEAD_S: Final = 300.0
"""A time that lies further ahead was written by a clock that was ahead, and means nothing."""
FAILURES_SHOWN: Final = 2
CERTAIN: Final = frozenset({conditions.AUTHORIZATION_FAILED, conditions.OFFSETS_GONE})
"""So many failures in a row are a problem; those that pass by no other try are one at once."""
Verdict = tuple[conditions.Status, str, str]
"""Status, reason and message of a condition."""
WISHED: Final = frozenset({conditions.EXPIRY_ALLOWED, conditions.PAUSED_BY_ANNOTATION})
STARTING_S: Final = 30.0
"""Seconds after which a group is looked at again while its visit should have begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryMemory:
    """Past of a group in this process, in epoch seconds: when it was first seen empty, its last visit, and the failures
    since."""

    empty_since: float | None = None
    visited_at: float | None = None
    failures: int = 0
    failed_at: float | None = None
    problem: Problem | None = None

    def at(self, now: float) -> ExpiryMemory:
        """The memory without times of a clock that was ahead: no visit would be due before that time comes."""
        noted = (self.empty_since, self.visited_at, self.failed_at)
        return ExpiryMemory() if any(each is not None and each > now + AHEAD_S for each in noted) else self

    def failed(self, problem: Problem | None, now: float) -> ExpiryMemory:
        """The memory after a visit that kept nothing; without a problem where there was nothing to keep."""
        return replace(self, failures=self.failures + 1, failed_at=now, problem=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryFacts:
    """Everything that the decision depends on.

    - `observed`: the group, None while it could not be observed.
    - `known`: all its topics are known; of others the operator may not be told the commits.
    - `retention_s`: for how long brokers keep commits, None while they do not tell.
    - `kept_at`, `safe_until`: as recorded at the last visit, None without one.
    - `allowed`: the spec lets commits expire.
    - `obstacle`: the reason why the operator may do nothing in this group now.
    """

    group_id: str
    observed: GroupObservation | None
    retention_s: float | None
    known: bool = True
    kept_at: float | None = None
    safe_until: float | None = None
    allowed: bool = False
    obstacle: Problem | None = None
    memory: ExpiryMemory = ExpiryMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryDecision:
    """The verdict (status, reason and message of the condition OffsetsKept), what stands in the state, and what to do.

    A `verdict` of None means that the group could not be observed. `visit_retry` is about the group of the retry
    workers, and so is `retry_memory`; the rest is about the main one. Times are epoch seconds.
    """

    verdict: Verdict | None = None
    kept_at: float | None = None
    safe_until: float | None = None
    visit: bool = False
    visit_retry: bool = False
    requeue_after: float | None = None
    memory: ExpiryMemory = ExpiryMemory()
    retry_memory: ExpiryMemory = ExpiryMemory()

    @property
    def problem(self) -> Problem | None:
        """The reason why commits will be lost or are lost, against the spec and without anybody's wish."""
        if self.verdict is None or self.verdict[0] != "False" or self.verdict[1] in WISHED:
            return None
        return Problem(self.verdict[1], self.verdict[2])


NOTHING_KNOWN: Final = ExpiryDecision()


def decide_expiry(facts: ExpiryFacts, now: float) -> ExpiryDecision:
    """The decision; `now` in epoch seconds."""
    observed, memory = facts.observed, facts.memory.at(now)
    facts = replace(facts, memory=memory)
    if observed is None:
        # Nothing is known, so nothing is forgotten.
        return ExpiryDecision(kept_at=facts.kept_at, safe_until=facts.safe_until, memory=memory)
    if observed.state == DEAD:
        return _decide_dead(facts, observed)
    if observed.state != EMPTY:
        return _settled("True", conditions.GROUP_ACTIVE, "brokers keep the commits of a group with members")
    if not observed.committed and facts.known:
        return _settled("True", conditions.NOTHING_COMMITTED, "the group has no commits in its topics")
    if not observed.committed and facts.kept_at is None:
        return ExpiryDecision(memory=memory)
    return _decide_empty(facts, now)


def _settled(status: conditions.Status, reason: str, message: str) -> ExpiryDecision:
    """Nothing has to be done, and nothing is on record."""
    return ExpiryDecision(verdict=(status, reason, message))


def _decide_dead(facts: ExpiryFacts, observed: GroupObservation) -> ExpiryDecision:
    """No classic group has this name: it never had commits, they are gone, or its members have another protocol."""
    if observed.committed:
        message = "the group has commits and is of another protocol than the classic one: the operator does not join it"
        return _settled("Unknown", conditions.OTHER_PROTOCOL, message)
    if facts.kept_at is None or facts.allowed:
        return _settled("True", conditions.NOTHING_COMMITTED, "the group does not exist yet")
    message = (
        f"the group had commits at {times.to_text(facts.kept_at)} and does not exist any more: they have expired, or "
        "somebody deleted the group. Workers that start now begin where consumer.autoOffsetReset says: set offsets "
        "with an OffsetReset first"
    )
    verdict: Verdict = ("False", conditions.OFFSETS_GONE, message)
    return ExpiryDecision(verdict=verdict, kept_at=facts.kept_at, safe_until=facts.safe_until)


def _decide_empty(facts: ExpiryFacts, now: float) -> ExpiryDecision:
    memory = facts.memory
    if memory.empty_since is None:
        memory = replace(memory, empty_since=now)
    kept_at, safe_until = facts.kept_at, facts.safe_until
    if kept_at is not None and kept_at > now + AHEAD_S:
        kept_at = safe_until = None
    if memory.visited_at is not None and (kept_at is None or int(memory.visited_at) > kept_at):
        kept_at = memory.visited_at
        safe_until = kept_at + facts.retention_s if facts.retention_s is not None else None
    decision = ExpiryDecision(kept_at=kept_at, safe_until=safe_until, memory=memory)
    deadline = (
        f"they expire at {times.to_text(safe_until)}" if safe_until is not None else "nobody knows when they expire"
    )
    if facts.allowed:
        message = f"spec.offsets.expiry is Allow: brokers delete the commits of the empty group, {deadline}"
        return replace(decision, verdict=("False", conditions.EXPIRY_ALLOWED, message))
    if facts.obstacle is not None:
        message = f"the operator does not keep the commits of the empty group, {deadline}: {facts.obstacle.message}"
        status: conditions.Status = "False" if facts.obstacle.reason == conditions.PAUSED_BY_ANNOTATION else "Unknown"
        return replace(decision, verdict=(status, facts.obstacle.reason, message))
    due_in = _due_at(facts.group_id, facts.retention_s, memory, kept_at) - now
    decision = replace(decision, visit=due_in <= 0.0, requeue_after=due_in if due_in > 0.0 else STARTING_S)
    return replace(decision, verdict=_verdict(memory, kept_at, safe_until, deadline))


def _verdict(memory: ExpiryMemory, kept_at: float | None, safe_until: float | None, deadline: str) -> Verdict:
    problem = memory.problem
    if problem is not None and (memory.failures >= FAILURES_SHOWN or problem.reason in CERTAIN):
        message = (
            f"the operator cannot keep the commits of the empty group, {deadline}: {problem.reason}: {problem.message}"
        )
        return "False", problem.reason, message
    if kept_at is None:
        message = "nobody knows since when the group is empty: the operator joins it soon, so that its commits are kept"
        return "Unknown", conditions.NOT_YET_KEPT, message
    until = "the brokers do not tell for how long"
    if safe_until is not None:
        until = f"safe until {times.to_text(safe_until)}, and longer with the next visit"
    message = f"the operator joined and left the empty group at {times.to_text(kept_at)}: its commits are kept, {until}"
    return "True", conditions.VISITED, message


def decide_retry_expiry(facts: ExpiryFacts, state: str | None, workers: int, now: float) -> ExpiryDecision:
    """The decision about the retry workers' group, which has no verdict of its own. `facts` has its id and its memory.

    `state` is Kafka's word, None while it could not be observed. The `workers` that are wanted join the group
    themselves.

    It may be empty for weeks while the main group is active: its topics are kept when `spec.retry` is removed. Without
    commits all their records would be handled again when retries come back.
    """
    memory = facts.memory.at(now)
    if state in (None, UNKNOWN_STATE):
        return ExpiryDecision(memory=memory)
    if state != EMPTY:
        return ExpiryDecision()
    if workers or facts.allowed or facts.obstacle is not None:
        return ExpiryDecision(memory=memory)
    if memory.empty_since is None:
        memory = replace(memory, empty_since=now)
    due_in = _due_at(facts.group_id, facts.retention_s, memory, memory.visited_at) - now
    return ExpiryDecision(
        visit_retry=due_in <= 0.0, requeue_after=due_in if due_in > 0.0 else STARTING_S, memory=memory
    )


def _due_at(group_id: str, retention_s: float | None, memory: ExpiryMemory, kept_at: float | None) -> float:
    """The time of the next visit."""
    period_s = VISIT_SHARE * (retention_s if retention_s is not None else SHORTEST_RETENTION_S)
    if memory.failed_at is not None:
        pause_s = RETRY_S * 2.0 ** min(memory.failures - 1, 16)
        return memory.failed_at + min(pause_s, RETRY_S_MAX, period_s * FIRST_SHARE)
    spread = spread_of(group_id)
    if kept_at is not None:
        return kept_at + period_s * (0.75 + 0.25 * spread)
    assert memory.empty_since is not None, "an empty group was seen empty"
    return memory.empty_since + min(FIRST_S, period_s * FIRST_SHARE) * (0.05 + 0.95 * spread)


def spread_of(group_id: str) -> float:
    """A number from 0 to 1 by the group's name, so that thousands of groups are not visited at once."""
    digits = content_hash({"group": group_id})[:8]
    return int(digits, 16) / 0x1_0000_0000
