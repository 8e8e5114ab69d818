"""Deadlines of an attempt: the time for which a driver was watched not to run, or to run without progress. Pure.

Spark's operator has neither: an image that is missing is waited for without end, and so are executors that cannot reach
their driver. As for rollouts, the operator adds up the seconds between its own looks, so no clocks are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.planning.backfill.spark import SeenApplication, SparkState
from fleet_operator.planning.problem import Problem

LOOK_MAX_S: Final = 30.0
"""Most seconds that count between two looks; a run is looked at every few seconds."""
SIGN_S: Final = 15.0
"""Time for a sign of progress: the driver gets one from executors every 10 s, and gives one every 5 s."""
RUNS: Final = frozenset({SparkState.RUNNING, SparkState.UNKNOWN})
"""States in which a driver may be at work: of a node that does not answer nobody knows it."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Seconds for which a subject was the same, as counted until `looked_at` (steady seconds)."""

    subject: str = ""
    looked_at: float = 0.0
    seconds: float = 0.0


NEVER_WATCHED: Final = Watched()


def watch(before: Watched, subject: str, tick: float, *, counts: bool = True) -> Watched:
    """The seconds after a look at `tick`. Another subject starts from zero; without `counts` none are added."""
    if subject != before.subject:
        return Watched(subject, tick)
    passed = min(max(tick - before.looked_at, 0.0), LOOK_MAX_S) if counts else 0.0
    return Watched(subject, tick, before.seconds + passed)


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

    A slice may take its own time, whatever the deadline.
    """
    limit = max(backfill.spec.deadlines.progress_seconds, backfill.spec.slice.max_seconds + SIGN_S)
    if application.state not in RUNS or watched.seconds < limit:
        return None
    message = f"the driver ran for {limit:.0f} s without progress, so it was ended"
    if waiting is not None:
        message = f"{message}; one of its pods did not run: {waiting.reason}: {waiting.message}"
    return Problem(c.NO_PROGRESS, message)
