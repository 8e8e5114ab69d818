"""Reports of tasks: matched with the planned ranges by their first records, and never assumed."""

from __future__ import annotations

import pytest

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import FailedRecord, TaskRange, TaskReport, merged, outcome_of
from fleet_consumer.contract.backfill_ledger import SAMPLES_MAX, Comparison, Sample

PLANNED = (TaskRange(0, 0, 100), TaskRange(1, 50, 60), TaskRange(0, 100, 200, 1))


def test_reports_are_matched_in_any_order_and_a_stop_leaves_the_rest() -> None:
    reports = {
        0: TaskReport(first=(0, 130), stop=150, records_in=20, largest=7, waited=0.5),
        1: TaskReport(first=(1, 50), records_in=9, failed=1),
        2: TaskReport(first=(0, 3), records_in=90, records_out=80, filtered=4, dropped=2, largest=9),
    }
    outcome = outcome_of(PLANNED, reports)
    assert outcome.covered == ((0, 0, 100), (0, 100, 150), (1, 50, 60))
    assert outcome.offsets == 160
    counts = outcome.counts
    assert (counts.records_in, counts.records_out, counts.failed, counts.dropped, counts.filtered) == (119, 80, 1, 2, 4)
    assert outcome.waited == 0.5


def test_range_without_records_is_covered_by_the_task_that_saw_none() -> None:
    reports = {0: TaskReport(first=(1, 50)), 1: TaskReport(), 2: TaskReport(first=(0, 0))}
    assert outcome_of(PLANNED, reports).covered == ((0, 0, 100), (0, 100, 200), (1, 50, 60))


def test_stop_at_the_first_offset_covers_nothing_of_the_range() -> None:
    reports = {0: TaskReport(first=(1, 50), stop=50), 1: TaskReport(), 2: TaskReport(first=(0, 0))}
    assert (1, 50, 60) not in outcome_of(PLANNED, reports).covered


@pytest.mark.parametrize(
    "reports",
    [
        {0: TaskReport(first=(0, 0)), 1: TaskReport(first=(1, 50))},
        {},
        {0: TaskReport(first=(0, 0)), 1: TaskReport(first=(0, 50)), 2: TaskReport(first=(1, 50))},
        {0: TaskReport(first=(0, 0)), 1: TaskReport(first=(1, 61)), 2: TaskReport()},
        {0: TaskReport(), 1: TaskReport(), 2: TaskReport(), 3: TaskReport()},
    ],
)
def test_a_missing_or_foreign_report_is_an_error(reports: dict[int, TaskReport]) -> None:
    with pytest.raises(BackfillFailed, match="of 3 tasks") as failed:
        outcome_of(PLANNED, reports)
    assert (failed.value.reason, failed.value.final) == ("SliceIncomplete", False)


def test_first_failed_record_is_the_one_to_report() -> None:
    reports = {
        0: TaskReport(first=(1, 50), stop=55, failure=FailedRecord(1, 55, "ValueError", "b")),
        1: TaskReport(first=(0, 0), stop=7, failure=FailedRecord(0, 7, "KeyError", "a")),
        2: TaskReport(),
    }
    outcome = outcome_of(PLANNED, reports)
    assert outcome.failure == FailedRecord(0, 7, "KeyError", "a")
    assert outcome.failures == 2


def test_samples_are_the_first_ones() -> None:
    report = TaskReport(first=(0, 0))
    for offset in range(30):
        report.note("different", Sample(partition=0, offset=offset, live="a", candidate="b"))
        report.note("equal", None)
    outcome = outcome_of((TaskRange(0, 0, 99),), {0: report})
    assert outcome.comparison.different == outcome.comparison.equal == 30
    assert [each.offset for each in outcome.comparison.samples] == list(range(SAMPLES_MAX))
    again = merged(outcome.comparison, outcome.comparison)
    assert (again.different, len(again.samples)) == (60, SAMPLES_MAX)
    assert merged(Comparison(), outcome.comparison) == outcome.comparison
