"""A Backfill whose Kafka cluster is another one than that of its range: the same offsets are other records there."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.planning.backfill.attempts import AttemptEnd, end_status
from fleet_operator.planning.backfill.phase import BackfillDecision, decide
from fleet_operator.planning.backfill.spark import SeenApplication, SparkState
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Act
from tests.unit.planning.backfill.things import RANGED, backfill, facts, ledger, progress

RUNNING = SeenApplication(state=SparkState.RUNNING, uid="a-1", taken=True)
FAILED = SeenApplication(state=SparkState.FAILED, uid="a-1", taken=True)
COMPLETED = SeenApplication(state=SparkState.SUCCEEDED, uid="a-1", taken=True)
COVERED = ledger(remaining={}, ended=True, slices_left=0)


def decided(**changes: Any) -> BackfillDecision:
    return decide(facts(**changes))


def end(failures: int) -> AttemptEnd:
    return AttemptEnd(attempt=1, reason="R", message="m", failures_in_a_row=failures, offsets_covered=4)


ELSEWHERE = Problem("RangeLost", "another Kafka cluster")


@pytest.mark.parametrize(
    "known",
    [
        {"status": {"attempts": 0}},
        {},
        {"application": RUNNING, "progress": progress(ledger())},
        {"status": {"lastEnded": end_status(end(1))}, "application": FAILED, "progress": progress(ledger())},
    ],
    ids=["before", "numbered", "at work", "between"],
)
def test_offsets_of_another_cluster_are_never_read(known: dict[str, Any]) -> None:
    found = decided(elsewhere=ELSEWHERE, **known)
    assert (found.phase, found.reason, found.act) == ("Failed", "RangeLost", Act.NOTHING)


def test_another_cluster_ends_nothing_that_does_not_go_on_or_is_done() -> None:
    """Its addresses may have been edited by mistake, and what is suspended rests on nothing."""
    known = {**RANGED, "attempts": 1, "lastEnded": end_status(end(0))}
    suspended = facts(backfill=backfill(known, suspend=True), elsewhere=ELSEWHERE, application=COMPLETED)
    assert decide(suspended).phase == "Paused"
    changed = Problem(c.CLUSTER_ID_CHANGED, "another cluster")
    halted = decided(status={"lastEnded": end_status(end(0))}, obstacle=changed, elsewhere=ELSEWHERE)
    assert (halted.phase, halted.reason) == ("Paused", c.CLUSTER_ID_CHANGED)
    done = decided(application=COMPLETED, elsewhere=ELSEWHERE, progress=progress(COVERED, covered=20))
    assert (done.phase, done.reason) == ("Succeeded", "AllHandled")
