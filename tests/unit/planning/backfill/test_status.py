"""Status of a Backfill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet_consumer.contract.backfill_ledger import COUNTS, Comparison, Counts, Sample
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.planning import times
from fleet_operator.planning.backfill.attempts import AttemptEnd, end_status
from fleet_operator.planning.backfill.parsing import DriverEnd
from fleet_operator.planning.backfill.phase import decide
from fleet_operator.planning.backfill.ranges import range_status
from fleet_operator.planning.backfill.spark import NO_APPLICATION, SeenApplication, SparkState
from fleet_operator.planning.backfill.status import project_backfill_status
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import renew_final_status
from tests.unit.planning import builders
from tests.unit.planning.backfill.things import RANGE, RANGED, backfill, facts, ledger, progress

RUNNING = SeenApplication(state=SparkState.RUNNING, uid="a-1", taken=True)
FAILED = SeenApplication(state=SparkState.FAILED, uid="a-1", taken=True)
COMPLETED = SeenApplication(state=SparkState.SUCCEEDED, uid="a-1", taken=True)
COVERED = ledger(remaining={}, ended=True, slices_left=0)
ONE_FAILURE = AttemptEnd(attempt=1, reason="R", message="m", failures_in_a_row=1, offsets_covered=4)


def projected(now: float = builders.NOW, **changes: Any) -> dict[str, Any]:
    given = facts(**changes)
    return project_backfill_status(given, decide(given), now)


def test_status_mirrors_the_ledger() -> None:
    sample = Sample(partition=0, offset=3, live="1", candidate="2")
    comparison = Comparison(equal=3, different=1, samples=(sample,) * 11)
    note = ledger(
        counts=Counts(records_in=4, records_out=3, failed=1, dropped=2, filtered=5),
        records_per_second=2.0,
        offsets_per_second=2.0,
        throttled_by="Rate",
        slice_offsets=6,
        comparison=comparison,
    )
    status = projected(application=RUNNING, progress=progress(note))
    assert status["records"] == dict(zip(COUNTS, (4, 3, 1, 2, 5), strict=True))
    assert status["slices"] == {"total": 4, "done": 1, "running": 1}
    assert (status["progressText"], status["throttledBy"]) == ("20 %, slice 2 of 4", "Rate")
    assert (status["ratePerSecond"], status["estimatedEnd"]) == (2, "2027-01-15T08:00:08Z")
    assert (status["comparison"]["different"], len(status["comparison"]["samples"])) == (1, 10)
    assert status["applicationUid"] == "a-1"


def test_status_leads_to_the_web_interface_while_a_driver_runs() -> None:
    served = backfill({**RANGED, "attempts": 2}, spark={"ui": True})
    note = progress(ledger(attempt=2))
    assert projected(backfill=served, application=RUNNING, progress=note)["sparkUI"] == (
        "kubectl --namespace shop port-forward pod/again-2-driver 4040, then http://localhost:4040"
    )
    assert "sparkUI" not in projected(application=RUNNING, progress=progress(ledger()))
    for state in (COMPLETED, FAILED, NO_APPLICATION):
        before = served.model_copy(update={"status": {**served.status, "sparkUI": "x"}})
        assert "sparkUI" not in projected(backfill=before, application=state, progress=note)


def test_repeated_tasks_are_told_if_there_are_any() -> None:
    status = projected(application=RUNNING, progress=progress(ledger(repeated=3)))
    assert status["repeatedTasks"] == 3
    assert "repeatedTasks" not in projected(application=RUNNING, progress=progress(ledger()))


SAMPLE = replace(RANGE, sampled_from=2_010)
DRY = {"dryRun": True, "range": {"last": {"seconds": 60}, "sample": "1%"}}


def estimated(**changes: Any) -> dict[str, Any]:
    """The status of a dry run whose sample is done."""
    counts = Counts(records_in=19, failed=1, bytes_in=3_000)
    done = replace(COVERED, **{"counts": counts, "offsets_per_second": 0.5, **changes})
    body = backfill({**range_status(SAMPLE), "attempts": 1}, **DRY)
    return projected(backfill=body, resolved=SAMPLE, application=COMPLETED, progress=progress(done, covered=20))


def test_sample_of_a_dry_run_tells_what_the_whole_range_takes() -> None:
    status = estimated()
    assert status["estimate"] == {"records": 1_910, "failed": 101, "bytes": 301_500, "seconds": 4_020}
    assert set(status["records"]) == set(COUNTS)
    complete = next(each for each in status["conditions"] if each["type"] == c.COMPLETE)
    assert complete["message"] == (
        "every record of the range was handled (dry run): the whole range has 2010 offsets with about 1910 records of "
        "0.3 MiB, and about 101 of them would fail; it would take about 1h7m at the rate of the sample"
    )
    ranged = next(each for each in status["conditions"] if each["type"] == c.RANGE_RESOLVED)
    assert ranged["message"] == "the range has 20 offsets (a sample of 2010) in 2 partitions of topic 'orders'"
    assert status["sampledFrom"] == 2_010


def test_sample_without_a_rate_tells_no_time() -> None:
    assert "seconds" not in estimated(offsets_per_second=0.0)["estimate"]
    assert "estimate" not in projected(application=COMPLETED, progress=progress(COVERED, covered=20))


def test_status_is_calm_while_the_ledger_stands_still() -> None:
    note = ledger(records_per_second=1.0, offsets_per_second=2.0)
    first = projected(application=RUNNING, progress=progress(note))
    again = projected(builders.NOW + 60, status=first, application=RUNNING, progress=progress(note))
    assert again == first


def test_counts_stay_where_the_ledger_cannot_be_read() -> None:
    first = projected(application=RUNNING, progress=progress(ledger()))
    lost = projected(status=first, application=RUNNING, progress=Problem("LedgerUnreadable", "gone"))
    assert (lost["phase"], lost["offsetsCovered"], lost["slices"]) == ("Failed", 4, first["slices"])


def test_number_of_an_attempt_forgets_the_application_before() -> None:
    known = {"applicationUid": "a-1", "lastEnded": end_status(ONE_FAILURE)}
    status = projected(status=known, application=FAILED)
    assert (status["attempts"], status["applicationName"]) == (2, "again-2")
    assert "applicationUid" not in status


def verdicts(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def test_ended_backfill_has_exactly_one_of_complete_and_failed() -> None:
    done = projected(application=COMPLETED, progress=progress(COVERED, covered=20))
    assert [verdicts(done)[kind][0] for kind in (c.COMPLETE, c.FAILED, c.READY)] == ["True", "False", "True"]
    assert done["finishedAt"] == done["estimatedEnd"]
    failed = projected(application=FAILED, driver=DriverEnd(code=20))
    assert [verdicts(failed)[kind][0] for kind in (c.COMPLETE, c.FAILED, c.READY)] == ["False", "True", "False"]
    assert tuple(verdicts(done)) == c.BACKFILL_CONDITIONS


def test_conditions_of_a_backfill_that_waits() -> None:
    missing = Problem("SparkNotInstalled", "install it")
    given = facts(backfill=backfill(), resolved=None, progress=None, obstacle=missing, spark=missing)
    status = project_backfill_status(given, decide(given), builders.NOW)
    found = verdicts(status)
    assert found[c.SPARK_AVAILABLE] == ("False", "SparkNotInstalled")
    assert found[c.READY] == ("False", "SparkNotInstalled")
    assert found[c.RANGE_RESOLVED][0] == "False"


def test_verdicts_stand_while_nobody_asks_again() -> None:
    first = facts(
        backfill=backfill(), resolution=RANGE, resolved=None, progress=None, spark_asked=True, handler_read=True
    )
    status = project_backfill_status(first, decide(first), builders.NOW)
    later = projected(status=status, application=RUNNING, progress=progress(ledger()))
    for kind in (c.SPARK_AVAILABLE, c.HANDLER_SUPPORTED, c.RANGE_RESOLVED):
        assert verdicts(later)[kind] == verdicts(status)[kind]
        assert verdicts(later)[kind][0] == "True"


def test_final_status_is_renewed_without_another_word() -> None:
    done = projected(application=COMPLETED, progress=progress(COVERED, covered=20))
    renewed = renew_final_status(done, 7)
    assert {each["observedGeneration"] for each in renewed["conditions"]} == {7}
    assert {**renewed, "conditions": [], "observedGeneration": 2} == {**done, "conditions": []}


def test_invalid_object_keeps_its_last_status() -> None:
    body = {"metadata": {"generation": 3}, "status": {"phase": "Running"}}
    status = c.invalid_status(c.BACKFILL_CONDITIONS, c.SPEC_INVALID, "no range", body, times.to_text(builders.NOW))
    assert status["phase"] == "Running"
    assert verdicts(status)[c.READY] == ("False", "SpecInvalid")
