"""Publication of staged rows: which slices, in which order with the ledger, and what a death in between costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.run import GROUP_SLICES
from fleet_consumer.backfill.slices import FailedRecord, TaskRange, TaskReport
from fleet_consumer.contract.backfill_ledger import Control, Ledger
from tests.unit.backfill.attempt import World, failed, play
from tests.unit.backfill.documents import table_section


def world(**changes: Any) -> World:
    return World(sink={"topic": None, "parquet": None, "table": table_section()}, **changes)


def test_rows_are_published_at_the_end_in_one_piece() -> None:
    here = world()
    assert play(here)
    assert (here.publications, here.cleared) == ([(0, 4)], [(0, 4)])
    assert (here.written[-1].published, here.written[-1].ended) == (4, True)
    said = [(ledger.published, ledger.publishing) for ledger in here.written]
    assert said.index((0, 4)) < said.index((4, 4)), "the ledger names the slices before they are published"


def test_long_runs_publish_on_the_way() -> None:
    here = world(sliceRecords=4)
    assert play(here)
    ends = [end for _, end in here.publications]
    assert ends[:1] == [GROUP_SLICES]
    assert [first for first, _ in here.publications] == [0, *ends[:-1]]
    assert ends[-1] == here.written[-1].slices_done


def test_publication_that_fails_is_tried_again_with_the_same_slices() -> None:
    here = world()
    here.publication_fails = True
    with pytest.raises(BackfillFailed):
        play(here)
    here.publication_fails = False
    assert play(here, attempt=2)
    assert here.publications == [(0, 4), (0, 4)]
    assert here.starts == 2
    assert here.written[-1].published == 4


def test_publication_cut_short_keeps_its_slices_though_more_are_done_since() -> None:
    """A table that has the group under this number would pass by whatever were added to it."""
    here = world()
    here.controls = [Control(), Control(), Control(suspend=True)]
    here.publication_fails = True
    with pytest.raises(BackfillFailed):
        play(here)
    assert here.stored is not None
    assert here.stored.publishing == 2
    here.publication_fails = False
    assert play(here, attempt=2)
    assert here.publications == [(0, 2), (0, 2), (2, 4)]


def test_suspended_run_publishes_what_it_has() -> None:
    here = world()
    here.controls = [Control(), Control(suspend=True)]
    assert not play(here)
    assert here.publications == [(0, 1)]
    assert here.written[-1].ended


def test_rows_that_are_all_that_is_left_are_published_though_the_run_is_to_stop() -> None:
    """An attempt that ends with nothing left ends the run, so no later attempt would commit these rows."""
    here = world()
    here.publication_fails = True
    with pytest.raises(BackfillFailed):
        play(here)
    here.publication_fails, here.control = False, Control(suspend=True)
    assert play(here, attempt=2)
    assert (here.publications[-1], here.written[-1].published, here.written[-1].ended) == ((0, 4), 4, True)


def test_suspended_attempt_that_has_handled_nothing_leaves_older_rows_to_the_next() -> None:
    here = world()
    here.controls = [Control(), Control(suspend=True)]
    here.publication_fails = True
    with pytest.raises(BackfillFailed):
        play(here)
    here.publication_fails, here.control = False, Control(suspend=True)
    assert not play(here, attempt=2)
    assert (here.starts, here.publications) == (1, [(0, 1)])


@pytest.mark.parametrize("killed", [0, 1])
def test_range_that_is_gone_costs_no_rows_of_what_is_before_it(killed: int) -> None:
    """Every later attempt fails at the check of its first slice, so all staged rows are committed before that error. An
    attempt that was killed during a commit leaves one more commit."""
    here = world()
    here.stored = Ledger(attempt=1, remaining={1: ((50, 100),)}, slices_done=2, publishing=killed)

    def expire(planned: Sequence[TaskRange]) -> None:
        raise BackfillFailed("RangeExpired", "the log begins at 60", final=True)

    here.check = expire
    with pytest.raises(BackfillFailed, match=r"^the log begins at 60$"):
        play(here, attempt=2)
    assert here.publications == ([(0, 1), (1, 2)] if killed else [(0, 2)])
    assert here.written[-1].published == 2


def test_run_that_a_record_ends_publishes_what_is_before_it() -> None:
    here = world()

    def fail(planned: TaskRange, report: TaskReport) -> None:
        if here.played[-1][0] == 1:
            report.failures = [FailedRecord(planned.partition, planned.first, "ValueError", "no")]
            report.covered = []

    here.change = fail
    with pytest.raises(BackfillFailed, match="ValueError"):
        play(here)
    assert here.publications == [(0, here.written[-1].slices_done)]


@pytest.mark.parametrize("final", [False, True])
def test_publication_that_fails_hides_no_failed_record(final: bool) -> None:
    """Nor does the record end the run while another attempt may publish what is before it."""
    here = world()

    def fail(planned: TaskRange, report: TaskReport) -> None:
        if here.played[-1][0] == 1:
            report.failures = [FailedRecord(planned.partition, planned.first, "ValueError", "no")]
            report.covered = []

    here.change, here.publication_fails, here.failure_is_final = fail, True, final
    _, error = failed(
        here,
        "partition 0 offset 25: ValueError: no.*; the rows of earlier records are not in the table: the store is away",
    )
    assert (error.reason, error.final) == ("HandlerFailed" if final else "SliceFailed", final)
    here.publication_fails = False
    _, error = failed(here, "ValueError: no.*FailedTopic$")
    assert (error.reason, error.final, here.written[-1].published) == ("HandlerFailed", True, 1)


def test_sinks_of_other_kinds_publish_nothing() -> None:
    here = World()
    assert play(here)
    assert here.publications == []
