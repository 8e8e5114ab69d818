"""Commits of empty groups: when a group is visited, what is said about it, and that nothing known is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning import times
from fleet_operator.planning.offsets.expiry import (
    FIRST_S,
    SHORTEST_RETENTION_S,
    ExpiryDecision,
    ExpiryFacts,
    ExpiryMemory,
    decide_expiry,
    decide_retry_expiry,
    spread_of,
)
from fleet_operator.planning.problem import Problem
from tests.unit.planning.builders import NOW, facts, observed_group
from tests.unit.planning.status.projecting import condition, message, project

WEEK = 7 * 86_400.0
EMPTY = observed_group(state="Empty", members=())


def decide(now: float = NOW, **changes: Any) -> ExpiryDecision:
    base: dict[str, Any] = {"group_id": "orders", "observed": EMPTY, "retention_s": WEEK}
    return decide_expiry(ExpiryFacts(**(base | changes)), now)


def verdict(decision: ExpiryDecision) -> tuple[str, str]:
    assert decision.verdict is not None
    return decision.verdict[:2]


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (observed_group(), ("True", "GroupActive")),
        (observed_group(state="PreparingRebalance"), ("True", "GroupActive")),
        (observed_group(state="Dead", members=(), committed={}), ("True", "NothingCommitted")),
        (observed_group(state="Empty", members=(), committed={}), ("True", "NothingCommitted")),
        (observed_group(state="Dead", members=()), ("Unknown", "OtherProtocol")),
    ],
)
def test_only_an_empty_group_with_commits_is_visited(observed: Any, expected: tuple[str, str]) -> None:
    decision = decide(observed=observed, memory=ExpiryMemory(empty_since=0.0))
    assert not decision.visit
    assert verdict(decision) == expected
    assert decision.memory == ExpiryMemory(), "the next emptiness begins again"


@pytest.mark.parametrize("ahead_s", [8 * 86_400.0, 365 * 86_400.0])
def test_visit_by_a_clock_that_was_ahead_counts_as_none(ahead_s: float) -> None:
    """Brokers would delete the commits before a visit is due by that clock."""
    made = decide(NOW + ahead_s, memory=ExpiryMemory(empty_since=NOW, visited_at=NOW + ahead_s))
    assert made.kept_at == NOW + ahead_s
    for memory in (ExpiryMemory(), made.memory):
        later = decide(kept_at=made.kept_at, safe_until=made.safe_until, memory=memory)
        assert verdict(later) == ("Unknown", "NotYetKept")
        assert later.requeue_after is not None
        assert later.requeue_after <= FIRST_S


def test_group_with_a_visit_on_record_is_visited_while_its_commits_are_not_shown() -> None:
    """Brokers leave out what the operator may not see."""
    hidden = replace(EMPTY, committed={})
    found = decide(observed=hidden, known=False, kept_at=NOW - WEEK / 2, safe_until=NOW + WEEK / 2)
    assert (found.kept_at, found.visit) == (NOW - WEEK / 2, True)
    assert decide(observed=hidden, known=False).verdict is None


def test_group_that_was_never_visited_is_visited_within_the_hour() -> None:
    first = decide()
    assert not first.visit
    assert verdict(first) == ("Unknown", "NotYetKept")
    assert first.requeue_after is not None
    assert 0.0 < first.requeue_after <= FIRST_S
    later = decide(NOW + first.requeue_after, memory=first.memory)
    assert later.visit


def test_first_visits_of_many_groups_are_spread() -> None:
    waits = sorted(decide(group_id=f"group-{number}").requeue_after or 0.0 for number in range(1000))
    minutes = [sum(1 for wait in waits if start <= wait < start + 300) for start in range(180, 3300, 300)]
    assert min(minutes) > 50
    assert max(minutes) < 130
    assert waits[0] > 100, "a fleet that is being restarted is left alone"


def test_visit_on_record_counts_also_for_another_process() -> None:
    soon = decide(kept_at=NOW - 0.18 * WEEK, safe_until=NOW)
    assert not soon.visit
    assert soon.requeue_after is not None
    due = decide(NOW + soon.requeue_after, kept_at=NOW - 0.18 * WEEK)
    assert due.visit
    assert decide(kept_at=NOW - 0.25 * WEEK).visit, "a quarter of the retention at the latest"
    assert verdict(decide(kept_at=NOW - 10, safe_until=NOW + WEEK)) == ("True", "Visited")


@given(st.floats(60.0, 10 * WEEK), st.text(max_size=20))
def test_three_more_visits_may_fail_before_anything_is_lost(retention_s: float, group_id: str) -> None:
    decision = decide(group_id=group_id, retention_s=retention_s, kept_at=NOW)
    assert decision.requeue_after is not None
    assert decision.requeue_after <= retention_s / 4 + 0.001
    assert 0.0 <= spread_of(group_id) <= 1.0
    memory = ExpiryMemory(empty_since=NOW)
    now, visits = NOW + decision.requeue_after, 0
    while now < NOW + retention_s:
        found = decide(now, group_id=group_id, retention_s=retention_s, kept_at=NOW, memory=memory)
        if found.visit:
            visits += 1
            memory = found.memory.failed(Problem("RequestTimedOut", "no answer"), now)
            now += 1.0  # the end of an attempt queues the group
            continue
        assert found.requeue_after is not None
        assert found.requeue_after > 0.0, "no loop"
        now += found.requeue_after
    assert visits >= 4


def test_unknown_retention_is_taken_for_the_shortest_and_no_time_is_promised() -> None:
    decision = decide(retention_s=None, kept_at=NOW - SHORTEST_RETENTION_S / 4)
    assert decision.visit
    done = decide(retention_s=None, memory=ExpiryMemory(empty_since=NOW - 60, visited_at=NOW - 1))
    assert (done.kept_at, done.safe_until) == (NOW - 1, None)
    assert verdict(done) == ("True", "Visited")


def test_visit_moves_the_record_once_and_the_record_stays_while_nothing_is_known() -> None:
    memory = ExpiryMemory(empty_since=NOW - 60, visited_at=NOW - 1.3)
    done = decide(memory=memory, kept_at=NOW - WEEK / 4, safe_until=NOW)
    assert (done.kept_at, done.safe_until) == (NOW - 1.3, NOW - 1.3 + WEEK)
    written = times.from_text(times.to_text(NOW - 1.3))
    stands = decide(memory=memory, kept_at=written, safe_until=NOW + 5, retention_s=None)
    assert (stands.kept_at, stands.safe_until) == (written, NOW + 5), "what stands is not computed again"
    unknown = decide(observed=None, kept_at=written, safe_until=NOW + 5)
    assert (unknown.kept_at, unknown.safe_until, unknown.verdict) == (written, NOW + 5, None)


def test_refused_right_is_shown_at_once_and_other_failures_when_repeated() -> None:
    once = ExpiryMemory(empty_since=NOW - 60).failed(Problem("RequestTimedOut", "no answer"), NOW)
    kept: dict[str, Any] = {"kept_at": NOW - WEEK / 4, "safe_until": NOW + 3 * WEEK / 4}
    assert verdict(decide(memory=once, **kept)) == ("True", "Visited")
    twice = decide(memory=once.failed(Problem("RequestTimedOut", "no answer"), NOW), **kept)
    assert verdict(twice) == ("False", "RequestTimedOut")
    assert twice.requeue_after == 120.0
    refused = decide(memory=ExpiryMemory().failed(Problem("AuthorizationFailed", "grant Read"), NOW), **kept)
    assert verdict(refused) == ("False", "AuthorizationFailed")
    assert refused.verdict is not None
    assert times.to_text(NOW + 3 * WEEK / 4) in refused.verdict[2], "the deadline is named"


def test_expired_commits_of_a_guarded_group_are_reported_and_of_another_not() -> None:
    dead = observed_group(state="Dead", members=(), committed={})
    gone = decide(observed=dead, kept_at=NOW - WEEK, safe_until=NOW - 1)
    assert verdict(gone) == ("False", "OffsetsGone")
    assert gone.kept_at == NOW - WEEK, "reported until the group has commits again"
    assert verdict(decide(observed=dead, kept_at=NOW - WEEK, allowed=True)) == ("True", "NothingCommitted")


def decide_retry(now: float = NOW, state: str | None = "Empty", workers: int = 0, **changes: Any) -> ExpiryDecision:
    facts = ExpiryFacts(group_id="orders.retry", observed=EMPTY, retention_s=WEEK, **changes)
    return decide_retry_expiry(facts, state, workers, now)


def test_empty_group_of_retry_workers_is_visited_with_the_pauses_of_any_group() -> None:
    first = decide_retry()
    assert (first.visit_retry, first.verdict) == (False, None)
    assert first.requeue_after is not None
    assert 0.0 < first.requeue_after <= FIRST_S
    due = NOW + first.requeue_after
    assert decide_retry(due, memory=first.memory).visit_retry
    visited = ExpiryMemory(empty_since=NOW, visited_at=due)
    resting = decide_retry(due + 1, memory=visited)
    assert not resting.visit_retry
    assert resting.requeue_after is not None
    assert resting.requeue_after <= WEEK / 4
    assert decide_retry(due + WEEK / 4, memory=visited).visit_retry
    failed = visited.failed(None, due).failed(None, due)
    assert decide_retry(due, memory=failed).requeue_after == 120.0


@pytest.mark.parametrize(
    ("changes", "forgets"),
    [
        ({"state": "Stable"}, True),
        ({"state": "Dead"}, True),
        ({"state": "Unknown"}, False),
        ({"state": None}, False),
        ({"workers": 1}, False),
        ({"allowed": True}, False),
        ({"obstacle": Problem("PausedByAnnotation", "paused")}, False),
    ],
)
def test_group_of_retry_workers_is_left_alone(changes: dict[str, Any], forgets: bool) -> None:
    """While it has members or gets some, is not known, or the operator may not join it."""
    memory = ExpiryMemory(empty_since=0.0)
    decision = decide_retry(memory=memory, **changes)
    assert (decision.visit_retry, decision.requeue_after) == (False, None)
    assert decision.memory == (ExpiryMemory() if forgets else memory)


def test_obstacles_and_intentions_keep_the_operator_away() -> None:
    due: dict[str, Any] = {"kept_at": NOW - WEEK / 2, "safe_until": NOW + WEEK / 2}
    assert decide(**due).visit
    allowed = decide(**due, allowed=True)
    assert (allowed.visit, allowed.requeue_after, verdict(allowed)) == (False, None, ("False", "ExpiryAllowed"))
    paused = decide(**due, obstacle=Problem("PausedByAnnotation", "paused"))
    assert (paused.visit, verdict(paused)) == (False, ("False", "PausedByAnnotation"))
    reset = decide(**due, obstacle=Problem("ResettingOffsets", "a reset"))
    assert (reset.visit, verdict(reset)) == (False, ("Unknown", "ResettingOffsets"))
    assert reset.kept_at == due["kept_at"]


def test_status_shows_the_visit_and_a_failure_degrades_the_group() -> None:
    kept = decide(kept_at=NOW - 10, safe_until=NOW + WEEK)
    status = project(replace(facts(), expiry=kept))
    assert status["offsets"] == {"keptAt": "2027-01-15T07:59:50Z", "safeUntil": "2027-01-22T08:00:00Z"}
    assert condition(status, "OffsetsKept") == ("True", "Visited")
    assert condition(status, "Degraded")[0] == "False"
    failing = decide(
        kept_at=NOW - 10, safe_until=NOW + WEEK, memory=ExpiryMemory().failed(Problem("AuthorizationFailed", "x"), NOW)
    )
    status = project(replace(facts(), expiry=failing))
    assert condition(status, "Degraded") == ("True", "AuthorizationFailed")
    assert "2027-01-22T08:00:00Z" in message(status, "OffsetsKept")
    allowed = project(replace(facts(), expiry=decide(kept_at=NOW, allowed=True)))
    assert condition(allowed, "Degraded")[0] == "False"
