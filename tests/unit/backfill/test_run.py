"""One attempt over an engine that plays in memory: what the ledger says at each moment, and what it goes on from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.backfill.errors import BackfillFailed, Superseded
from fleet_consumer.backfill.run import Parts, Run
from fleet_consumer.backfill.slices import FailedRecord, TaskRange, TaskReport
from fleet_consumer.backfill.work import Work
from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.contract.backfill_ledger import Control, GuardWord, Ledger, RunProblem, Sample
from fleet_consumer.contract.section import SettingsInvalid
from tests.support.clock import StillClock
from tests.unit.backfill.documents import backfill_document, compare_section

WORK = Work(config="{}", policies=None, attempt=1, seconds=1.0, rate=None, limits={})


class World:
    """Ledger, control, brokers and engine of an attempt, each in memory. `per_second` is the engine's speed."""

    def __init__(self, **changes: Any) -> None:
        self.config = parse_config(backfill_document(**changes))
        self.clock = StillClock()
        self.stored: Ledger | None = None
        self.written: list[Ledger] = []
        self.control = Control()
        self.controls: list[Control] = []
        self.waits: list[float] = []
        self.prepared: list[tuple[float, float | None]] = []
        self.played: list[tuple[int, tuple[TaskRange, ...]]] = []
        self.discarded: list[int] = []
        self.joined: list[TaskReport] = []
        self.per_second = 10.0
        self.cores = 2
        self.change: Callable[[TaskRange, TaskReport], None] = lambda planned, report: None
        self.check: Callable[[Sequence[TaskRange]], None] = lambda planned: None
        self.starts = 0
        self.signs: list[tuple[float, int]] = []
        self.superseded = False

    def run(self, attempt: int = 1) -> Run:
        world = self

        class Ledgers:
            def read(self) -> Ledger | None:
                if world.superseded:
                    raise Superseded("a newer attempt has the ledger")
                return world.stored

            def write(self, ledger: Ledger) -> None:
                world.stored = ledger
                world.written.append(ledger)

            def alive(self, sign: int) -> None:
                world.signs.append((world.clock.now, sign))

        def read_control() -> Control:
            return world.controls.pop(0) if world.controls else world.control

        def prepare(seconds: float, rate: float | None) -> tuple[Work, Mapping[str, str]]:
            world.prepared.append((seconds, rate))
            return WORK, {"kafka.bootstrap.servers": "x"}

        def wait(seconds: float) -> None:
            world.waits.append(seconds)
            world.clock.now += seconds

        parts = Parts(
            ledgers=Ledgers(),
            read_control=read_control,
            check_ranges=self.check,
            prepare=prepare,
            clock=self.clock,
            wait=wait,
        )
        return Run(self.config, attempt, parts)

    def start(self) -> World:
        self.starts += 1
        return self

    def play(self, slice_number: int, planned: Sequence[TaskRange], *_order: object) -> Mapping[int, TaskReport]:
        self.played.append((slice_number, tuple(planned)))
        reports = {}
        for number, each in enumerate(planned):
            size = each.end - each.first
            report = TaskReport(first=(each.partition, each.first), records_in=size, records_out=size)
            report.seconds = size / self.per_second
            self.change(each, report)
            reports[number] = report
        self.clock.now += 1.0 + max(report.seconds for report in reports.values())
        return reports

    def discard_from(self, number: int) -> None:
        self.discarded.append(number)

    def join_passes(self) -> Sequence[TaskReport]:
        return self.joined


def play(world: World, attempt: int = 1) -> bool:
    run = world.run(attempt)
    run.begin()
    return run.go(world.start)


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
        records_per_second=1.0,
        problem=RunProblem(reason="x", message="y", final=False),
        ended=True,
    )
    assert play(world, 2)
    first = world.written[0]
    assert (first.attempt, first.problem, first.ended) == (2, None, False)
    assert world.discarded == [7]
    assert world.played[0] == (7, (TaskRange(1, 60, 70),))
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
        report.stop = min(planned.first + 30, planned.end)
        report.records_in = report.stop - planned.first

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
    world.control = Control(suspend=True, guard=GuardWord(pause=True, message="behind", look="1"))
    assert not play(world)
    assert world.waits == []


def test_guard_pauses_with_its_reason_and_is_polled() -> None:
    world = World()
    pause = GuardWord(pause=True, message="live is 80 s behind", look="1")
    world.controls = [Control(guard=pause), Control(guard=replace(pause, look="2")), Control()]
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
    assert all(len(planned) >= 2 for _, planned in world.played[:1])
    assert world.prepared[0][1] == 4.0, "two cores"
    done = [ledger for ledger in world.written if ledger.slices_done and not ledger.ended]
    assert {each.throttled_by for each in done} == {"Rate"}
    assert sum(part.end - part.first for part in world.played[0][1]) <= 80


def test_failed_record_ends_the_run_and_its_slice_is_discarded() -> None:
    world = World()

    def fail(planned: TaskRange, report: TaskReport) -> None:
        if planned.first == 25:
            report.failure = FailedRecord(0, 31, "ValueError", "no id")
            report.stop = 31

    world.change = fail
    run = world.run()
    run.begin()
    with pytest.raises(BackfillFailed, match="partition 0 offset 31: ValueError: no id; mend") as failed:
        run.go(world.start)
    assert (failed.value.reason, failed.value.final) == ("HandlerFailed", True)
    assert world.discarded == [0, 1]
    run.fail(RunProblem(reason="HandlerFailed", message="m", final=True))
    last = world.written[-1]
    assert (last.ended, last.slice_offsets, last.slices_done, last.offsets_left) == (True, 0, 1, 150)
    assert last.counts.records_in == 50


def test_missing_report_leaves_the_slice_undone() -> None:
    world = World()
    honest = world.play
    world.play = lambda *order: dict(list(honest(*order).items())[:1])  # type: ignore[method-assign]
    run = world.run()
    run.begin()
    with pytest.raises(BackfillFailed, match="1 of 2 tasks"):
        run.go(world.start)
    assert world.written[-1].slices_done == 0


def test_brokers_are_asked_before_a_slice_is_announced() -> None:
    world = World()

    def gone(planned: Sequence[TaskRange]) -> None:
        raise BackfillFailed("RangeExpired", "gone", final=True)

    world.check = gone
    run = world.run()
    run.begin()
    with pytest.raises(BackfillFailed, match="gone"):
        run.go(world.start)
    assert not world.played
    assert len(world.written) == 1


def test_unread_ledger_is_not_written_over_by_a_problem() -> None:
    world = World()
    run = world.run()
    run.fail(RunProblem(reason="x", message="y", final=True))
    assert world.written == []


def test_comparison_is_summed() -> None:
    world = World(compare=compare_section())

    def compare(planned: TaskRange, report: TaskReport) -> None:
        sample = Sample(partition=planned.partition, offset=planned.first, live="a", candidate="b")
        report.note("different", sample)
        report.compared["equal"] = 4

    world.change = compare
    assert play(world)
    found = world.written[-1].comparison
    assert found is not None
    assert (found.equal, found.different) == (32, 8)
    assert [(each.partition, each.offset) for each in found.samples[:3]] == [(0, 0), (1, 50), (0, 25)]
    assert world.written[0].comparison is not None


def test_second_pass_begins_anew_and_joins_once() -> None:
    sink = {"topic": None, "parquet": "/s"}
    world = World(compare=compare_section("Live"), sink=sink)
    assert play(world)
    assert world.stored is not None
    assert (world.stored.handlers, world.stored.comparison, world.stored.offsets_left) == ("Live", None, 0)
    world.config = parse_config(backfill_document(compare=compare_section("Candidate"), sink=sink))
    report = TaskReport()
    report.note("equal", None)
    world.joined = [report, report]
    assert play(world, 2)
    assert world.stored.handlers == "Candidate"
    assert world.stored.comparison is not None
    assert world.stored.comparison.equal == 2
    assert world.stored.counts.records_in == 200
    world.joined = []
    assert play(world, 3)
    assert world.stored.comparison.equal == 2


def test_passes_that_do_not_fit_the_ledger_are_refused() -> None:
    sink = {"topic": None, "parquet": "/s"}
    world = World(compare=compare_section("Candidate"), sink=sink)
    world.stored = Ledger(attempt=1, handlers="Live", remaining={0: ((0, 5),)})
    with pytest.raises(SettingsInvalid, match="5 offsets left"):
        world.run(2).begin()
    world.stored = Ledger(attempt=1, handlers="Both", remaining={})
    with pytest.raises(SettingsInvalid, match="pass Both"):
        world.run(2).begin()
    assert world.written == []


def test_superseded_passes_through() -> None:
    world = World()
    run = world.run()
    run.begin()

    def write(ledger: Ledger) -> None:
        raise Superseded("newer")

    run._parts.ledgers.write = write  # type: ignore[method-assign]
    with pytest.raises(Superseded):
        run.go(world.start)


def test_paused_driver_gives_signs_of_life() -> None:
    """Its ledger stays the same for as long as the guard says the same."""
    world = World()
    behind = Control(guard=GuardWord(look="1", pause=True, message="the live group is behind"))
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
    run.begin()

    def start() -> World:
        world.superseded = True
        return world

    with pytest.raises(Superseded):
        run.go(start)
    assert world.discarded == []
