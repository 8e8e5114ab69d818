"""Next step and status of a Backfill."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.contract.backfill_ledger import RunProblem, ledger_text
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.planning.backfill.attempts import (
    FAILURES_MAX,
    NEVER_WATCHED,
    OUTAGES_MAX,
    AttemptEnd,
    Verdict,
    Watched,
    end_of,
    end_status,
    judge,
    late_start,
    pause_s,
    read_end,
    stalled,
    subject_of,
    watch,
)
from fleet_operator.planning.backfill.parsing import (
    APART,
    BOTH,
    DriverEnd,
    Progress,
    end_by_message,
    passes_of,
    read_ledger,
    read_pod,
)
from fleet_operator.planning.backfill.phase import LINGER_S, BackfillDecision, decide
from fleet_operator.planning.backfill.spark import NO_APPLICATION, SeenApplication, SparkState
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Act
from tests.unit.planning.backfill.things import RANGE, RANGED, backfill, facts, ledger, progress

RUNNING = SeenApplication(state=SparkState.RUNNING, uid="a-1", taken=True)
FAILED = SeenApplication(state=SparkState.FAILED, uid="a-1", taken=True)
SUBMITTED = SeenApplication(state=SparkState.SUBMITTED, uid="a-1", taken=True)
COMPLETED = SeenApplication(state=SparkState.SUCCEEDED, uid="a-1", taken=True)
COVERED = ledger(remaining={}, ended=True, slices_left=0)


def decided(**changes: Any) -> BackfillDecision:
    return decide(facts(**changes))


def test_nothing_is_made_before_the_range_is_on_record() -> None:
    first = decide(facts(backfill=backfill(), resolved=None, resolution=RANGE, progress=None))
    assert (first.phase, first.resolved, first.attempt, first.act) == ("Resolving", RANGE, None, Act.NOTHING)
    second = decide(facts(backfill=backfill(RANGED)))
    assert (second.phase, second.attempt, second.act) == ("Running", 1, Act.NOTHING)
    third = decided()
    assert (third.phase, third.act) == ("Running", Act.CREATE)


def test_end_of_an_attempt_is_on_record_before_anything_else() -> None:
    ended = decided(application=FAILED, driver=DriverEnd(code=143))
    assert (ended.act, ended.attempt) == (Act.NOTHING, None)
    assert ended.ended is not None
    known = {"lastEnded": end_status(ended.ended)}
    waits = decided(status=known, application=FAILED, since_end=0.0)
    assert (waits.reason, waits.attempt) == ("WaitingToRetry", None)
    following = decided(status=known, application=FAILED)
    assert (following.attempt, following.act) == (2, Act.NOTHING)


def test_given_up_application_is_deleted_once_its_end_is_on_record() -> None:
    late = Watched("x", 0.0, 960.0)
    given_up = decided(application=RUNNING, watched=late)
    assert (given_up.act, given_up.ended is not None and given_up.ended.reason) == (Act.NOTHING, "NoProgress")
    assert given_up.ended is not None
    known = {"lastEnded": end_status(given_up.ended)}
    assert decided(status=known, application=RUNNING).act is Act.DELETE
    leaving = replace(RUNNING, deleting=True)
    assert decided(status=known, application=leaving).reason == "WaitingForLastRun"


def test_application_that_is_over_is_deleted_if_its_pods_stay() -> None:
    """Not at once, as executors need a moment to notice that their driver is gone."""
    ended = decided(application=FAILED, driver=DriverEnd(code=143)).ended
    assert ended is not None
    known = {"lastEnded": end_status(ended)}
    left: dict[str, Any] = {"status": known, "pods_left": ("again-1-driver",)}
    soon = decided(application=FAILED, since_end=LINGER_S - 1, **left)
    assert (soon.reason, soon.act, soon.attempt) == ("WaitingForLastRun", Act.NOTHING, None)
    late = decided(application=FAILED, since_end=LINGER_S, **left)
    assert (late.reason, late.act, late.attempt) == ("WaitingForLastRun", Act.DELETE, None)
    assert "again-1-driver" in late.message
    for application in (replace(FAILED, deleting=True), NO_APPLICATION):
        leaving = decided(application=application, since_end=900.0, **left)
        assert (leaving.reason, leaving.act, leaving.attempt) == ("WaitingForLastRun", Act.NOTHING, None)


def test_application_that_could_not_be_submitted_says_so() -> None:
    refused = replace(FAILED, message="spark-submit failed: TimeoutException", submitted=False)
    ended = decided(application=refused).ended
    assert ended is not None
    assert (ended.reason, ended.message) == ("SubmissionFailed", "spark-submit failed: TimeoutException")


def test_driver_that_has_finished_although_it_hangs_is_not_repeated() -> None:
    done = decided(application=RUNNING, watched=Watched("x", 0.0, 960.0), progress=progress(COVERED, covered=20))
    assert (done.phase, done.reason) == ("Succeeded", "AllHandled")


def test_application_that_is_gone_counts_by_its_ledger() -> None:
    done = decided(known=True, progress=progress(COVERED, covered=20))
    assert (done.phase, done.reason) == ("Succeeded", "AllHandled")
    lost = decided(known=True, progress=progress(ledger()))
    assert lost.ended is not None
    assert lost.ended.reason == "ApplicationGone"


def test_application_that_was_never_seen_is_made_under_the_same_number() -> None:
    assert decided(status={"attempts": 3}, progress=progress(ledger(attempt=2))).act is Act.CREATE


@pytest.mark.parametrize(
    ("application", "note", "driver", "verdict", "reason"),
    [
        (COMPLETED, COVERED, DriverEnd(code=0), Verdict.DONE, "AllHandled"),
        (COMPLETED, ledger(ended=True), DriverEnd(code=0), Verdict.STOPPED, "Stopped"),
        (COMPLETED, ledger(), DriverEnd(code=0), Verdict.FAILED, "EndedWithoutLedger"),
        (COMPLETED, None, None, Verdict.FAILED, "EndedWithoutLedger"),
        (COMPLETED, replace(COVERED, attempt=0), None, Verdict.FAILED, "EndedWithoutLedger"),
        (FAILED, COVERED, DriverEnd(code=1), Verdict.DONE, "AllHandled"),
        (FAILED, ledger(), DriverEnd(code=143), Verdict.FAILED, "DriverFailed"),
        (FAILED, ledger(), DriverEnd(code=20, reason="HandlerNotCallable"), Verdict.HOPELESS, "HandlerNotCallable"),
        (FAILED, ledger(), DriverEnd(code=21, reason="BrokerUnreachable"), Verdict.FAILED, "BrokerUnreachable"),
        (FAILED, ledger(problem=RunProblem(reason="A", message="", final=True)), None, Verdict.HOPELESS, "A"),
        (FAILED, ledger(problem=RunProblem(reason="A", message="m", final=False)), None, Verdict.FAILED, "A"),
        (
            FAILED,
            ledger(attempt=0, problem=RunProblem(reason="A", message="", final=True)),
            None,
            Verdict.FAILED,
            "DriverFailed",
        ),
        (NO_APPLICATION, ledger(), None, Verdict.FAILED, "ApplicationGone"),
    ],
)
def test_verdicts(application: Any, note: Any, driver: DriverEnd | None, verdict: Verdict, reason: str) -> None:
    judged = judge(1, progress(note), application, driver, None, None)
    assert (judged.verdict, judged.problem.reason) == (verdict, reason)
    assert judged.problem.message


def test_message_of_a_failed_submission_is_cut() -> None:
    judged = judge(1, progress(), replace(FAILED, message="x" * 11_000), None, None, None)
    assert len(judged.problem.message) == 512


def end(failures: int, covered: int = 4, attempt: int = 1) -> AttemptEnd:
    return AttemptEnd(attempt=attempt, reason="R", message="m", failures_in_a_row=failures, offsets_covered=covered)


def test_failures_count_on_only_while_nothing_is_done() -> None:
    judged = judge(2, progress(ledger()), FAILED, None, None, None)
    body = backfill({"attempts": 2, "lastEnded": end_status(end(3))})
    assert end_of(body, judged, 4).failures_in_a_row == 4
    assert end_of(body, judged, 5).failures_in_a_row == 1
    stopped = judge(2, progress(ledger(attempt=2, ended=True)), COMPLETED, None, None, None)
    assert end_of(body, stopped, 4).failures_in_a_row == 0


def test_pauses_grow_up_to_five_minutes() -> None:
    assert [pause_s(end(n)) for n in (0, 1, 2, 3, 4, 5, 6, 50)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_too_many_failures_end_it() -> None:
    known = {"attempts": 5, "lastEnded": end_status(end(FAILURES_MAX - 1, attempt=4))}
    last = decided(status=known, application=FAILED, driver=DriverEnd(code=21, reason="ExecutorLost"))
    assert (last.phase, last.reason) == ("Failed", "ExecutorLost")
    assert f"{FAILURES_MAX}th in a row" in last.message


def test_outage_is_borne_for_longer() -> None:
    away = DriverEnd(code=21, reason="BrokerUnreachable")
    known = {"attempts": 9, "lastEnded": end_status(end(OUTAGES_MAX - 2, attempt=8))}
    assert decided(status=known, application=FAILED, driver=away).phase == "Running"
    known = {"attempts": 10, "lastEnded": end_status(end(OUTAGES_MAX - 1, attempt=9))}
    assert decided(status=known, application=FAILED, driver=away).phase == "Failed"
    assert sum(pause_s(end(n)) for n in range(1, OUTAGES_MAX)) > 1500


LATE = Watched("x", 0.0, 300.0)


@pytest.mark.parametrize(
    ("taken", "phase", "reason"),
    [(True, "Running", "WaitingToRetry"), (False, "Pending", "SparkOperatorNotResponding")],
)
def test_late_start_is_a_failed_attempt_and_never_the_end_once_something_was_done(
    taken: bool, phase: str, reason: str
) -> None:
    away = replace(SUBMITTED, taken=taken)
    status: dict[str, Any] = {"attempts": 1}
    for attempt in range(1, 3 * OUTAGES_MAX):
        late = decided(status=status, application=away, known=True, watched=LATE)
        assert (late.phase, late.reason, late.act) == (phase, reason, Act.NOTHING)
        assert late.ended is not None
        assert (late.ended.attempt, late.ended.failures_in_a_row) == (attempt, 1)
        known = {"attempts": attempt, "lastEnded": end_status(late.ended)}
        deleted = decided(status=known, application=away)
        assert (deleted.phase, deleted.act) == (phase, Act.DELETE)
        waits = decided(status=known, since_end=0.0)
        assert (waits.phase, waits.reason, waits.attempt) == (phase, reason, None)
        assert decided(status=known).attempt == attempt + 1
        status = {**known, "attempts": attempt + 1}
        assert decided(status=status, application=away).phase == phase
    died = decided(status=status, application=FAILED, driver=DriverEnd(code=21, reason="ExecutorLost"))
    assert (died.phase, died.reason) == ("Running", "WaitingToRetry"), "late starts use up no other failures"


@pytest.mark.parametrize(("taken", "most"), [(True, FAILURES_MAX), (False, OUTAGES_MAX)])
def test_late_starts_end_it_only_if_nothing_was_ever_done(taken: bool, most: int) -> None:
    for failures in range(most):
        status: dict[str, Any] = {"attempts": failures + 1}
        if failures:
            status["lastEnded"] = end_status(end(failures, covered=0, attempt=failures))
        late = decided(
            status=status, application=replace(SUBMITTED, taken=taken), watched=LATE, progress=progress(covered=0)
        )
        assert late.is_final is (failures == most - 1), failures


@pytest.mark.parametrize("taken", [True, False])
def test_suspended_application_that_has_not_started_is_deleted_and_never_the_end(taken: bool) -> None:
    away = replace(SUBMITTED, taken=taken)
    for watched in (NEVER_WATCHED, LATE):
        for failures in (0, OUTAGES_MAX):
            known = {**RANGED, "attempts": 3, "lastEnded": end_status(end(failures, covered=0, attempt=2))}
            suspended: dict[str, Any] = {"backfill": backfill(known, suspend=True), "progress": progress(covered=0)}
            paused = decide(facts(**suspended, application=away, watched=watched))
            assert (paused.phase, paused.reason, paused.act) == ("Paused", "Suspended", Act.NOTHING)
            assert paused.ended is not None
            assert paused.ended.failures_in_a_row <= 0
            suspended["backfill"] = backfill({**known, "lastEnded": end_status(paused.ended)}, suspend=True)
            assert decide(facts(**suspended, application=away)).act is Act.DELETE
            assert decide(facts(**suspended)).reason == "Suspended"


def test_failed_attempt_of_a_suspended_backfill_is_not_the_end() -> None:
    known = {**RANGED, "attempts": 5, "lastEnded": end_status(end(OUTAGES_MAX, attempt=4))}
    suspended = facts(backfill=backfill(known, suspend=True), application=FAILED)
    paused = decide(suspended)
    assert (paused.phase, paused.ended is not None) == ("Paused", True)


def test_end_in_a_status_is_read_as_it_was_written() -> None:
    assert read_end({"lastEnded": end_status(end(2))}) == end(2)
    assert read_end({}) is None


def test_group_that_is_gone_cancels_only_what_has_begun() -> None:
    gone = Problem("GroupNotFound", "create it")
    assert decided(group_gone=True, obstacle=gone, application=RUNNING).phase == "Cancelled"
    assert decide(facts(backfill=backfill(), group_gone=True, obstacle=gone, resolved=None)).phase == "Pending"


def test_another_cluster_stops_a_run() -> None:
    other = Problem(c.CLUSTER_ID_CHANGED, "another cluster")
    assert facts(obstacle=other).stop
    assert decided(obstacle=other, application=RUNNING).reason == "Stopping"
    stopped = decided(obstacle=other, application=COMPLETED, progress=progress(ledger(ended=True)))
    assert (stopped.phase, stopped.reason) == ("Paused", c.CLUSTER_ID_CHANGED)
    assert stopped.ended is not None
    known = {"lastEnded": end_status(stopped.ended)}
    assert decided(status=known, obstacle=other, application=COMPLETED).phase == "Paused"


def test_other_obstacles_only_keep_attempts_from_starting() -> None:
    away = Problem("BrokerUnreachable", "no broker answers")
    assert decided(obstacle=away, application=RUNNING).reason == "Running"
    assert decided(obstacle=away).phase == "Pending"
    assert decided(status={"lastEnded": end_status(end(1))}, obstacle=away, application=FAILED).phase == "Pending"


def test_unreadable_ledger_and_range_end_it() -> None:
    assert decided(progress=Problem("LedgerUnreadable", "x"), application=RUNNING).phase == "Failed"
    assert decided(resolved=None).reason == "RangeLost"


# --- parsing --------------------------------------------------------------------------------------------------------


def read(
    text: str | None,
    status: dict[str, Any] | None = None,
    passes: tuple[str, ...] = BOTH,
    at_least: int | None = None,
) -> Progress | Problem:
    body = None if text is None else {"data": {"ledger.json": text} if text else {}}
    return read_ledger(backfill({"attempts": 1, **(status or {})}), RANGE, passes, body, at_least)


def test_ledger_is_a_beginning_only_at_the_beginning() -> None:
    for text, status in ((None, {}), ("", {}), ("", {"applicationUid": "a"}), ("", {"attempts": 2})):
        found = read(text, status)
        assert isinstance(found, Progress), (text, status)
        assert (found.covered, found.total, found.next_pass) == (0, 20, "Both")
    for known in ({"applicationUid": "a"}, {"attempts": 2}):
        assert isinstance(read(None, known), Problem), known
    assert isinstance(read("", at_least=0), Problem), "a driver had written it"


def test_ledger_counts_what_is_done() -> None:
    found = read(ledger_text(ledger()))
    assert isinstance(found, Progress)
    assert (found.covered, found.done) == (4, False)
    assert isinstance(done := read(ledger_text(COVERED)), Progress)
    assert done.done


@pytest.mark.parametrize(
    "wrong",
    [
        ledger(remaining={0: ((0, 11),)}),
        ledger(remaining={7: ((0, 5),)}),
        ledger(remaining={1: ((4, 15),)}),
        ledger(handlers="Live"),
        ledger(attempt=9),
    ],
)
def test_ledger_of_something_else_is_a_problem(wrong: Any) -> None:
    found = read(ledger_text(wrong))
    assert isinstance(found, Problem)
    assert found.reason == "LedgerUnreadable"


def test_ledger_of_any_size_is_read_in_no_time() -> None:
    found = read("[" * 1_000_000)
    assert isinstance(found, Problem)
    assert "1000000 characters" in found.message


def test_ledger_that_has_gone_back_is_a_problem() -> None:
    assert isinstance(read(ledger_text(ledger()), at_least=4), Progress)
    assert isinstance(read(ledger_text(ledger()), at_least=5), Problem)


def test_two_passes_follow_each_other() -> None:
    live = replace(COVERED, handlers="Live")
    found = read(ledger_text(live), passes=APART)
    assert isinstance(found, Progress)
    assert (found.covered, found.total, found.pass_done, found.done, found.next_pass) == (
        20,
        40,
        True,
        False,
        "Candidate",
    )
    judged = judge(1, found, COMPLETED, None, None, None)
    assert judged.verdict is Verdict.PASS_DONE
    second = read(ledger_text(replace(live, handlers="Candidate")), passes=APART)
    assert isinstance(second, Progress)
    assert (second.covered, second.done) == (40, True)


def test_passes_depend_on_images() -> None:
    files = {"parquet": {"path": "s3a://a/b"}}
    two = backfill(compare={"callable": "a:b", "image": "x:1"}, sink=files)
    assert passes_of(two, "spark:1") == APART
    assert passes_of(two, "x:1") == BOTH
    assert passes_of(backfill(compare={"callable": "a:b", "configMapRef": {"name": "n"}}), "spark:1") == BOTH
    assert passes_of(backfill(), "spark:1") == BOTH


def test_driver_s_end_is_read_from_its_pod() -> None:
    ended = {"exitCode": 20, "message": 'noise\n{"ok":false,"reason":"A","message":"b"}'}
    statuses = [
        {"name": "proxy", "state": {"terminated": {"exitCode": 0}}},
        {"name": "spark-kubernetes-driver", "state": {"terminated": ended}},
    ]
    pod = {"metadata": {"name": "d"}, "status": {"phase": "Failed", "containerStatuses": statuses}}
    found = read_pod(pod)
    assert (found.ended, found.end) == (True, DriverEnd(code=20, reason="A", message="b"))
    running = read_pod({"metadata": {"name": "e"}, "status": {"phase": "Unknown"}})
    assert not running.ended


def test_exit_code_is_read_from_words() -> None:
    assert end_by_message("driver container failed with ExitCode: 143, Reason: Error") == DriverEnd(code=143)
    assert end_by_message("driver pod not found") is None


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_only_time_between_own_checks_counts() -> None:
    watched = watch(NEVER_WATCHED, "a", 100.0)
    for tick in (105.0, 110.0, 4000.0):
        watched = watch(watched, "a", tick)
    assert watched.seconds == 40.0
    assert watch(watched, "b", 4005.0).seconds == 0.0


def test_start_has_a_deadline_and_progress_another() -> None:
    late, body = Watched("x", 0.0, 361.0), backfill(deadlines={"startSeconds": 300, "progressSeconds": 300})
    assert late_start(body, RUNNING, late, None) is None
    assert stalled(body, SUBMITTED, late, None) is None
    untaken = late_start(body, replace(SUBMITTED, taken=False), late, None)
    assert (untaken and untaken.reason) == "SparkOperatorNotResponding"
    waits = late_start(body, SUBMITTED, late, Problem("ErrImagePull", "no such image"))
    assert (waits and waits.reason) == "ErrImagePull"
    assert (found := late_start(body, SUBMITTED, late, None)) is not None
    assert found.reason == "DriverNotStarted"
    unknown = stalled(body, replace(RUNNING, state=SparkState.UNKNOWN), late, None)
    assert (unknown and unknown.reason) == "NoProgress"


def test_slice_that_takes_its_time_is_progress() -> None:
    """Before it come executors and handlers that are loaded, after it acknowledgements and files."""
    body = backfill(slice={"maxSeconds": 1800}, deadlines={"progressSeconds": 600})
    assert stalled(body, RUNNING, Watched("x", 0.0, 2399.0), None) is None
    assert stalled(body, RUNNING, Watched("x", 0.0, 2400.0), None) is not None


def test_executors_without_room_end_no_run_that_has_done_something() -> None:
    waiting = Problem("Unschedulable", "0/3 nodes are available")
    body = backfill()
    given_up = stalled(body, RUNNING, Watched("x", 0.0, 4000.0), waiting)
    assert given_up is not None
    done = progress(ledger(attempt=4, remaining={0: ((18, 20),)}))
    assert judge(5, done, RUNNING, None, given_up, waiting).failures_max == math.inf
    assert judge(5, done, RUNNING, None, given_up, None).failures_max == 4, "all ran, and nothing went on"
    nothing = replace(done, covered=0)
    assert judge(5, nothing, RUNNING, None, given_up, waiting).failures_max == 4


def test_running_driver_is_watched_by_its_ledger() -> None:
    body = backfill({"attempts": 2})
    assert subject_of(body, RUNNING, "a") != subject_of(body, RUNNING, "b")
    assert subject_of(body, SUBMITTED, "a") == subject_of(body, SUBMITTED, "b")


# --- control ---------------------------------------------------------------------------------------------------------
