"""Rollouts, decision by decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.fleet.pod_end import ContainerEnd
from fleet_operator.planning.fleet.rollout import (
    RolloutDecision,
    RolloutPhase,
)
from fleet_operator.planning.fleet.rollout_facts import (
    PodFacts,
    RevisionRecord,
    Watched,
)
from fleet_operator.planning.problem import Problem
from tests.unit.planning.builders import NOW, ready_fleet
from tests.unit.planning.fleet.rollouts import (
    GOOD,
    NEW,
    OLD,
    PROGRESS_DEADLINE_S,
    PULLING,
    REFUSED,
    check,
    good,
    record,
    rollout,
    watched,
)


def test_checked_revision_is_not_checked_again_after_a_restart() -> None:
    """Killed between the verdict and the StatefulSet: the verdict is enough to go on."""
    decision = rollout(good(), record(NEW, checked=True, since=NOW - 3))
    assert (decision.phase, decision.target, decision.run_check, decision.new_record) == (
        RolloutPhase.APPLYING,
        NEW,
        False,
        None,
    )


def test_fleet_is_good_once_all_pods_are_new_and_available() -> None:
    checked = record(NEW, checked=True)
    decision = rollout(good(), checked, fleet=ready_fleet(revision=NEW))
    assert decision.phase is RolloutPhase.SETTLED
    assert decision.new_record == record(NEW, state=GOOD, since=NOW, checked=True)


def test_last_good_revision_is_found_despite_times_of_a_fast_clock() -> None:
    ahead, fleet = good(since=NOW + 300), ready_fleet(revision=NEW)
    first = rollout(ahead, record(NEW, checked=True), fleet=fleet)
    assert first.new_record is not None
    assert first.new_record.since == NOW + 301
    second = rollout(ahead, good(NEW, since=first.new_record.since), fleet=fleet)
    assert (second.phase, second.new_record) == (RolloutPhase.SETTLED, None)


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
    assert (decision.phase, decision.new_record) == (RolloutPhase.WAITING, None), why


def late_pod(revision: str = NEW) -> PodFacts:
    return PodFacts(
        name="orders-1",
        revision=revision,
        ordinal=1,
        uid="p1",
        ready=False,
        reason="CrashLoopBackOff",
        message="KeyError: x",
    )


def rolling(**changes: Any) -> RolloutDecision:
    """NEW is being rolled out: one of two pods has it and is not ready in time."""
    fleet = replace(ready_fleet(revision=NEW, ready=1), updated_replicas=1)
    base: dict[str, Any] = {"fleet": fleet, "pods": (late_pod(),), "watched": watched(p1=PROGRESS_DEADLINE_S)}
    return rollout(good(), record(NEW, checked=True), **(base | changes))


def test_last_good_revision_returns_when_the_first_updated_pod_is_late() -> None:
    decision = rolling()
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)
    assert decision.new_record is not None
    assert (decision.new_record.state, decision.new_record.reason) == (REFUSED, "ProgressDeadlineExceeded")
    assert "orders-1" in decision.new_record.message
    assert "CrashLoopBackOff: KeyError: x" in decision.new_record.message


@pytest.mark.parametrize("reason", ["", "CrashLoopBackOff"])
def test_refusal_of_a_pod_whose_container_dies_says_how(reason: str) -> None:
    """The pod is replaced and its log with it. Between two deaths it runs, and the kubelet gives no reason."""
    end = ContainerEnd(container="worker", exit_code=3, said="no licence")
    decision = rolling(pods=(replace(late_pod(), reason=reason, ended=end),))
    assert decision.new_record is not None
    assert decision.new_record.message.endswith(": container worker ended (exit code 3): no licence")


def test_pods_of_the_refused_revision_go_after_the_statefulset_was_turned_back() -> None:
    """Its controller would wait for them indefinitely."""
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
        ("the pod has time left", {"watched": watched(p1=PROGRESS_DEADLINE_S - 1)}),
        ("the pod is an old one", {"pods": (late_pod(revision=OLD),)}),
        ("the pod is going away", {"pods": (replace(late_pod(), deleting=True),)}),
        ("the pod waits for the cluster", {"pods": (replace(late_pod(), waits=PULLING),)}),
        ("its deadline was raised", {"progress_deadline_s": 900.0}),
        ("the group is being rebalanced", {"patience_s": 300.0}),
    ],
)
def test_late_pod_is_forgiven(why: str, change: Mapping[str, Any]) -> None:
    decision = rolling(**change)
    assert (decision.phase, decision.target, decision.new_record) == (RolloutPhase.WAITING, NEW, None), why


@pytest.mark.parametrize(
    ("why", "change", "reason"),
    [
        ("an image is pulled", {"pods": (replace(late_pod(), waits=PULLING),)}, "ImagePullBackOff"),
        ("Kafka is silent", {"outside_ok": False, "watched": Watched()}, "BrokerUnreachable"),
        (
            "a node is silent",
            {"pods": (replace(late_pod(OLD), deleting=True),), "watched": watched(**{"lingering p1": 100})},
            "PodTerminating",
        ),
    ],
)
def test_rollout_that_the_cluster_holds_up_names_the_cause(why: str, change: Mapping[str, Any], reason: str) -> None:
    decision = rolling(**change)
    assert decision.waits is not None, why
    assert (decision.phase, decision.target, decision.waits.reason) == (RolloutPhase.WAITING, NEW, reason), why


def test_pods_that_the_cluster_does_not_create_are_waited_for() -> None:
    fleet = replace(ready_fleet(revision=NEW), current_replicas=1, updated_replicas=1, available_replicas=1)
    first = rollout(good(), record(NEW, checked=True), fleet=fleet)
    assert (first.phase, first.waits) == (RolloutPhase.WAITING, None)
    decision = rollout(good(), record(NEW, checked=True), fleet=fleet, watched=watched(**{"missing pods": 10}))
    assert decision.waits is not None
    assert (decision.phase, decision.waits.reason) == (RolloutPhase.WAITING, "PodsNotCreated")


def test_without_a_good_revision_there_is_nothing_to_go_back_to() -> None:
    fleet = replace(ready_fleet(revision=NEW, ready=0))
    decision = rollout(record(NEW, checked=True), fleet=fleet, pods=(late_pod(),), watched=watched(p1=600))
    assert (decision.phase, decision.target, decision.new_record) == (RolloutPhase.WAITING, NEW, None)
    assert decision.cause is not None
    assert decision.cause.reason == "ProgressDeadlineExceeded"


def test_settled_fleet_is_never_turned_back() -> None:
    """A pod that cannot start on a broken node proves nothing against a revision that has worked."""
    fleet = ready_fleet(revision=NEW, ready=1)
    decision = rollout(good(), good(NEW, NOW - 60), fleet=fleet, pods=(late_pod(),), watched=watched(p1=9999))
    assert (decision.phase, decision.target, decision.new_record) == (RolloutPhase.SETTLED, NEW, None)


def test_manual_rollback_needs_no_check_and_is_confirmed_again() -> None:
    """From B back to A, which was good: A is applied at once, and counts as newest only when it has worked again."""
    older, newer = good(NEW, NOW - 9000), good(OLD, NOW - 60)
    decision = rollout(older, newer)
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.APPLYING, NEW, False)
    decision = rollout(older, newer, fleet=ready_fleet(revision=NEW))
    assert decision.new_record == record(NEW, state=GOOD, since=NOW, checked=True)
    failing = replace(ready_fleet(revision=NEW, ready=1), updated_replicas=1)
    decision = rollout(older, newer, fleet=failing, pods=(late_pod(),), watched=watched(p1=600))
    assert (decision.phase, decision.target) == (RolloutPhase.REFUSED, OLD)


def test_return_to_the_good_revision_in_the_middle_of_a_rollout_ends_with_the_last_pod_of_the_other() -> None:
    """Tools that wait would take the fleet for turned back while it runs what was taken back."""
    newer, older = (
        PodFacts(name="orders-1", revision=NEW, ordinal=1, ready=False),
        PodFacts(name="orders-0", revision=OLD, ordinal=0),
    )
    records = good(), record(NEW, checked=True)
    begun = rollout(*records, wanted=OLD, fleet=ready_fleet(revision=NEW), pods=(older, newer))
    assert (begun.phase, begun.target, begun.new_record) == (RolloutPhase.APPLYING, OLD, None)
    fleet = ready_fleet(revision=OLD)
    going = rollout(*records, wanted=OLD, fleet=fleet, pods=(older, newer))
    assert (going.phase, going.target, going.requeue_after) == (RolloutPhase.WAITING, OLD, 5.0)
    leaving = rollout(*records, wanted=OLD, fleet=fleet, pods=(older, replace(newer, deleting=True)))
    assert leaving.phase is RolloutPhase.WAITING
    unready = replace(older, name="orders-1", ordinal=1, ready=False)
    assert rollout(*records, wanted=OLD, fleet=fleet, pods=(older, unready)).phase is RolloutPhase.SETTLED


def test_good_revision_without_a_statefulset_is_applied() -> None:
    assert rollout(good(NEW), fleet=None).phase is RolloutPhase.APPLYING


def test_more_replicas_need_no_check() -> None:
    decision = rollout(good(NEW), wanted_replicas=5, fleet=ready_fleet(revision=NEW))
    assert (decision.phase, decision.target, decision.run_check, decision.new_record) == (
        RolloutPhase.SETTLED,
        NEW,
        False,
        None,
    )


def test_suspended_fleet_keeps_its_revision_and_checks_nothing() -> None:
    decision = rollout(good(), wanted_replicas=0)
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.HELD, OLD, False)
    assert rollout(wanted_replicas=0, fleet=None).target is None
    assert rollout(good(), wanted_replicas=0, fleet=None).target is None


def test_fleet_at_rest_shows_a_refusal_and_is_at_the_last_good_revision() -> None:
    """The number of workers asks for nothing: a refused revision is refused with none of them, too."""
    late = "ProgressDeadlineExceeded"
    refused = record(NEW, state=REFUSED, since=NOW, reason=late, message="late", checked=True, request="r1")
    decision = rollout(good(), refused, wanted_replicas=0, request="r1", fleet=ready_fleet(revision=NEW, ready=0))
    assert (decision.phase, decision.target, decision.cause) == (RolloutPhase.REFUSED, OLD, Problem(late, "late"))
    assert decision.new_record is None
    asked = rollout(good(), refused, wanted_replicas=0, request="r2")
    assert (asked.phase, asked.target, asked.cause) == (RolloutPhase.HELD, OLD, None)


def test_fleet_at_rest_amid_a_rollout_starts_again_at_the_last_good_revision() -> None:
    """A StatefulSet makes all missing pods at its newest template: an unproven one would take the fleet down."""
    records = good(), record(NEW, checked=True)
    resting = rollout(*records, wanted_replicas=0, fleet=ready_fleet(revision=NEW, ready=0))
    assert (resting.phase, resting.target) == (RolloutPhase.HELD, OLD)
    none = replace(ready_fleet(revision=OLD), replicas=0, current_replicas=0)
    made = replace(ready_fleet(revision=OLD, ready=0), updated_replicas=2)
    leaving = tuple(PodFacts(name=f"orders-{n}", revision=OLD, ordinal=n, deleting=True) for n in (0, 1))
    for why, fleet, pods in (
        ("no pods are wanted yet", none, ()),
        ("the controller has not seen the number", replace(made, observed=False), ()),
        ("no pod is made yet", replace(made, current_replicas=0), ()),
        ("all pods are those of before", made, leaving),
    ):
        decision = rollout(*records, fleet=fleet, pods=pods)
        assert (decision.phase, decision.target) == (RolloutPhase.APPLYING, OLD), why
    assert rollout(*records, fleet=made).target == NEW, "one after the other from here on"
    nowhere = watched(**{"missing pods": 10})
    assert rollout(*records, fleet=replace(made, current_replicas=0), watched=nowhere).target == NEW, "a quota"
    assert rollout(record(OLD), record(NEW, checked=True), fleet=none).target == NEW, "nothing good to start at"


def test_lost_record_of_the_revision_that_runs_turns_nothing_back() -> None:
    """Somebody deleted its ConfigMap. An older good revision on record is no reason to roll the fleet."""
    older, fleet = good(OLD), ready_fleet(revision=NEW, ready=1)
    decision = rollout(older, fleet=fleet)
    assert (decision.phase, decision.target, decision.run_check) == (RolloutPhase.WAITING, NEW, False)
    assert (decision.new_record, decision.write_revision) == (RevisionRecord(hash=NEW, checked=True), True)
    confirmed = rollout(older, fleet=ready_fleet(revision=NEW))
    assert confirmed.phase is RolloutPhase.SETTLED
    assert confirmed.new_record is not None
    assert confirmed.new_record.state is GOOD


@pytest.mark.parametrize("runs", [NEW, OLD, "c" * 10])
@pytest.mark.parametrize("records", [(), (record(NEW),)])
def test_fleet_is_stopped_although_the_record_of_what_runs_is_lost(runs: str, records: tuple[RevisionRecord]) -> None:
    decision = rollout(*records, wanted_replicas=0, fleet=ready_fleet(revision=runs))
    assert (decision.phase, decision.target) == (RolloutPhase.HELD, NEW)
    assert decision.write_revision is not bool(records)
    assert rollout(good(), wanted_replicas=0, fleet=ready_fleet(revision="c" * 10)).target == OLD


def test_refusal_is_remembered_while_it_is_unknown_what_is_wanted() -> None:
    """The handler's ConfigMap is created again: a revision whose pods were late would take a worker once more."""
    late = record(NEW, state=REFUSED, since=NOW, reason="ProgressDeadlineExceeded", message="late", checked=True)
    assert rollout(good(), late, wanted=None, blocked=Problem("HandlerSourceNotFound", "create it")).prune == ()


def test_return_is_complete_only_once_the_controller_has_seen_it() -> None:
    """It may have deleted a pod for the other revision, and make it at that one."""
    unseen = replace(ready_fleet(revision=OLD), observed=False)
    decision = rollout(good(), record(NEW, checked=True), wanted=OLD, fleet=unseen)
    assert (decision.phase, decision.target) == (RolloutPhase.WAITING, OLD)


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


def test_lost_handler_copy_is_written_again_without_forgetting_the_verdict() -> None:
    recorded = replace(good(NEW, NOW - 60), complete=False)
    decision = rollout(recorded, fleet=ready_fleet(revision=NEW))
    assert decision.write_revision
    assert decision.new_record == recorded
