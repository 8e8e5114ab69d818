"""One attempt over an engine that plays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fleet_consumer.backfill.errors import BackfillFailed, Superseded
from fleet_consumer.backfill.run import Parts, Run
from fleet_consumer.backfill.slices import Task, TaskRange, TaskReport
from fleet_consumer.backfill.work import Work
from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.contract.backfill_ledger import Control, Ledger, SuspectedRecord
from tests.support.clock import StillClock
from tests.unit.backfill.documents import backfill_document

WORK = Work(config="{}", policies=None, seconds=1.0, rate=None, limits={})


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
        self.suspected: list[tuple[SuspectedRecord, ...]] = []
        self.played: list[tuple[int, tuple[Task, ...]]] = []
        self.discarded: list[int] = []
        self.publications: list[tuple[int, int]] = []
        self.publication_fails = False
        self.failure_is_final = False
        self.cleared: list[tuple[int, int]] = []
        self.second: list[int] = []
        self.answers: list[TaskReport] = []
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
            def load(self) -> Ledger | None:
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

        def prepare(seconds: float, rate: float | None, suspected: tuple[SuspectedRecord, ...]) -> Work:
            world.prepared.append((seconds, rate))
            world.suspected.append(suspected)
            return WORK

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

    def play(self, slice_number: int, planned: Sequence[Task], work: Work) -> Mapping[int, TaskReport]:
        self.played.append((slice_number, tuple(planned)))
        reports = {}
        for number, task in enumerate(planned):
            size = sum(each.offsets for each in task)
            report = TaskReport(records_in=size, records_out=size, seconds=size / self.per_second)
            report.covered = list(task)
            self.change(task[0], report)
            reports[number] = report
        self.clock.now += 1.0 + max(report.seconds for report in reports.values())
        return reports

    def publish(self, first: int, end: int) -> None:
        self.publications.append((first, end))
        if self.publication_fails:
            raise BackfillFailed("SliceFailed", "the store is away", final=self.failure_is_final)

    def discard(self, first: int, end: int | None = None) -> None:
        if end is None:
            self.discarded.append(first)
        else:
            self.cleared.append((first, end))

    def play_second_pass(self, slice_number: int, work: Work) -> Mapping[int, TaskReport]:
        self.second.append(slice_number)
        return {0: self.answers.pop(0)}


def play(world: World, attempt: int = 1) -> bool:
    return world.run(attempt).go(world.start)


def failed(world: World, match: str) -> tuple[Run, BackfillFailed]:
    """An attempt that an error with such a message ends, and the error."""
    run = world.run()
    with pytest.raises(BackfillFailed, match=match) as raised:
        run.go(world.start)
    return run, raised.value
