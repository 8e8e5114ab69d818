"""One attempt over an engine that plays in memory: what the ledger says at each moment, and what it goes on from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fleet_consumer.backfill.errors import BackfillFailed, Superseded
from fleet_consumer.backfill.slices import FailedRecord, TaskRange, TaskReport
from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.contract.backfill_ledger import Control, GuardWord, Ledger, RunProblem, Sample, SuspectedRecord
from fleet_consumer.contract.section import SettingsInvalid
from tests.unit.backfill.attempt import World, failed, play
from tests.unit.backfill.documents import backfill_document, compare_section


def test_all_is_covered_and_each_slice_is_noted_before_and_after() -> None:
    world = World()
    assert play(world)
    sizes = [ledger.slice_offsets for ledger in world.written]
    assert sizes == [0, 50, 0, 50, 0, 50, 0, 50, 0, 0]
    last = world.written[-1]
    assert last.ended
    assert not last.remaining
    assert (last.counts.records_in, last.slices_done, last.slices_left) == (200, 4, 0)
    assert [number for number, _ in world.played] == [0, 1, 2, 3]
    assert [ledger.offsets_left for ledger in world.written if not ledger.slice_offsets] == [200, 150, 100, 50, 0, 0]
    assert world.written[1].slices_left == 4
    assert world.discarded == [0]


def test_next_attempt_goes_on_at_the_ledger_and_takes_its_rate() -> None:
    world = World()
    world.stored = Ledger(
        attempt=1,
        remaining={1: ((60, 90),)},
        slices_done=7,
        offsets_per_second=1.0,
        problem=RunProblem(reason="x", message="y", final=False),
        ended=True,
    )
    assert play(world, 2)
    first = world.written[0]
    assert (first.attempt, first.problem, first.ended) == (2, None, False)
    assert world.discarded == [7]
    assert world.played[0] == (7, ((TaskRange(1, 60, 70),),))
    assert world.written[-1].slices_done > 8


def test_nothing_left_needs_no_session() -> None:
    world = World()
    world.stored = Ledger(attempt=1, remaining={})
    assert play(world, 2)
    assert world.starts == 0
    assert world.written[-1].ended
    world = World()
    world.control = Control(suspend=True)
    assert not play(world)
    assert world.starts == 0
    assert world.written[-1].offsets_left == 200


def test_tasks_that_stop_early_leave_the_rest() -> None:
    world = World(sliceRecords=100_000)

    def stop(planned: TaskRange, report: TaskReport) -> None:
        stop = min(planned.first + 30, planned.end)
        report.covered = [TaskRange(planned.partition, planned.first, stop)]
        report.records_in = stop - planned.first

    world.change = stop
    assert play(world)
    assert world.written[2].remaining == {0: ((30, 100),), 1: ((80, 150),)}
    assert world.written[-1].counts.records_in == 200
    assert world.prepared[0] == (10.0, None)


def test_suspend_stops_after_the_slice() -> None:
    world = World()
    world.controls = [Control(), Control(suspend=True)]
    assert not play(world)
    last = world.written[-1]
    assert (last.ended, last.problem, last.slices_done, last.offsets_left) == (True, None, 1, 150)


def test_suspend_wins_over_a_pause() -> None:
    world = World()
    world.control = Control(suspend=True, guard=GuardWord(pause=True, message="behind", checked="1"))
    assert not play(world)
    assert world.waits == []


def test_guard_pauses_with_its_reason_and_is_polled() -> None:
    world = World()
    pause = GuardWord(pause=True, message="live is 80 s behind", checked="1")
    world.controls = [Control(guard=pause), Control(guard=replace(pause, checked="2")), Control()]
    assert play(world)
    paused = [ledger for ledger in world.written if ledger.throttled_by == "Guard"]
    assert [each.throttle_message for each in paused] == ["live is 80 s behind"]
    assert world.waits == [2.0, 2.0]
    assert world.written[-1].throttled_by == ""


def test_rate_is_shared_among_running_tasks_and_shown_when_it_binds() -> None:
    world = World(parallelism=6, ordering="None", sliceRecords=120)
    world.control = Control(records_per_second=8)
    world.change = lambda planned, report: setattr(report, "waited", 3.0)
    assert play(world)
    assert len(world.played[0][1]) == 2, "two cores"
    assert world.prepared[0][1] == 4.0
    done = [ledger for ledger in world.written if ledger.slices_done and not ledger.ended]
    assert {each.throttled_by for each in done} == {"Rate"}
    assert sum(part.offsets for task in world.played[0][1] for part in task) <= 80


def test_failed_record_ends_the_run_and_what_is_done_stays() -> None:
    world = World()

    def fail(planned: TaskRange, report: TaskReport) -> None:
        if planned.first == 25:
            report.failures = [FailedRecord(0, 31, "ValueError", "no id")]
            report.covered, report.records_in = [TaskRange(0, 25, 31)], 6

    world.change = fail
    run, error = failed(world, r"partition 0 offset 31: ValueError: no id; .*fix")
    assert (error.reason, error.final) == ("HandlerFailed", True)
    run.fail(RunProblem(reason="HandlerFailed", message="m", final=True))
    last = world.written[-1]
    assert (last.ended, last.slice_offsets, last.slices_done, last.offsets_left) == (True, 0, 2, 119)
    assert last.remaining == {0: ((31, 100),), 1: ((100, 150),)}
    assert last.counts.records_in == 81
    # The next attempt begins with the record.
    world.change = lambda planned, report: None
    assert play(world, 2)
    assert world.written[-1].counts.records_in == 200


def test_problem_of_a_task_ends_the_attempt_behind_what_is_done() -> None:
    world = World()

    def stop(planned: TaskRange, report: TaskReport) -> None:
        if planned.partition == 1:
            report.problem = RunProblem(reason="SetupFailed", message="no database", final=False)
            report.covered, report.records_in = [], 0

    world.change = stop
    _, error = failed(world, "no database")
    assert (error.reason, error.final) == ("SetupFailed", False)
    assert world.written[-1].remaining == {0: ((25, 100),), 1: ((50, 150),)}
    assert world.written[-1].slices_done == 1


def test_slice_that_covers_nothing_has_no_number() -> None:
    world = World()

    def stop(planned: TaskRange, report: TaskReport) -> None:
        report.problem = RunProblem(reason="HandlerImportFailed", message="no module", final=True)
        report.covered, report.records_in = [], 0

    world.change = stop
    failed(world, "no module")
    assert world.written[-1].slices_done == 0


def test_missing_report_leaves_the_slice_undone() -> None:
    world = World()
    honest = world.play
    world.play = lambda *order: dict(list(honest(*order).items())[:1])  # type: ignore[method-assign]
    failed(world, "1 of 2 tasks")
    assert world.written[-1].slices_done == 0


def test_brokers_are_asked_before_a_slice_is_announced() -> None:
    world = World()

    def gone(planned: Sequence[TaskRange]) -> None:
        raise BackfillFailed("RangeExpired", "gone", final=True)

    world.check = gone
    failed(world, "gone")
    assert not world.played
    assert len(world.written) == 1


def test_ledger_that_cannot_be_claimed_is_not_written() -> None:
    world = World()
    world.superseded = True
    with pytest.raises(Superseded):
        world.run()
    assert world.written == []


def test_comparison_is_summed() -> None:
    world = World(compare=compare_section())

    def compare(planned: TaskRange, report: TaskReport) -> None:
        sample = Sample(partition=planned.partition, offset=planned.first, live="a", candidate="b")
        report.count_comparison("different", sample)
        report.compared["equal"] = 4

    world.change = compare
    assert play(world)
    found = world.written[-1].comparison
    assert found is not None
    assert (found.equal, found.different) == (32, 8)
    assert [(each.partition, each.offset) for each in found.samples[:3]] == [(0, 0), (1, 50), (0, 25)]
    assert world.written[0].comparison is not None


def test_second_pass_goes_through_the_slices_of_the_first() -> None:
    sink = {"topic": None, "parquet": "/s"}
    world = World(compare=compare_section("Live"), sink=sink, sliceRecords=100)
    assert play(world)
    assert world.stored is not None
    assert (world.stored.handlers, world.stored.comparison, world.stored.offsets_left) == ("Live", None, 0)
    assert world.stored.slices_done == 2
    world.config = parse_config(backfill_document(compare=compare_section("Candidate"), sink=sink))
    died = TaskReport(covered=[TaskRange(0, 0, 20)], records_in=20, compared={"equal": 20})
    died.died = [SuspectedRecord(partition=0, offset=20, side="Candidate", deaths=1)]
    whole = TaskReport(
        covered=[TaskRange(0, 0, 50), TaskRange(1, 50, 90)], records_in=90, compared={"equal": 89, "different": 1}
    )
    world.answers = [died, whole, TaskReport(covered=[TaskRange(0, 50, 80)], records_in=30, compared={"equal": 30})]
    assert play(world, 2)
    assert world.second == [0, 0, 1], "a slice in which a process died is gone through once more"
    assert world.stored.handlers == "Candidate"
    assert world.stored.comparison is not None
    assert (world.stored.comparison.equal, world.stored.comparison.different) == (119, 1)
    assert (world.stored.counts.records_in, world.stored.offsets_left, world.stored.slices_left) == (120, 0, 0)
    assert play(world, 3)
    assert world.stored.comparison.equal == 119


def test_passes_that_do_not_fit_the_ledger_are_refused() -> None:
    sink = {"topic": None, "parquet": "/s"}
    world = World(compare=compare_section("Candidate"), sink=sink)
    world.stored = Ledger(attempt=1, handlers="Live", remaining={0: ((0, 5),)})
    with pytest.raises(SettingsInvalid, match="has 5 unhandled offsets in pass Live"):
        world.run(2)
    world.stored = Ledger(attempt=1, handlers="Both", remaining={})
    with pytest.raises(SettingsInvalid, match="pass Both"):
        world.run(2)
    assert world.written == []


def test_superseded_passes_through() -> None:
    world = World()
    run = world.run()

    def write(ledger: Ledger) -> None:
        raise Superseded("newer")

    run._parts.ledgers.write = write  # type: ignore[method-assign]
    with pytest.raises(Superseded):
        run.go(world.start)


def test_paused_driver_gives_signs_of_life() -> None:
    """Its ledger stays the same for as long as the guard says the same."""
    world = World()
    behind = Control(guard=GuardWord(checked="1", pause=True, message="the live group is behind"))
    world.controls = [behind] * 100
    assert play(world)
    numbers = [sign for _, sign in world.signs]
    assert numbers == sorted(set(numbers)), "each is another one"
    times = [at for at, _ in world.signs]
    assert len(times) > 5
    assert all(after - before <= 30.0 for before, after in itertools.pairwise(times))


def test_superseded_attempt_removes_no_files() -> None:
    """Those of its slice may be the newer attempt's by now."""
    world = World()
    run = world.run()

    def start() -> World:
        world.superseded = True
        return world

    with pytest.raises(Superseded):
        run.go(start)
    assert world.discarded == []


def test_first_of_two_passes_gives_a_task_one_range_of_a_partition() -> None:
    """The second pass reads from the first to the last stored answer. If other tasks had covered a gap in between, the
    candidate would handle the gap's records twice, and they would count as records that the live handler lacks."""
    sink = {"topic": None, "parquet": "/s"}
    world = World(compare=compare_section("Live"), sink=sink, ordering="None", sliceRecords=60)

    def stop(planned: TaskRange, report: TaskReport) -> None:
        if not report.covered[0].first % 20:
            report.covered = [planned._replace(end=planned.first + 5)]

    world.change = stop
    assert play(world)
    tasks = [task for _, planned in world.played for task in planned]
    assert any(len(task) > 1 for task in tasks)
    assert [task for task in tasks if len({each.partition for each in task}) < len(task)] == []
