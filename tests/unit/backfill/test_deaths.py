"""Records that end processes and executors, as the ledger of an attempt has them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fleet_consumer.backfill.errors import ExecutorsLost
from fleet_consumer.backfill.slices import TaskRange, TaskReport
from fleet_consumer.contract.backfill_ledger import Ledger, RunProblem, SuspectedRecord
from tests.unit.backfill.attempt import World, failed, play
from tests.unit.backfill.documents import compare_section


def test_record_that_was_in_hand_at_a_death_is_suspected_until_it_is_done() -> None:
    world = World()
    deaths = 0

    def die(planned: TaskRange, report: TaskReport) -> None:
        nonlocal deaths
        if planned.partition == 0 and planned.first <= 10 < planned.end and deaths < 3:
            deaths += 1
            report.died = [SuspectedRecord(partition=0, offset=10, side="Live", deaths=1)]
            report.covered, report.records_in = [TaskRange(0, planned.first, 10)], 10 - planned.first

    world.change = die
    assert play(world)
    counted = [[each.deaths for each in suspected] for suspected in world.suspected]
    assert counted[:4] == [[], [1], [2], [3]]
    assert not any(counted[4:])
    assert world.written[-1].suspects == ()


@pytest.mark.parametrize(("offsets", "deaths"), [(25, 2), (10, 3), (1, 4)])
def test_task_that_ended_four_executors_makes_its_first_record_suspected(offsets: int, deaths: int) -> None:
    """Its deaths are the tries in which the record was alone: of a task with one offset all of them."""
    world = World(sliceRecords=2 * offsets)

    def lose(*_: object) -> Mapping[int, TaskReport]:
        raise ExecutorsLost("exit code 137", 1, 4)

    honest, world.play = world.play, lose  # type: ignore[method-assign,assignment]
    run, error = failed(world, "partition 1 offset 50: exit code 137")
    assert (error.reason, error.final) == ("ExecutorLost", False)
    run.fail(RunProblem(reason="ExecutorLost", message="m", final=False))
    assert world.written[-1].suspects == (SuspectedRecord(partition=1, offset=50, side="Live", deaths=deaths),)
    world.play = honest  # type: ignore[method-assign]
    assert play(world, 2)
    assert world.suspected[-1] == ()


def test_second_pass_that_ended_executors_makes_no_record_suspected() -> None:
    """Its tasks take stored answers, by files and not as planned, and never a part of them."""
    sink = {"topic": None, "parquet": "/s"}
    world = World(compare=compare_section("Candidate"), sink=sink)
    world.stored = Ledger(attempt=0, handlers="Live", remaining={}, slices_done=1)

    def lose(*_: object) -> Mapping[int, TaskReport]:
        raise ExecutorsLost("exit code 137", 0, 4)

    world.play_second_pass = lose  # type: ignore[method-assign,assignment]
    run, error = failed(world, "^exit code 137$")
    assert (error.reason, error.final) == ("ExecutorLost", False)
    run.fail(RunProblem(reason="ExecutorLost", message="m", final=False))
    assert world.written[-1].suspects == ()


def test_handler_whose_process_dies_at_every_record_ends_the_run() -> None:
    world = World()

    def poison(planned: TaskRange, report: TaskReport) -> None:
        report.poison = report.failed = 6

    world.change = poison
    _, error = failed(world, "12 of 50 records ended the process")
    assert (error.reason, error.final) == ("HandlerProcessDied", True)


def test_tasks_that_spark_began_again_are_counted() -> None:
    world = World()
    world.change = lambda planned, report: setattr(report, "repeated", 1)
    assert play(world)
    assert world.written[-1].repeated == 8


def test_tasks_get_small_behind_a_lost_executor_and_grow_again() -> None:
    world = World(ranges={"0": [0, 400]}, sliceRecords=100, sliceSeconds=1_000)

    def lose(planned: TaskRange, report: TaskReport) -> None:
        if planned.first <= 50 < planned.end and planned.offsets > 8:
            report.repeated = 1
            report.covered, report.records_in = [TaskRange(0, planned.first, planned.first + planned.offsets // 8)], 1

    world.change = lose
    assert play(world)
    sizes = [task[0].offsets for _, (task,) in world.played]
    assert sizes[:7] == [100, 24, 48, 12, 2, 4, 8]
    assert max(sizes[7:]) == 100


def test_handler_that_handles_nothing_between_its_deaths_ends_the_run() -> None:
    """Its memory is too small for any record: each would need three deaths."""
    world = World()

    def die(planned: TaskRange, report: TaskReport) -> None:
        report.died = [SuspectedRecord(partition=planned.partition, offset=planned.first, side="Live", deaths=1)]
        report.covered, report.records_in = [], 0

    world.change = die
    _, error = failed(world, r"died 12 times without handling a record .*memoryOverhead")
    assert (error.reason, error.final) == ("HandlerProcessDied", True)


def test_candidate_that_dies_in_a_slice_again_and_again_ends_the_run() -> None:
    """The candidate's memory grows with each record. An incomplete slice of the second pass is repeated as a whole, so
    the records that were handled before each death are not progress."""
    world = World(compare=compare_section("Candidate"), sink={"topic": None, "parquet": "/s"})
    world.stored = Ledger(attempt=0, handlers="Live", remaining={}, slices_done=1)

    def die(slice_number: int, work: object) -> Mapping[int, TaskReport]:
        world.second.append(slice_number)
        assert len(world.second) < 1_000
        died = SuspectedRecord(partition=0, offset=len(world.second) % 100, side="Candidate", deaths=1)
        return {0: TaskReport(covered=[TaskRange(0, 0, 50)], records_in=50, died=[died])}

    world.play_second_pass = die  # type: ignore[method-assign]
    _, error = failed(world, "died in each of 100 tries of slice 0, .*memoryOverhead")
    assert (error.reason, error.final) == ("HandlerProcessDied", True)


def test_record_that_ends_executors_is_set_aside_for_both_handlers() -> None:
    """Either handler may be the cause. If only one of them skipped the record, the other could end executors again."""
    world = World(compare=compare_section(), sliceRecords=2)

    def lose(*_: object) -> Mapping[int, TaskReport]:
        raise ExecutorsLost("exit code 137", 1, 4)

    world.play = lose  # type: ignore[method-assign,assignment]
    run, error = failed(world, "partition 1 offset 50: exit code 137")
    run.fail(error.problem)
    assert {(each.offset, each.side, each.deaths) for each in world.written[-1].suspects} == {
        (50, "Live", 4),
        (50, "Candidate", 4),
    }
