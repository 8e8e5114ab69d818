"""Rollouts, decision by decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.fleet.pod_end import ContainerEnd
from fleet_operator.planning.fleet.rollout import (
    CHECK_RETRY_INSIDE_S,
    CHECK_RETRY_OUTSIDE_S,
    RolloutDecision,
    RolloutPhase,
    decide,
)
from fleet_operator.planning.fleet.rollout_facts import (
    CheckFacts,
    PodFacts,
    RevisionRecord,
    RevisionState,
    RolloutFacts,
)
from fleet_operator.planning.problem import Problem
from tests.unit.planning.builders import NOW, ready_fleet

PROGRESS_DEADLINE_S = 600.0
OLD, NEW = "a" * 10, "b" * 10
GOOD, REFUSED, CANDIDATE = RevisionState.GOOD, RevisionState.REFUSED, RevisionState.CANDIDATE


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
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)
    assert decision.cause == Problem("HandlerImportFailed", "why")
    assert decision.mark == record(NEW, state=REFUSED, since=NOW - 5, reason="HandlerImportFailed", message="why")


def test_refusal_is_noted_only_once() -> None:
    """The failed pod stays for its log; looking at it again writes nothing."""
    noted = record(NEW, state=REFUSED, since=NOW - 5, reason="HandlerImportFailed", message="why")
    decision = rollout(good(), noted, checks=(failed_check(outside=False),))
    assert (decision.phase, decision.target, decision.mark) == (RolloutPhase.REFUSED, OLD, None)
    assert (decision.delete_checks, decision.run_check, decision.delete_pods, decision.prune) == ((), False, (), ())
    assert decision.requeue_after == CHECK_RETRY_INSIDE_S - 5


@pytest.mark.parametrize(("outside", "pause"), [(True, CHECK_RETRY_OUTSIDE_S), (False, CHECK_RETRY_INSIDE_S)])
def test_failed_check_is_repeated_after_its_pause(outside: bool, pause: float) -> None:
    """First the old pod goes, then a new one is made; meanwhile the last answer stands."""
    state, phase = (CANDIDATE, RolloutPhase.CHECK_FAILED) if outside else (REFUSED, RolloutPhase.REFUSED)
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
    noted = record(NEW, state=REFUSED, since=NOW - 700, reason="HandlerImportFailed", message="why")
    decision = rollout(good(), noted, checks=(check(ok=True, finished_at=NOW - 1),))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)
    assert decision.mark == record(NEW, state=CANDIDATE, since=NOW, checked=True)


PULLING = Problem("ImagePullBackOff", "pod orders-1, container worker: Back-off pulling image")


@pytest.mark.parametrize("age", [90.0, 90_000.0])
def test_check_that_waits_for_the_cluster_is_never_refused(age: float) -> None:
    waiting = check(created_at=NOW - age, reason="ImagePullBackOff", message="no such image", waits=PULLING)
    decision = rollout(good(), record(NEW), checks=(waiting,))
    assert (decision.phase, decision.target, decision.mark) == (RolloutPhase.CHECKING, OLD, None)
    assert (decision.waits, decision.delete_checks) == (PULLING, ())


def test_check_that_can_never_start_is_refused_after_a_minute() -> None:
    def decide_at(age: float) -> RolloutDecision:
        stuck = check(created_at=NOW - age, reason="InvalidImageName", message="what is that")
        return rollout(good(), record(NEW), checks=(stuck,), request="r1")

    assert decide_at(59).phase is RolloutPhase.CHECKING
    decision = decide_at(61)
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)
    assert decision.mark is not None
    assert (decision.mark.state, decision.mark.reason, decision.mark.request) == (REFUSED, "InvalidImageName", "r1")


@pytest.mark.parametrize(
    ("why", "ran", "change", "phase"),
    [
        ("the check has time left", 299.0, {}, RolloutPhase.CHECKING),
        ("the check hangs", 300.0, {}, RolloutPhase.REFUSED),
        ("its deadline was raised", 300.0, {"check_deadline_s": 400.0}, RolloutPhase.CHECKING),
        ("the machine was suspended", 90_000.0, {"watched_since": NOW - 10}, RolloutPhase.CHECKING),
    ],
)
def test_time_of_a_check_counts_from_the_start_of_its_container(
    why: str, ran: float, change: Mapping[str, Any], phase: RolloutPhase
) -> None:
    running = check(created_at=NOW - 100_000, started_at=NOW - ran)
    decision = rollout(good(), record(NEW), checks=(running,), **change)
    assert (decision.phase, decision.target) == (phase, OLD), why
    if phase is RolloutPhase.REFUSED:
        assert decision.cause is not None
        assert decision.cause.reason == "CheckDeadlineExceeded"


def test_answer_of_a_check_counts_after_its_deadline_too() -> None:
    late = record(NEW, state=REFUSED, since=NOW - 100, reason="CheckDeadlineExceeded", message="hangs")
    running = check(started_at=NOW - 400, created_at=NOW - 500)
    decision = rollout(good(), late, checks=(running,))
    assert (decision.phase, decision.mark, decision.delete_checks) == (RolloutPhase.REFUSED, None, ())
    decision = rollout(good(), late, checks=(replace(running, ok=True, finished_at=NOW),))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)
    replaced = rollout(good(), replace(late, since=NOW - 600), checks=(replace(running, started_at=NOW - 900),))
    assert replaced.delete_checks == (running.pod,)


@pytest.mark.parametrize("reason", ["HandlerImportFailed", "ProgressDeadlineExceeded"])
def test_refused_revision_is_tried_again_when_asked_for_anew(reason: str) -> None:
    """The old check goes first: its answer would refuse the revision again."""
    refused = record(NEW, state=REFUSED, since=NOW - 60, reason=reason, message="why", request="r1")
    old_check = failed_check(outside=False, finished_at=NOW - 60)
    same = rollout(good(), refused, request="r1")
    assert (same.phase, same.mark, same.run_check) == (RolloutPhase.REFUSED, None, False)
    first = rollout(good(), refused, request="r2", checks=(old_check,))
    assert (first.phase, first.target, first.mark) == (RolloutPhase.REFUSED, OLD, None)
    assert first.delete_checks == (old_check.pod,)
    gone = rollout(good(), refused, request="r2", checks=(replace(old_check, deleting=True),))
    assert (gone.mark, gone.delete_checks) == (None, ())
    second = rollout(good(), refused, request="r2")
    assert second.mark is not None
    assert second.mark == RevisionRecord(hash=NEW, request="r2")
    third = rollout(good(), second.mark, request="r2")
    assert (third.phase, third.run_check) == (RolloutPhase.CHECKING, True)


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
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)
    assert decision.mark is not None
    assert (decision.mark.state, decision.mark.reason) == (REFUSED, "ProgressDeadlineExceeded")
    assert "orders-1" in decision.mark.message
    assert "CrashLoopBackOff: KeyError: x" in decision.mark.message


@pytest.mark.parametrize("reason", ["", "CrashLoopBackOff"])
def test_refusal_of_a_pod_whose_container_dies_says_how(reason: str) -> None:
    """The pod is replaced and its log with it. Between two deaths it runs, and the kubelet gives no reason."""
    end = ContainerEnd(container="worker", exit_code=3, said="no licence")
    decision = rolling(pods=(replace(late_pod(), reason=reason, ended=end),))
    assert decision.mark is not None
    assert decision.mark.message.endswith(": container worker ended (exit code 3): no licence")


def test_pods_of_the_refused_revision_go_after_the_statefulset_was_turned_back() -> None:
    """Its controller would wait for them for ever."""
    refused = record(NEW, state=REFUSED, since=NOW, reason="ProgressDeadlineExceeded", message="late", checked=True)
    not_yet = rollout(good(), refused, fleet=ready_fleet(revision=NEW), pods=(late_pod(),))
    assert (not_yet.target, not_yet.delete_pods) == (OLD, ())
    turned = rollout(good(), refused, fleet=ready_fleet(revision=OLD), pods=(late_pod(), late_pod(revision=OLD)))
    assert (turned.target, turned.delete_pods, turned.prune) == (OLD, ("orders-1",), ())


def test_revision_refused_for_its_deadline_is_not_tried_again() -> None:
    refused = record(NEW, state=REFUSED, since=NOW - 90_000, reason="ProgressDeadlineExceeded", checked=True)
    decision = rollout(good(), refused)
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.REFUSED, OLD, False)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("the pod has time left", {"pods": (late_pod(PROGRESS_DEADLINE_S - 1),)}),
        ("the pod is an old one", {"pods": (late_pod(revision=OLD),)}),
        ("the pod is going away", {"pods": (replace(late_pod(), deleting=True),)}),
        ("Kafka does not answer", {"outside_ok": False}),
        ("Kafka has just come back, or the clock has jumped", {"watched_since": NOW - 10}),
        ("the group is being rebalanced", {"patience_s": 300.0}),
    ],
)
def test_late_pod_is_forgiven(why: str, change: Mapping[str, Any]) -> None:
    decision = rolling(**change)
    assert (decision.phase, decision.target, decision.mark) == (RolloutPhase.WAITING, NEW, None), why


@pytest.mark.parametrize(
    ("why", "restarts", "started", "late"),
    [
        ("its image took an hour, and it runs for a minute", 0, 60.0, False),
        ("it runs and is not ready", 0, 600.0, True),
        ("its image took an hour, and it died once", 1, 60.0, False),
        ("it has been in a crash loop for long", 7, 60.0, True),
        ("it has been in a crash loop for a while", 5, 60.0, False),
    ],
)
def test_time_that_a_pod_was_pulled_for_does_not_count(why: str, restarts: int, started: float, late: bool) -> None:
    pod = replace(late_pod(4000.0), started_at=NOW - started, restarts=restarts)
    phase = RolloutPhase.REFUSED if late else RolloutPhase.WAITING
    assert rolling(pods=(pod,)).phase is phase, why


def test_time_in_a_crash_loop_is_never_more_than_the_age_of_the_pod() -> None:
    assert rolling(pods=(replace(late_pod(100.0), started_at=NOW - 5, restarts=900),)).phase is RolloutPhase.WAITING


def test_pod_that_waits_for_the_cluster_is_never_late() -> None:
    decision = rolling(pods=(replace(late_pod(1_000_000.0), waits=PULLING),))
    assert (decision.phase, decision.target, decision.waits) == (RolloutPhase.WAITING, NEW, PULLING)


def test_pods_that_the_cluster_does_not_create_are_waited_for() -> None:
    fleet = replace(ready_fleet(revision=NEW), current_replicas=1, updated_replicas=1, available_replicas=1)
    decision = rollout(good(), record(NEW, checked=True), fleet=fleet)
    assert decision.waits is not None
    assert (decision.phase, decision.waits.reason) == (RolloutPhase.WAITING, "PodsNotCreated")


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
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)


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
    records = (good(OLD, NOW - 50), good("c" * 10, NOW - 900), record("d" * 10), record("e" * 10, state=REFUSED))
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
