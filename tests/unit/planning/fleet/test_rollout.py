"""Rollouts, decision by decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.fleet.rollout import (
    CHECK_RETRY_INSIDE_S,
    CHECK_RETRY_OUTSIDE_S,
    PROGRESS_DEADLINE_S,
    CheckFacts,
    PodFacts,
    RevisionRecord,
    RevisionState,
    RolloutDecision,
    RolloutFacts,
    RolloutPhase,
    decide,
)
from fleet_operator.planning.problem import Problem
from tests.unit.planning.builders import NOW, ready_fleet

OLD, NEW = "a" * 10, "b" * 10
GOOD, REJECTED, CANDIDATE = RevisionState.GOOD, RevisionState.REJECTED, RevisionState.CANDIDATE


def record(revision: str, **changes: Any) -> RevisionRecord:
    return RevisionRecord(hash=revision, **({"pod_template": {"of": revision}} | changes))


def good(revision: str = OLD, since: float = NOW - 9000) -> RevisionRecord:
    return record(revision, state=GOOD, since=since, checked=True)


def check(**changes: Any) -> CheckFacts:
    base: dict[str, Any] = {"pod": f"orders-check-{NEW}", "revision": NEW, "created_at": NOW - 20}
    return CheckFacts(**(base | changes))


def failed_check(*, outside: bool, finished_at: float = NOW - 5) -> CheckFacts:
    reason = "BrokerUnreachable" if outside else "HandlerImportFailed"
    return check(ok=False, outside=outside, reason=reason, message="why", finished_at=finished_at)


def rollout(*records: RevisionRecord, **changes: Any) -> RolloutDecision:
    """Decide with revision NEW wanted, two replicas, and the old fleet running unless said otherwise."""
    base: dict[str, Any] = {
        "wanted": NEW,
        "wanted_replicas": 2,
        "records": {r.hash: r for r in records},
        "fleet": ready_fleet(revision=OLD),
    }
    return decide(RolloutFacts(**(base | changes)), NOW)


def test_new_revision_is_recorded_and_checked_before_anything_else() -> None:
    decision = rollout(fleet=None)
    assert (decision.phase, decision.target) == (RolloutPhase.CHECKING, None)
    assert decision.write_revision
    assert decision.mark == RevisionRecord(hash=NEW)
    assert decision.run_check


def test_old_fleet_stays_while_the_new_revision_is_checked() -> None:
    decision = rollout(good(), record(NEW), checks=(check(),))
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.CHECKING, OLD, False)


def test_passed_check_is_marked_and_the_fleet_moves() -> None:
    decision = rollout(good(), record(NEW), checks=(check(ok=True, finished_at=NOW - 1),))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)
    assert decision.mark == record(NEW, state=CANDIDATE, since=NOW, checked=True)
    assert decision.delete_checks == (f"orders-check-{NEW}",)


def test_checked_revision_is_not_checked_again_after_a_restart() -> None:
    """Killed between the mark and the StatefulSet: the mark is enough to go on."""
    decision = rollout(good(), record(NEW, checked=True, since=NOW - 3))
    assert (decision.phase, decision.target, decision.run_check, decision.mark) == (
        RolloutPhase.APPLYING,
        NEW,
        False,
        None,
    )


def test_refused_revision_leaves_the_old_fleet() -> None:
    decision = rollout(good(), record(NEW), checks=(failed_check(outside=False),))
    assert (decision.phase, decision.target) == (RolloutPhase.REJECTED, OLD)
    assert decision.cause == Problem("HandlerImportFailed", "why")
    assert decision.mark == record(NEW, state=REJECTED, since=NOW - 5, reason="HandlerImportFailed", message="why")


def test_refusal_is_noted_only_once() -> None:
    """The failed pod stays for its log; looking at it again writes nothing."""
    noted = record(NEW, state=REJECTED, since=NOW - 5, reason="HandlerImportFailed", message="why")
    decision = rollout(good(), noted, checks=(failed_check(outside=False),))
    assert (decision.phase, decision.target, decision.mark) == (RolloutPhase.REJECTED, OLD, None)
    assert (decision.delete_checks, decision.run_check, decision.delete_pods, decision.prune) == ((), False, (), ())
    assert decision.requeue_after == CHECK_RETRY_INSIDE_S - 5


@pytest.mark.parametrize(("outside", "pause"), [(True, CHECK_RETRY_OUTSIDE_S), (False, CHECK_RETRY_INSIDE_S)])
def test_failed_check_is_repeated_after_its_pause(outside: bool, pause: float) -> None:
    """First the old pod goes, then a new one is made; meanwhile the last answer stands."""
    state, phase = (CANDIDATE, RolloutPhase.CHECK_FAILED) if outside else (REJECTED, RolloutPhase.REJECTED)
    ended = NOW - pause
    noted = record(NEW, state=state, since=ended, reason="R", message="why")
    old_check = failed_check(outside=outside, finished_at=ended)
    decision = rollout(good(), noted, checks=(old_check,))
    assert (decision.delete_checks, decision.run_check) == ((old_check.pod,), False)
    decision = rollout(good(), noted, checks=(replace(old_check, deleting=True),))
    assert (decision.delete_checks, decision.run_check) == ((), False)
    decision = rollout(good(), noted)
    assert (decision.run_check, decision.phase, decision.cause) == (True, phase, Problem("R", "why"))
    decision = rollout(good(), noted, checks=(check(),))
    assert (decision.run_check, decision.phase, decision.cause) == (False, phase, Problem("R", "why"))


def test_removed_check_pod_does_not_shorten_the_pause() -> None:
    noted = record(NEW, since=NOW - 10, reason="BrokerUnreachable", message="why")
    decision = rollout(good(), noted)
    assert (decision.run_check, decision.requeue_after) == (False, CHECK_RETRY_OUTSIDE_S - 10)


def test_check_that_passes_at_last_clears_the_refusal() -> None:
    noted = record(NEW, state=REJECTED, since=NOW - 700, reason="HandlerImportFailed", message="why")
    decision = rollout(good(), noted, checks=(check(ok=True, finished_at=NOW - 1),))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)
    assert decision.mark == record(NEW, state=CANDIDATE, since=NOW, checked=True)


def test_check_that_cannot_start_reports_the_reason() -> None:
    waiting = check(created_at=NOW - 90, reason="ImagePullBackOff", message="no such image")
    decision = rollout(good(), record(NEW), checks=(waiting,))
    assert decision.cause == Problem("ImagePullBackOff", "no such image")
    assert decision.target == OLD


def test_fleet_is_good_once_all_pods_are_new_and_available() -> None:
    checked = record(NEW, checked=True)
    decision = rollout(good(), checked, fleet=ready_fleet(revision=NEW))
    assert decision.phase is RolloutPhase.SETTLED
    assert decision.mark == record(NEW, state=GOOD, since=NOW, checked=True)


def test_last_good_revision_is_found_despite_marks_of_a_fast_clock() -> None:
    ahead, fleet = good(since=NOW + 300), ready_fleet(revision=NEW)
    first = rollout(ahead, record(NEW, checked=True), fleet=fleet)
    assert first.mark is not None
    assert first.mark.since == NOW + 301
    second = rollout(ahead, good(NEW, since=first.mark.since), fleet=fleet)
    assert (second.phase, second.mark) == (RolloutPhase.SETTLED, None)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("the controller has not seen the template", {"observed": False}),
        ("one pod is old", {"updated_replicas": 1}),
        ("one pod is not available", {"available_replicas": 1}),
        ("a third pod is on its way out", {"current_replicas": 3}),
        ("the number of replicas has not been applied", {"replicas": 3}),
    ],
)
def test_fleet_is_not_good_too_early(why: str, change: Mapping[str, Any]) -> None:
    fleet = replace(ready_fleet(revision=NEW), **change)
    decision = rollout(good(), record(NEW, checked=True), fleet=fleet)
    assert (decision.phase, decision.mark) == (RolloutPhase.WAITING, None), why


def late_pod(age: float = PROGRESS_DEADLINE_S, revision: str = NEW) -> PodFacts:
    return PodFacts(
        name="orders-1",
        revision=revision,
        ordinal=1,
        unready_since=NOW - age,
        reason="CrashLoopBackOff",
        message="KeyError: x",
    )


def rolling(**changes: Any) -> RolloutDecision:
    """NEW is being rolled out: one of two pods has it and is not ready."""
    fleet = replace(ready_fleet(revision=NEW, ready=1), updated_replicas=1)
    base: dict[str, Any] = {"fleet": fleet, "pods": (late_pod(),)}
    return rollout(good(), record(NEW, checked=True), **(base | changes))


def test_last_good_revision_returns_when_the_first_updated_pod_is_late() -> None:
    decision = rolling()
    assert (decision.phase, decision.target) == (RolloutPhase.REJECTED, OLD)
    assert decision.mark is not None
    assert (decision.mark.state, decision.mark.reason) == (REJECTED, "ProgressDeadlineExceeded")
    assert "orders-1" in decision.mark.message
    assert "CrashLoopBackOff: KeyError: x" in decision.mark.message


def test_pods_of_the_refused_revision_go_after_the_statefulset_was_turned_back() -> None:
    """Its controller would wait for them for ever."""
    refused = record(NEW, state=REJECTED, since=NOW, reason="ProgressDeadlineExceeded", message="late", checked=True)
    not_yet = rollout(good(), refused, fleet=ready_fleet(revision=NEW), pods=(late_pod(),))
    assert (not_yet.target, not_yet.delete_pods) == (OLD, ())
    turned = rollout(good(), refused, fleet=ready_fleet(revision=OLD), pods=(late_pod(), late_pod(revision=OLD)))
    assert (turned.target, turned.delete_pods, turned.prune) == (OLD, ("orders-1",), ())


def test_revision_refused_for_its_deadline_is_not_tried_again() -> None:
    refused = record(NEW, state=REJECTED, since=NOW - 90_000, reason="ProgressDeadlineExceeded", checked=True)
    decision = rollout(good(), refused)
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.REJECTED, OLD, False)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("the pod has time left", {"pods": (late_pod(PROGRESS_DEADLINE_S - 1),)}),
        ("the pod is an old one", {"pods": (late_pod(revision=OLD),)}),
        ("the pod is going away", {"pods": (replace(late_pod(), deleting=True),)}),
        ("Kafka does not answer", {"outside_ok": False}),
        ("Kafka has just come back", {"outside_ok_since": NOW - 10}),
        ("the group is being rebalanced", {"patience_s": 300.0}),
    ],
)
def test_late_pod_is_forgiven(why: str, change: Mapping[str, Any]) -> None:
    decision = rolling(**change)
    assert (decision.phase, decision.target, decision.mark) == (RolloutPhase.WAITING, NEW, None), why


def test_without_a_good_revision_there_is_nothing_to_go_back_to() -> None:
    fleet = replace(ready_fleet(revision=NEW, ready=0))
    decision = rollout(record(NEW, checked=True), fleet=fleet, pods=(late_pod(),))
    assert (decision.phase, decision.target, decision.mark) == (RolloutPhase.WAITING, NEW, None)
    assert decision.cause is not None
    assert decision.cause.reason == "ProgressDeadlineExceeded"


def test_settled_fleet_is_never_turned_back() -> None:
    """A pod that cannot start on a broken node proves nothing against a revision that has worked."""
    decision = rollout(good(), good(NEW, NOW - 60), fleet=ready_fleet(revision=NEW, ready=1), pods=(late_pod(9999),))
    assert (decision.phase, decision.target, decision.mark) == (RolloutPhase.SETTLED, NEW, None)


def test_manual_rollback_needs_no_check_and_is_confirmed_again() -> None:
    """From B back to A, which was good: A is applied at once, and counts as newest only when it has worked again."""
    older, newer = good(NEW, NOW - 9000), good(OLD, NOW - 60)
    decision = rollout(older, newer)
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.APPLYING, NEW, False)
    decision = rollout(older, newer, fleet=ready_fleet(revision=NEW))
    assert decision.mark == record(NEW, state=GOOD, since=NOW, checked=True)
    failing = replace(ready_fleet(revision=NEW, ready=1), updated_replicas=1)
    decision = rollout(older, newer, fleet=failing, pods=(late_pod(),))
    assert (decision.phase, decision.target) == (RolloutPhase.REJECTED, OLD)


def test_more_replicas_need_no_check() -> None:
    decision = rollout(good(NEW), wanted_replicas=5, fleet=ready_fleet(revision=NEW))
    assert (decision.phase, decision.target, decision.run_check, decision.mark) == (
        RolloutPhase.SETTLED,
        NEW,
        False,
        None,
    )


def test_suspended_fleet_keeps_its_revision_and_checks_nothing() -> None:
    decision = rollout(good(), wanted_replicas=0)
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.HELD, OLD, False)
    assert rollout(wanted_replicas=0, fleet=None).target is None


def test_blocked_group_keeps_its_fleet_and_reports_the_reason() -> None:
    blocked = Problem("ClusterNotFound", "create it")
    decision = rollout(good(), wanted=None, blocked=blocked)
    assert (decision.phase, decision.target, decision.cause) == (RolloutPhase.HELD, OLD, blocked)
    assert rollout(wanted=None, blocked=blocked, fleet=None).target is None


def test_second_revision_replaces_a_first_one_that_never_worked() -> None:
    stuck = record(OLD, checked=True)
    decision = rollout(stuck, record(NEW), checks=(check(),), fleet=ready_fleet(revision=OLD, ready=0))
    assert decision.target == OLD
    decision = rollout(stuck, record(NEW, checked=True), fleet=ready_fleet(revision=OLD, ready=0))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)


def test_only_needed_revisions_are_kept() -> None:
    """Wanted, running, and the last good one stay; so does one that a pod still uses."""
    records = (good(OLD, NOW - 50), good("c" * 10, NOW - 900), record("d" * 10), record("e" * 10, state=REJECTED))
    leaving = (PodFacts(name="orders-0", revision="d" * 10, ordinal=0, deleting=True),)
    decision = rollout(*records, record(NEW), checks=(check(),), pods=leaving)
    assert decision.prune == ("c" * 10, "e" * 10)


def test_last_good_revision_is_kept_after_the_next_one_is_good() -> None:
    """It is what the one after that would go back to, were the present one never confirmed again."""
    decision = rollout(good(OLD, NOW - 900), good(NEW, NOW - 50), fleet=ready_fleet(revision=NEW))
    assert decision.prune == ()


def test_checks_of_other_revisions_are_removed() -> None:
    other = check(pod="orders-check-x", revision="x")
    decision = rollout(good(), record(NEW), checks=(check(), other))
    assert decision.delete_checks == ("orders-check-x",)


def test_lost_handler_copy_is_written_again_without_forgetting_the_verdict() -> None:
    noted = replace(good(NEW, NOW - 60), complete=False)
    decision = rollout(noted, fleet=ready_fleet(revision=NEW))
    assert decision.write_revision
    assert decision.mark == noted
