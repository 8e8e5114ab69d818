"""Reports of tasks: each is there, says what it was asked for, and is never assumed."""

from __future__ import annotations

import pytest

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import FailedRecord, TaskRange, TaskReport, merged, outcome_of, suspected_after
from fleet_consumer.contract.backfill_ledger import SAMPLES_MAX, Comparison, RunProblem, Sample, SuspectedRecord

PLANNED = ((TaskRange(0, 0, 100), TaskRange(2, 5, 9)), (TaskRange(1, 50, 60),))


def test_counts_are_summed_and_a_stop_leaves_the_rest() -> None:
    reports = {
        0: TaskReport(
            covered=[TaskRange(0, 0, 30), TaskRange(0, 30, 40)], records_in=40, waited=0.5, repeated=1, poison=1
        ),
        1: TaskReport(covered=[TaskRange(1, 50, 60)], records_in=9, records_out=8, failed=1, filtered=4, dropped=2),
    }
    outcome = outcome_of(PLANNED, reports)
    assert outcome.covered == [(0, 0, 30), (0, 30, 40), (1, 50, 60)]
    assert outcome.offsets == 50
    counts = outcome.counts
    assert (counts.records_in, counts.records_out, counts.failed, counts.dropped, counts.filtered) == (49, 8, 1, 2, 4)
    assert (outcome.waited, outcome.repeated, outcome.poison) == (0.5, 1, 1)


@pytest.mark.parametrize(
    "reports",
    [
        {0: TaskReport()},
        {},
        {0: TaskReport(), 2: TaskReport()},
        {0: TaskReport(covered=[TaskRange(1, 50, 60)]), 1: TaskReport()},
        {0: TaskReport(covered=[TaskRange(0, 90, 101)]), 1: TaskReport()},
    ],
)
def test_a_missing_or_foreign_report_is_an_error(reports: dict[int, TaskReport]) -> None:
    with pytest.raises(BackfillFailed, match="the slice is repeated") as failed:
        outcome_of(PLANNED, reports)
    assert (failed.value.reason, failed.value.final) == ("SliceIncomplete", False)


def test_first_failed_record_is_the_one_to_report() -> None:
    reports = {
        0: TaskReport(failures=[FailedRecord(1, 55, "ValueError", "b")]),
        1: TaskReport(failures=[FailedRecord(0, 7, "KeyError", "a")]),
    }
    outcome = outcome_of(PLANNED, reports)
    assert outcome.failure == FailedRecord(0, 7, "KeyError", "a")
    assert len(outcome.failures) == 2


def test_final_problem_comes_before_others() -> None:
    passing, final = (RunProblem(reason="a", message="b", final=last) for last in (False, True))
    assert outcome_of(PLANNED, {0: TaskReport(problem=passing), 1: TaskReport(problem=final)}).problem == final
    assert outcome_of(PLANNED, {0: TaskReport(problem=passing), 1: TaskReport()}).problem == passing


def test_parts_of_a_task_add_up() -> None:
    report = TaskReport(repeated=1)
    report.add(TaskReport(covered=[TaskRange(0, 0, 5)], records_in=5, waited=1.0))
    report.add(TaskReport(covered=[TaskRange(0, 5, 7)], records_in=2, failed=1, waited=0.5))
    assert (report.covered, report.records_in, report.failed, report.waited) == ([(0, 0, 5), (0, 5, 7)], 7, 1, 1.5)
    assert report.repeated == 1


def test_deaths_of_a_record_add_up_until_it_is_handled() -> None:
    def suspected(offset: int, deaths: int, side: str = "Live") -> SuspectedRecord:
        return SuspectedRecord(partition=0, offset=offset, side=side, deaths=deaths)

    known = (suspected(3, 1), suspected(7, 2), suspected(8, 1))
    died = (suspected(7, 1), suspected(8, 1, "Candidate"), suspected(9, 1))
    assert suspected_after(known, died, {0: ((5, 20),)}) == (
        suspected(7, 3),
        suspected(8, 1, "Candidate"),
        suspected(8, 1),
        suspected(9, 1),
    )
    assert suspected_after(known, died, {}) == ()


def test_samples_are_the_first_ones() -> None:
    report = TaskReport()
    for offset in range(30):
        report.count_comparison("different", Sample(partition=0, offset=offset, live="a", candidate="b"))
        report.count_comparison("equal", None)
    outcome = outcome_of(((TaskRange(0, 0, 99),),), {0: report})
    assert outcome.comparison.different == outcome.comparison.equal == 30
    assert [each.offset for each in outcome.comparison.samples] == list(range(SAMPLES_MAX))
    again = merged(outcome.comparison, outcome.comparison)
    assert (again.different, len(again.samples)) == (60, SAMPLES_MAX)
    assert merged(Comparison(), outcome.comparison) == outcome.comparison
