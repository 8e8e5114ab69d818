"""Attempts of a Backfill: deadlines, the verdict on one that is over, and the pause before the next. Pure.

Spark tries nothing again by itself. An attempt is an application that is made once; the next one goes on behind the
last slice in the ledger. The driver's own word in the ledger counts most, then its exit code, then the words of others.

Spark's operator has no deadlines: an image that is missing is waited for without end, and so are executors that cannot
reach their driver. As for rollouts, the operator adds up the seconds between its own looks, so no clocks are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.api.v1alpha1.model import Model
from fleet_operator.planning.backfill.readings import DriverEnd, Progress
from fleet_operator.planning.backfill.spark import MESSAGE_CHARACTERS_MAX, SeenApplication, SparkState
from fleet_operator.planning.problem import Problem

FAILURES_MAX: Final = 4
"""Attempts in a row that may fail without any progress."""
OUTAGES_MAX: Final = 10
"""The same where the driver itself says that its surroundings failed: with the pauses, half an hour of outage."""
OF_THE_RUN: Final = frozenset({"DriverFailed", "ExecutorLost", "HandlerProcessDied", "SliceFailed", "SliceIncomplete"})
"""Reasons of drivers that speak of the run itself, and not of an outage around it."""
PAUSE_S: Final = 10.0
PAUSE_MAX_S: Final = 300.0


class Verdict(Enum):
    DONE = "all is done"
    PASS_DONE = "the first of two passes is done"
    STOPPED = "it stopped as it was asked to"
    FAILED = "it failed, and another one may succeed"
    HOPELESS = "it failed, and others would fail alike"


class AttemptEnd(Model):
    """An attempt that is over, as `lastEnded` in status holds it."""

    attempt: int = 0
    reason: str = ""
    message: str = ""
    failures_in_a_row: int = 0
    offsets_covered: int = 0
    retries: int = 0

    @property
    def failed(self) -> bool:
        return self.failures_in_a_row > 0


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of an attempt, with the reason.

    `failures_max` is infinite for a driver or an executor that did not start in time once something was done: a cluster
    without room today has some tomorrow. Such a failure does not use up those of others.
    """

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
    """The outcome of the attempt with this number, which is over.

    `given_up` is why the operator has ended it, `waiting` what one of its pods waited for.
    """
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
            return Judged(Verdict.PASS_DONE, Problem(c.PASS_DONE, "the live handler has had every record"))
        if ledger.ended:
            return Judged(Verdict.STOPPED, Problem(c.STOPPED, "it stopped between two slices, as it was asked to"))
    if given_up is not None:
        verdict = Verdict.STOPPED if given_up.reason == c.STOPPED else Verdict.FAILED
        away = given_up.reason == c.SPARK_OPERATOR_NOT_RESPONDING
        no_room = application.state is SparkState.SUBMITTED or waiting is not None
        patient = progress.covered > 0 and no_room
        return Judged(verdict, given_up, math.inf if patient else OUTAGES_MAX if away else FAILURES_MAX)
    return _without_ledger(number, application, driver)


def _without_ledger(number: int, application: SeenApplication, driver: DriverEnd | None) -> Judged:
    """The outcome of an attempt that has left no last word in the ledger."""
    end = driver or DriverEnd()
    said = end.message or application.message[:MESSAGE_CHARACTERS_MAX]
    if end.code == EXIT_SETTINGS:
        message = said or "the driver ended with exit code 20: settings or handler must be changed"
        return Judged(Verdict.HOPELESS, Problem(end.reason or c.DRIVER_FAILED, message))
    if application.state is SparkState.ABSENT:
        message = f"the Spark application of attempt {number} is gone, and its driver had not finished"
        return Judged(Verdict.FAILED, Problem(c.APPLICATION_GONE, message))
    if application.state is SparkState.SUCCEEDED or end.code == EXIT_OK:
        message = f"the Spark application of attempt {number} has completed, and its driver has not noted an end"
        return Judged(Verdict.FAILED, Problem(c.ENDED_WITHOUT_LEDGER, message))
    message = said or f"the Spark application of attempt {number} failed without a message"
    outage = end.code == EXIT_SURROUNDINGS and end.reason not in OF_THE_RUN
    return Judged(
        Verdict.FAILED,
        Problem(end.reason or (c.DRIVER_FAILED if application.submitted else c.SUBMISSION_FAILED), message),
        OUTAGES_MAX if outage else FAILURES_MAX,
    )


def end_of(backfill: Backfill, judged: Judged, covered: int) -> AttemptEnd:
    """The end of the newest attempt, to be noted. Failures count on while nothing was done between them."""
    last, failures = read_end(backfill.status), 0
    if judged.verdict in (Verdict.FAILED, Verdict.HOPELESS):
        same = last is not None and last.retries == backfill.spec.retry
        in_vain = last is not None and same and last.failed and covered <= last.offsets_covered
        before = last.failures_in_a_row if last is not None and in_vain else 0
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
    """Seconds from the end of an attempt to the next one."""
    return min(PAUSE_S * 2.0 ** (min(end.failures_in_a_row, 10) - 1), PAUSE_MAX_S) if end.failed else 0.0


def read_end(status: Mapping[str, Any]) -> AttemptEnd | None:
    """The last attempt that has ended; None before the first end."""
    found = status.get("lastEnded")
    return AttemptEnd.model_validate(found) if isinstance(found, Mapping) else None


def end_status(end: AttemptEnd) -> dict[str, Any]:
    """The field `lastEnded` of a status."""
    said = {"reason": end.reason[: c.REASON_CHARACTERS_MAX] or c.UNNAMED, "message": c.shorten(end.message)}
    return end.model_dump(by_alias=True) | said


LOOK_MAX_S: Final = 30.0
"""Most seconds that count between two looks; a run is looked at every few seconds."""
RUNS: Final = frozenset({SparkState.RUNNING, SparkState.UNKNOWN})
"""States in which a driver may be at work: of a node that does not answer nobody knows it."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Seconds for which a subject was the same, as counted until `looked_at` (steady seconds)."""

    subject: str = ""
    looked_at: float = 0.0
    seconds: float = 0.0


NEVER_WATCHED: Final = Watched()


def watch(before: Watched, subject: str, tick: float) -> Watched:
    """The seconds after a look at `tick`. Another subject starts from zero."""
    if subject != before.subject:
        return Watched(subject, tick)
    return Watched(subject, tick, before.seconds + min(max(tick - before.looked_at, 0.0), LOOK_MAX_S))


def subject_of(backfill: Backfill, application: SeenApplication, ledger_text: str) -> str:
    """The thing that must change in time: before the driver runs its state, then its ledger."""
    runs = application.state in RUNS
    return f"{backfill.metadata.uid} {backfill.attempts} {f'running {ledger_text}' if runs else 'starting'}"


def late_start(
    backfill: Backfill, application: SeenApplication, watched: Watched, waiting: Problem | None
) -> Problem | None:
    """The failure of an application whose driver does not run in time."""
    limit = backfill.spec.deadlines.start_seconds
    if application.state is not SparkState.SUBMITTED or watched.seconds < limit:
        return None
    more = "or create another Backfill with a longer spec.deadlines.startSeconds"
    if waiting is not None:
        return Problem(
            waiting.reason, f"the driver did not run within {limit} s: {waiting.message}: correct the cause, {more}"
        )
    if not application.taken:
        message = (
            f"no Spark operator has taken the application within {limit} s: check that it runs and serves this "
            f"namespace, {more}"
        )
        return Problem(c.SPARK_OPERATOR_NOT_RESPONDING, message)
    message = f"the driver did not run within {limit} s: see the SparkApplication and its pods, {more}"
    return Problem(c.DRIVER_NOT_STARTED, message)


def stalled(
    backfill: Backfill, application: SeenApplication, watched: Watched, waiting: Problem | None
) -> Problem | None:
    """The failure of a driver that runs without progress.

    A slice may take its own time on top: its tasks count that from when they call the handler, and before and after it
    executors come, handlers are loaded, and files are written.
    """
    limit = backfill.spec.deadlines.progress_seconds + backfill.spec.slice.max_seconds
    if application.state not in RUNS or watched.seconds < limit:
        return None
    message = f"the driver ran for {limit} s without progress, so it was ended"
    if waiting is not None:
        message = f"{message}; one of its pods did not run: {waiting.reason}: {waiting.message}"
    return Problem(c.NO_PROGRESS, message)
