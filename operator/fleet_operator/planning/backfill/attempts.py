"""Attempts of a Backfill: deadlines, the verdict on an ended attempt, and the pause before the next. Pure.

Spark does not restart a failed driver. An attempt is one Spark application, created once. The next attempt continues
after the last slice in the ledger. The verdict on an attempt is taken from the driver's report in the ledger. Without a
report, it is taken from the driver's exit code and the state of the application.

The Spark operator has no deadlines: it would wait indefinitely for a missing image, or for executors that cannot reach
their driver. So Consumer Fleet sets deadlines. The operator adds up the seconds between its own checks, as it does for
rollouts, and never compares the times of two clocks.

Decision: docs/decisions/0043-backfill-runs.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.api.v1alpha1.model import Model
from fleet_operator.planning.backfill.parsing import DriverEnd, Progress
from fleet_operator.planning.backfill.spark import MESSAGE_CHARACTERS_MAX, SeenApplication, SparkState
from fleet_operator.planning.problem import Problem

FAILURES_MAX: Final = 4
"""Number of consecutive failures without progress after which the Backfill fails."""
OUTAGES_MAX: Final = 10
"""Maximum number of consecutive failures that are due to an outage; it replaces `FAILURES_MAX` for them. In an outage,
the driver reports that the brokers or the API server are down, or the Spark operator does not respond. With the pauses,
ten attempts take about half an hour."""
OF_THE_RUN: Final = frozenset({"DriverFailed", "ExecutorLost", "HandlerProcessDied", "SliceFailed", "SliceIncomplete"})
"""Reasons that drivers report for failures that the run itself causes. Any other reason means an outage of a system
that the run needs."""
PAUSE_S: Final = 10.0
PAUSE_MAX_S: Final = 300.0
"""The pause between a failed attempt and the next attempt is `PAUSE_S` seconds after the first failure. Each further
failure doubles the pause, up to `PAUSE_MAX_S` seconds."""


class Verdict(Enum):
    DONE = "every record was handled"
    PASS_DONE = "the first of two passes is complete"
    STOPPED = "the attempt stopped as requested"
    FAILED = "the attempt failed, and another attempt may succeed"
    HOPELESS = "the attempt failed, and any other attempt would fail too"


class AttemptEnd(Model):
    """An ended attempt, as in `status.lastEnded`."""

    attempt: int = 0
    reason: str = ""
    message: str = ""
    failures_in_a_row: int = 0
    offsets_covered: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on an ended attempt. `failures_max`: the number of consecutive failures that end the Backfill.

    The number is infinite if a driver or an executor did not start in time although the Backfill made progress before.
    A Kubernetes cluster that is full now may have room later. Such a failure does not count towards the limits of other
    failures."""

    verdict: Verdict
    problem: Problem
    failures_max: float = FAILURES_MAX


def judge(
    number: int,
    progress: Progress,
    application: SeenApplication,
    driver: DriverEnd | None,
    given_up: Problem | None,
    waiting: Problem | None,
) -> Judged:
    """Judge an ended attempt. `given_up`: why the operator ended the attempt; `waiting`: why one of its pods did not
    start. Each is None without a reason."""
    ledger = progress.ledger
    if ledger is not None and ledger.attempt == number:
        if ledger.problem is not None:
            said = ledger.problem
            verdict = Verdict.HOPELESS if said.final else Verdict.FAILED
            most = FAILURES_MAX if said.reason in OF_THE_RUN else OUTAGES_MAX
            return Judged(verdict, Problem(said.reason, said.message or "the driver gave no message"), most)
        if ledger.ended and progress.done:
            return Judged(Verdict.DONE, Problem(c.ALL_HANDLED, "every record of the range was handled"))
        if ledger.ended and progress.pass_done:
            return Judged(Verdict.PASS_DONE, Problem(c.PASS_DONE, "the live handler has handled every record"))
        if ledger.ended:
            return Judged(Verdict.STOPPED, Problem(c.STOPPED, "the attempt stopped between two slices, as requested"))
    if given_up is not None:
        verdict = Verdict.STOPPED if given_up.reason == c.STOPPED else Verdict.FAILED
        away = given_up.reason == c.SPARK_OPERATOR_NOT_RESPONDING
        no_room = application.state is SparkState.SUBMITTED or waiting is not None
        patient = progress.covered > 0 and no_room
        return Judged(verdict, given_up, math.inf if patient else OUTAGES_MAX if away else FAILURES_MAX)
    return _without_ledger(number, application, driver)


def _without_ledger(number: int, application: SeenApplication, driver: DriverEnd | None) -> Judged:
    """Judge an attempt whose driver recorded no end in the ledger."""
    end = driver or DriverEnd()
    said = end.message or application.message[:MESSAGE_CHARACTERS_MAX]
    if end.code == EXIT_SETTINGS:
        message = said or "the driver exited with code 20: correct the settings or the handler"
        return Judged(Verdict.HOPELESS, Problem(end.reason or c.DRIVER_FAILED, message))
    if application.state is SparkState.ABSENT:
        message = f"the Spark application of attempt {number} was deleted before its driver had finished"
        return Judged(Verdict.FAILED, Problem(c.APPLICATION_GONE, message))
    if application.state is SparkState.SUCCEEDED or end.code == EXIT_OK:
        message = f"the Spark application of attempt {number} has completed, but its driver has not recorded an end"
        return Judged(Verdict.FAILED, Problem(c.ENDED_WITHOUT_LEDGER, message))
    message = said or f"the Spark application of attempt {number} failed without a message"
    outage = end.code == EXIT_SURROUNDINGS and end.reason not in OF_THE_RUN
    return Judged(
        Verdict.FAILED,
        Problem(end.reason or (c.DRIVER_FAILED if application.submitted else c.SUBMISSION_FAILED), message),
        OUTAGES_MAX if outage else FAILURES_MAX,
    )


def end_of(backfill: Backfill, judged: Judged, covered: int) -> AttemptEnd:
    """Return the end of the attempt to record. Its count of consecutive failures restarts if the attempt made progress,
    or if `spec.retry` has changed."""
    last, failures = read_end(backfill.status) or AttemptEnd(), 0
    if judged.verdict in (Verdict.FAILED, Verdict.HOPELESS):
        in_vain = last.retries == backfill.spec.retry and covered <= last.offsets_covered
        before = max(last.failures_in_a_row, 0) if in_vain else 0
        failures = max(before, 1) if judged.failures_max == math.inf else before + 1
    return AttemptEnd(
        attempt=backfill.attempts,
        reason=judged.problem.reason,
        message=judged.problem.message,
        failures_in_a_row=failures,
        offsets_covered=covered,
        retries=backfill.spec.retry,
    )


def pause_s(end: AttemptEnd) -> float:
    failures = min(end.failures_in_a_row, 10)
    return min(PAUSE_S * 2.0 ** (failures - 1), PAUSE_MAX_S) if failures > 0 else 0.0


def read_end(status: Mapping[str, Any]) -> AttemptEnd | None:
    found = status.get("lastEnded")
    return AttemptEnd.model_validate(found) if isinstance(found, Mapping) else None


def end_status(end: AttemptEnd) -> dict[str, Any]:
    said = {"reason": end.reason[: c.REASON_CHARACTERS_MAX] or c.UNNAMED, "message": c.shorten(end.message)}
    return end.model_dump(by_alias=True) | said


GAP_MAX_S: Final = 30.0
"""Maximum seconds counted between two checks. Checks are a few seconds apart while the operator runs."""
RUNS: Final = frozenset({SparkState.RUNNING, SparkState.UNKNOWN})
"""States in which a driver may be running; UNKNOWN includes a driver on a node that does not respond."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The time for which `subject` has not changed. `seconds`: this time in seconds, counted up to the last check.
    `checked_at`: the time of this check, in monotonic seconds."""

    subject: str = ""
    checked_at: float = 0.0
    seconds: float = 0.0


NEVER_WATCHED: Final = Watched()


def watch(before: Watched, subject: str, tick: float) -> Watched:
    """Add the seconds since the last check, or restart from zero if `subject` changed. `tick`: now, in monotonic
    seconds."""
    if subject != before.subject:
        return Watched(subject, tick)
    return Watched(subject, tick, before.seconds + min(max(tick - before.checked_at, 0.0), GAP_MAX_S))


def subject_of(backfill: Backfill, application: SeenApplication, ledger_text: str) -> str:
    """Return a string that must change before the deadline. At first, it changes when the driver starts. After that, it
    changes with each change of the ledger."""
    runs = application.state in RUNS
    return f"{backfill.metadata.uid} {backfill.attempts} {f'running {ledger_text}' if runs else 'starting'}"


def late_start(
    backfill: Backfill, application: SeenApplication, watched: Watched, waiting: Problem | None
) -> Problem | None:
    limit = backfill.spec.deadlines.start_seconds
    if application.state is not SparkState.SUBMITTED or watched.seconds < limit:
        return None
    reason, seen = c.DRIVER_NOT_STARTED, f"the driver did not run within {limit} s"
    remedy = "see the SparkApplication and its pods"
    if waiting is not None:
        reason, remedy = waiting.reason, f"{waiting.message}: correct the cause"
    elif not application.taken:
        reason, seen = c.SPARK_OPERATOR_NOT_RESPONDING, f"no Spark operator picked up the application within {limit} s"
        remedy = "check that the Spark operator runs and watches this namespace"
    longer = "or create another Backfill with a longer spec.deadlines.startSeconds"
    return Problem(reason, f"{seen}: {remedy}, {longer}")


def stalled(
    backfill: Backfill, application: SeenApplication, watched: Watched, waiting: Problem | None
) -> Problem | None:
    """Return the problem of a driver that made no progress for `progressSeconds` plus the maximum time of a slice; None
    without this problem.

    Tasks count the slice's time from their first handler call. `progressSeconds` is for everything else, such as
    starting executors, loading handlers and writing files."""
    limit = backfill.spec.deadlines.progress_seconds + backfill.spec.slice.max_seconds
    if application.state not in RUNS or watched.seconds < limit:
        return None
    message = f"the driver ran for {limit} s without progress, so it was ended"
    if waiting is not None:
        message = f"{message}; one of its pods did not start: {waiting.reason}: {waiting.message}"
    return Problem(c.NO_PROGRESS, message)
