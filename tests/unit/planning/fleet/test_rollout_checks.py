"""Checks of revisions, their refusals, and other tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.fleet.deadlines import watch
from fleet_operator.planning.fleet.rollout import (
    CHECK_RETRY_INSIDE_S,
    CHECK_RETRY_OUTSIDE_S,
    RolloutDecision,
    RolloutPhase,
)
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord, RolloutFacts, Watched
from fleet_operator.planning.problem import Problem
from tests.unit.planning.builders import NOW
from tests.unit.planning.fleet.rollouts import (
    CANDIDATE,
    NEW,
    OLD,
    PULLING,
    REFUSED,
    check,
    failed_check,
    good,
    record,
    rollout,
    watched,
)


def test_new_revision_is_recorded_and_checked_before_anything_else() -> None:
    decision = rollout(fleet=None)
    assert (decision.phase, decision.target) == (RolloutPhase.CHECKING, None)
    assert decision.write_revision
    assert decision.new_record == RevisionRecord(hash=NEW)
    assert decision.run_check


def test_old_fleet_stays_while_the_new_revision_is_checked() -> None:
    decision = rollout(good(), record(NEW), checks=(check(),))
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.CHECKING, OLD, False)


def test_passed_check_is_marked_and_the_fleet_moves() -> None:
    decision = rollout(good(), record(NEW), checks=(check(ok=True),))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)
    assert decision.new_record == record(NEW, state=CANDIDATE, since=NOW, checked=True)
    assert decision.delete_checks == (f"orders-check-{NEW}",)


def test_refused_revision_leaves_the_old_fleet() -> None:
    decision = rollout(good(), record(NEW), checks=(failed_check(outside=False),))
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)
    assert decision.cause == Problem("HandlerImportFailed", "why")
    assert decision.new_record == record(
        NEW, state=REFUSED, since=NOW, reason="HandlerImportFailed", message="why", check="c1"
    )


def test_refusal_is_recorded_only_once() -> None:
    """The failed pod stays for its log; another check writes nothing."""
    recorded = record(NEW, state=REFUSED, since=NOW - 5, reason="HandlerImportFailed", message="why", check="c1")
    decision = rollout(good(), recorded, checks=(failed_check(outside=False),))
    assert (decision.phase, decision.target, decision.new_record) == (RolloutPhase.REFUSED, OLD, None)
    assert (decision.delete_checks, decision.run_check, decision.delete_pods, decision.prune) == ((), False, (), ())
    assert decision.requeue_after == CHECK_RETRY_INSIDE_S - 5


@pytest.mark.parametrize(("outside", "pause"), [(True, CHECK_RETRY_OUTSIDE_S), (False, CHECK_RETRY_INSIDE_S)])
def test_failed_check_is_repeated_after_its_pause(outside: bool, pause: float) -> None:
    """First the old pod goes, then a new one is made; meanwhile the last answer stands."""
    state, phase = (CANDIDATE, RolloutPhase.CHECK_FAILED) if outside else (REFUSED, RolloutPhase.REFUSED)
    ended = NOW - pause
    recorded = record(NEW, state=state, since=ended, reason="R", message="why", check="c1")
    old_check = failed_check(outside=outside)
    decision = rollout(good(), recorded, checks=(old_check,))
    assert (decision.delete_checks, decision.run_check) == ((old_check.pod,), False)
    decision = rollout(good(), recorded, checks=(replace(old_check, deleting=True),))
    assert (decision.delete_checks, decision.run_check) == ((), False)
    decision = rollout(good(), recorded)
    assert (decision.run_check, decision.phase, decision.cause) == (True, phase, Problem("R", "why"))
    decision = rollout(good(), recorded, checks=(check(),))
    assert (decision.run_check, decision.phase, decision.cause) == (False, phase, Problem("R", "why"))


def test_removed_check_pod_does_not_shorten_the_pause() -> None:
    recorded = record(NEW, since=NOW - 10, reason="BrokerUnreachable", message="why")
    decision = rollout(good(), recorded)
    assert (decision.run_check, decision.requeue_after) == (False, CHECK_RETRY_OUTSIDE_S - 10)


def test_answer_recorded_by_a_clock_that_is_ahead_delays_nothing() -> None:
    recorded = record(NEW, since=NOW + 9000, reason="BrokerUnreachable", message="why", check="c0")
    assert rollout(good(), recorded).run_check
    decision = rollout(good(), recorded, checks=(failed_check(outside=True),))
    assert decision.new_record is not None
    assert (decision.new_record.since, decision.new_record.check) == (NOW, "c1")


def test_check_that_passes_at_last_clears_the_refusal() -> None:
    recorded = record(NEW, state=REFUSED, since=NOW - 700, reason="HandlerImportFailed", message="why")
    decision = rollout(good(), recorded, checks=(check(ok=True),))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)
    assert decision.new_record == record(NEW, state=CANDIDATE, since=NOW, checked=True)


@pytest.mark.parametrize("started", [False, True])
def test_check_that_waits_for_the_cluster_is_never_refused(started: bool) -> None:
    waiting = check(started=started, reason="ImagePullBackOff", message="no such image", waits=PULLING)
    decision = rollout(good(), record(NEW), checks=(waiting,), watched=watched(c2=1e9))
    assert (decision.phase, decision.target, decision.new_record) == (RolloutPhase.CHECKING, OLD, None)
    assert (decision.waits, decision.delete_checks) == (PULLING, ())


def test_check_that_can_never_start_is_refused_after_a_minute() -> None:
    def decide_after(seconds: float) -> RolloutDecision:
        stuck = check(reason="InvalidImageName", message="what is that")
        return rollout(good(), record(NEW), checks=(stuck,), request="r1", watched=watched(c2=seconds))

    assert decide_after(59).phase is RolloutPhase.CHECKING
    decision = decide_after(60)
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)
    assert decision.new_record is not None
    assert (decision.new_record.state, decision.new_record.reason, decision.new_record.request) == (
        REFUSED,
        "InvalidImageName",
        "r1",
    )


@pytest.mark.parametrize(
    ("why", "ran", "change", "phase"),
    [
        ("the check has time left", 299.0, {}, RolloutPhase.CHECKING),
        ("the check hangs", 300.0, {}, RolloutPhase.REFUSED),
        ("its deadline was raised", 300.0, {"check_deadline_s": 400.0}, RolloutPhase.CHECKING),
    ],
)
def test_check_that_hangs_is_refused(why: str, ran: float, change: Mapping[str, Any], phase: RolloutPhase) -> None:
    decision = rollout(good(), record(NEW), checks=(check(started=True),), watched=watched(c2=ran), **change)
    assert (decision.phase, decision.target) == (phase, OLD), why
    if phase is RolloutPhase.REFUSED:
        assert decision.cause is not None
        assert decision.cause.reason == "CheckDeadlineExceeded"


def test_answer_of_a_check_counts_after_its_deadline_too() -> None:
    late = record(NEW, state=REFUSED, since=NOW - 100, reason="CheckDeadlineExceeded", message="hangs", check="c2")
    hangs = watched(c2=400)
    decision = rollout(good(), late, checks=(check(started=True),), watched=hangs)
    assert (decision.phase, decision.new_record, decision.delete_checks) == (RolloutPhase.REFUSED, None, ())
    decision = rollout(good(), late, checks=(check(ok=True),))
    assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, NEW)
    running = check(started=True)
    replaced = rollout(good(), replace(late, since=NOW - 600), checks=(running,), watched=hangs)
    assert replaced.delete_checks == (running.pod,)


def test_check_pod_that_its_kubelet_does_not_end_is_reported() -> None:
    leaving = check(deleting=True)
    assert rollout(good(), record(NEW), checks=(leaving,)).waits is None
    stuck = rollout(good(), record(NEW), checks=(leaving,), watched=watched(**{"lingering c2": 60}))
    assert stuck.waits is not None
    assert (stuck.phase, stuck.waits.reason) == (RolloutPhase.CHECKING, "PodTerminating")


@pytest.mark.parametrize("reason", ["HandlerImportFailed", "ProgressDeadlineExceeded"])
def test_refused_revision_is_tried_again_on_request(reason: str) -> None:
    """The old check goes first: its answer would refuse the revision again."""
    refused = record(NEW, state=REFUSED, since=NOW - 60, reason=reason, message="why", request="r1")
    old_check = failed_check(outside=False)
    same = rollout(good(), refused, request="r1")
    assert (same.phase, same.new_record, same.run_check) == (RolloutPhase.REFUSED, None, False)
    first = rollout(good(), refused, request="r2", checks=(old_check,))
    assert (first.phase, first.target, first.new_record, first.cause) == (RolloutPhase.CHECKING, OLD, None, None)
    assert first.delete_checks == (old_check.pod,)
    gone = rollout(good(), refused, request="r2", checks=(replace(old_check, deleting=True),))
    assert (gone.new_record, gone.delete_checks) == (None, ())
    second = rollout(good(), refused, request="r2")
    assert second.new_record is not None
    assert second.new_record == RevisionRecord(hash=NEW, request="r2")
    third = rollout(good(), second.new_record, request="r2")
    assert (third.phase, third.run_check) == (RolloutPhase.CHECKING, True)


def test_refused_revision_is_tried_again_when_it_is_wanted_after_another_one() -> None:
    """The one before is known until the next check, so the record says it first."""
    refused = record(NEW, state=REFUSED, since=NOW - 60, reason="HandlerImportFailed", message="why", request="r1")
    first = rollout(good(), refused, request="r1", wanted_before=OLD)
    assert (first.phase, first.target, first.run_check) == (RolloutPhase.CHECKING, OLD, False)
    assert first.new_record == replace(refused, request="")
    assert first.new_record is not None
    again: tuple[str | None, ...] = (OLD, NEW, None)
    for before in again:
        second = rollout(good(), first.new_record, request="r1", wanted_before=before)
        assert second.new_record == RevisionRecord(hash=NEW, request="r1")
    for before in again[1:]:
        assert rollout(good(), refused, request="r1", wanted_before=before).new_record is None


def test_check_that_nobody_asked_for_takes_no_refusal_back_while_kafka_is_away() -> None:
    refused = record(NEW, state=REFUSED, since=NOW - 700, reason="HandlerImportFailed", message="no", request="r1")
    decision = rollout(good(), refused, request="r1", checks=(failed_check(outside=True),))
    assert (decision.phase, decision.cause) == (RolloutPhase.REFUSED, Problem("HandlerImportFailed", "no"))
    assert decision.new_record == replace(refused, since=NOW, check="c1")
    assert decision.requeue_after == CHECK_RETRY_INSIDE_S


def test_init_container_that_fails_again_is_refused() -> None:
    """Once may be a database that comes a moment later."""
    failed = check(uid="c1", ok=False, outside=True, reason="InitContainerFailed", message="init container x ended")
    first = rollout(good(), record(NEW), checks=(failed,))
    assert (first.phase, first.target) == (RolloutPhase.CHECK_FAILED, OLD)
    assert first.new_record is not None
    second = rollout(
        good(), replace(first.new_record, since=NOW - 60), checks=(replace(failed, uid="c2"),), request="r1"
    )
    assert (second.phase, second.target) == (RolloutPhase.REFUSED, OLD)
    assert second.new_record is not None
    assert (second.new_record.state, second.new_record.message, second.new_record.request) == (
        REFUSED,
        "init container x ended",
        "r1",
    )


def test_other_try_behind_a_check_pod_that_does_not_go_says_so() -> None:
    refused = record(NEW, state=REFUSED, since=NOW - 60, reason="HandlerImportFailed", message="why", request="r1")
    stuck = replace(failed_check(outside=False), deleting=True)
    decision = rollout(good(), refused, request="r2", checks=(stuck,), watched=watched(**{"lingering c1": 60}))
    assert decision.waits is not None
    assert (decision.phase, decision.waits.reason, decision.requeue_after) == (
        RolloutPhase.CHECKING,
        "PodTerminating",
        5.0,
    )


def test_reason_of_a_check_that_is_named_like_a_deadline_is_no_refusal_for_ever() -> None:
    """A handler may end the check with any words."""
    recorded = record(NEW, since=NOW - 60, reason="ProgressDeadlineExceeded", message="its own words", check="c1")
    decision = rollout(good(), recorded)
    assert (decision.phase, decision.run_check) == (RolloutPhase.CHECK_FAILED, True)


def test_checks_of_other_revisions_are_removed() -> None:
    other = check(pod="orders-check-x", revision="x")
    decision = rollout(good(), record(NEW), checks=(check(), other))
    assert decision.delete_checks == ("orders-check-x",)


@pytest.mark.parametrize(("seconds", "told"), [(9, False), (10, True)])
def test_moment_without_containers_is_not_reported(seconds: float, told: bool) -> None:
    starting = check(waits=Problem("PodNotStarted", "not yet"))
    decision = rollout(good(), record(NEW), checks=(starting,), watched=watched(**{"starting c2": seconds, "c2": 9999}))
    assert (decision.phase, decision.waits is not None) == (RolloutPhase.CHECKING, told)


def test_time_in_which_a_check_waits_does_not_count() -> None:
    """An hour for its image, then it runs; during its run the node is silent for an hour."""
    states = [*[check(waits=PULLING)] * 720, *[check(started=True)] * 21, *[check(started=True, waits=PULLING)] * 720]
    counted = Watched()
    for number, state in enumerate(states):
        facts = RolloutFacts(wanted=NEW, wanted_replicas=1, checks=(state,))
        counted = watch(counted, facts, counts=True, tick=5.0 * number)
    assert counted.seconds("c2") == 5 * 21
