"""Keeps the commits of Kafka groups without members: decides when the operator visits a group. Pure.

Brokers delete all commits of a group `offsets.retention.minutes` after its last member left; the age of the commits
does not count (Kafka: `ClassicGroup.offsetExpirationCondition`). A member that joins and leaves restarts this period.
So after a quarter of the period, the operator visits an empty group: it joins the group and leaves it. If the visit
fails, three quarters of the period remain for further attempts before commits are lost.

The period is counted from the last visit recorded in the group's state. If no visit is recorded, it is unknown how long
the group has been empty, because the operator may have been down. The group is then visited soon. The visits of
different groups are spread over time. Visits to the retry workers' group are not recorded, so the next operator process
visits this group again.

Decision: docs/decisions/0045-offset-expiry.md.
"""

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
"""Retention assumed while the brokers' setting is unknown: the shortest default of any Kafka version."""
VISIT_SHARE: Final = 0.25
"""Share of the retention after which a group is visited again. To spread the visits of many groups, a group is visited
up to a quarter of this time earlier. The group's id determines how much earlier."""
FIRST_S: Final = 3600.0
"""A group without a recorded visit is visited within this many seconds, or earlier if the retention is short (see
`FIRST_SHARE`)."""
FIRST_SHARE: Final = 0.25
"""Upper limit of `FIRST_S`, and of the pause after a failed visit, as a share of the interval between two visits."""
RETRY_S: Final = 60.0
RETRY_S_MAX: Final = 3600.0
"""The pause after a failed visit is `RETRY_S` seconds. Each further failure doubles the pause, up to `RETRY_S_MAX`
seconds."""
AHEAD_S: Final = 300.0
"""A recorded time that is more than this many seconds in the future was recorded with a wrong clock, and is
ignored."""
FAILURES_SHOWN: Final = 2
"""Consecutive failures after which the condition shows an error; a permanent error (`CERTAIN`) is shown immediately."""
CERTAIN: Final = frozenset({conditions.AUTHORIZATION_FAILED, conditions.OFFSETS_GONE})
Verdict = tuple[conditions.Status, str, str]
"""Status, reason and message of a condition."""
INTENDED: Final = frozenset({conditions.EXPIRY_ALLOWED, conditions.PAUSED_BY_ANNOTATION})
STARTING_S: Final = 30.0
"""Seconds until the operator checks again whether a due visit has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryMemory:
    """History of a group in this process. Times are in epoch seconds, and None if the event did not happen.
    `failures`: the number of failed visits since the last successful visit. `problem`: the cause of the last
    failure."""

    empty_since: float | None = None
    visited_at: float | None = None
    failures: int = 0
    failed_at: float | None = None
    problem: Problem | None = None

    def at(self, now: float) -> "ExpiryMemory":
        """Return this memory, or an empty memory if one of its times is in the future. Otherwise, no visit would be due
        before that time."""
        times_known = (self.empty_since, self.visited_at, self.failed_at)
        return ExpiryMemory() if any(each is not None and each > now + AHEAD_S for each in times_known) else self

    def failed(self, problem: Problem | None, now: float) -> "ExpiryMemory":
        """Return the memory after a visit that kept no commits. `problem`: None if the group had no commits or had
        members."""
        return replace(self, failures=self.failures + 1, failed_at=now, problem=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryFacts:
    """Inputs of the decision.

    - `observed`: None while the group cannot be observed.
    - `known`: True if all topics of the group are known. Brokers may omit the commits of unknown topics.
    - `retention_s`: the brokers' retention of offsets in seconds; None while the setting is unknown.
    - `kept_at`, `safe_until`: the time of the last visit, and the time until which commits are safe. Both are recorded
      in the group's state, in epoch seconds.
    - `allowed`: the spec allows commits to expire.
    - `obstacle`: the reason why the operator must not act in this group now.
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
    """The condition OffsetsKept (`verdict`), the times to record, in epoch seconds, and the visits to make. `verdict`
    is None if the group could not be observed. `visit_retry` and `retry_memory` belong to the retry workers' group, and
    the other fields to the main workers' group."""

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
        """The reason why commits are lost or will be lost. None if they are safe, or if the spec or an annotation
        allows the loss."""
        if self.verdict is None or self.verdict[0] != "False" or self.verdict[1] in INTENDED:
            return None
        return Problem(self.verdict[1], self.verdict[2])


NOTHING_KNOWN: Final = ExpiryDecision()


def decide_expiry(facts: ExpiryFacts, now: float) -> ExpiryDecision:
    observed, memory = facts.observed, facts.memory.at(now)
    facts = replace(facts, memory=memory)
    if observed is None:
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
    """A decision that makes no visit and clears the recorded times."""
    return ExpiryDecision(verdict=(status, reason, message))


def _decide_dead(facts: ExpiryFacts, observed: GroupObservation) -> ExpiryDecision:
    """Decide about a group id for which no classic group exists: the group never had commits, its commits were deleted,
    or its members use another protocol."""
    if observed.committed:
        message = "the group has commits and does not use the classic protocol: the operator does not join it"
        return _settled("Unknown", conditions.OTHER_PROTOCOL, message)
    if facts.kept_at is None or facts.allowed:
        return _settled("True", conditions.NOTHING_COMMITTED, "the group does not exist yet")
    message = (
        f"the group had commits at {times.to_text(facts.kept_at)} and no longer exists: the commits expired, or "
        "somebody deleted the group. Workers that start now begin at consumer.autoOffsetReset: set offsets with an "
        "OffsetReset first"
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
        f"they expire at {times.to_text(safe_until)}" if safe_until is not None else "it is unknown when they expire"
    )
    if facts.allowed:
        message = f"spec.offsets.expiry is Allow: brokers delete the commits of the empty group ({deadline})"
        return replace(decision, verdict=("False", conditions.EXPIRY_ALLOWED, message))
    if facts.obstacle is not None:
        message = f"the operator does not keep the commits of the empty group ({deadline}): {facts.obstacle.message}"
        status: conditions.Status = "False" if facts.obstacle.reason == conditions.PAUSED_BY_ANNOTATION else "Unknown"
        return replace(decision, verdict=(status, facts.obstacle.reason, message))
    due_in = _due_at(facts.group_id, facts.retention_s, memory, kept_at) - now
    decision = replace(decision, visit=due_in <= 0.0, requeue_after=due_in if due_in > 0.0 else STARTING_S)
    return replace(decision, verdict=_verdict(memory, kept_at, safe_until, deadline))


def _verdict(memory: ExpiryMemory, kept_at: float | None, safe_until: float | None, deadline: str) -> Verdict:
    problem = memory.problem
    if problem is not None and (memory.failures >= FAILURES_SHOWN or problem.reason in CERTAIN):
        message = (
            f"the operator cannot keep the commits of the empty group ({deadline}): {problem.reason}: {problem.message}"
        )
        return "False", problem.reason, message
    if kept_at is None:
        message = "it is unknown how long the group has been empty: the operator joins it soon to keep its commits"
        return "Unknown", conditions.NOT_YET_KEPT, message
    until = "but the brokers' retention of offsets is unknown"
    if safe_until is not None:
        until = f"safe until {times.to_text(safe_until)}, and longer after the next visit"
    visit = f"the operator joined and left the empty group at {times.to_text(kept_at)}"
    message = f"{visit}: the group's commits are kept, {until}"
    return "True", conditions.VISITED, message


def decide_retry_expiry(facts: ExpiryFacts, state: str | None, workers: int, now: float) -> ExpiryDecision:
    """Decide about the retry workers' group, which has no condition. `facts` has this group's id and memory. `state` is
    None while the group cannot be observed. `workers`: number of retry workers that are wanted; these join the group,
    so no visit is needed. The group may be empty for weeks while the main group is active, because the retry topics are
    kept when `spec.retry` is removed. If the retry group's commits expired, all records of these topics would be
    handled again once `spec.retry` is set again."""
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
    period_s = VISIT_SHARE * (retention_s if retention_s is not None else SHORTEST_RETENTION_S)
    if memory.failed_at is not None:
        pause_s = RETRY_S * 2.0 ** min(memory.failures - 1, 16)
        return memory.failed_at + min(pause_s, RETRY_S_MAX, period_s * FIRST_SHARE)
    spread = spread_of(group_id)
    if kept_at is not None:
        return kept_at + period_s * (0.75 + 0.25 * spread)
    assert memory.empty_since is not None, "the time at which the group was first seen empty is recorded"
    return memory.empty_since + min(FIRST_S, period_s * FIRST_SHARE) * (0.05 + 0.95 * spread)


def spread_of(group_id: str) -> float:
    """Derive a number from 0 to 1 from a group's id, so that thousands of groups are not visited at the same time."""
    digits = content_hash({"group": group_id})[:8]
    return int(digits, 16) / 0x1_0000_0000
