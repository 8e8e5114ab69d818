"""Tasks in Spark's Python worker, over processes that answer from memory: comparisons piece by piece, and deaths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fleet_consumer.backfill import task as task_module
from fleet_consumer.backfill.children import Died
from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import TaskRange, TaskReport, part_of
from fleet_consumer.backfill.task import run_second_pass, run_task
from fleet_consumer.backfill.work import Part, PlayRequest, Work
from fleet_consumer.contract.backfill_ledger import SuspectedRecord
from tests.unit.backfill.documents import backfill_document, compare_section

PARQUET = {"topic": None, "parquet": "/sink"}
WORK = Work(config="{}", policies=None, seconds=60.0, rate=None, limits={})


class Process:
    """The process of a side: its answer to a record is its offset, `odd` where it is in `differs`."""

    def __init__(self, side: str, differs: frozenset[int] = frozenset(), dies_at: int = -1) -> None:
        self.side, self.differs, self.dies_at = side, differs, dies_at
        self.requests: list[PlayRequest] = []
        self.usable = True
        self.poison = 0

    def play(self, request: PlayRequest) -> Iterator[Part]:
        self.requests.append(request)
        for each in request.ranges:
            if each.first <= self.dies_at < each.end:
                self.usable = False
                raise Died("signal 11", [SuspectedRecord(partition=0, offset=self.dies_at, side=self.side, deaths=1)])
            offsets = range(each.first, each.end)
            rows = [["t", each.partition, at, 0, b"k", self._answer(at)] for at in offsets]
            report = TaskReport(covered=[each], records_in=len(rows))
            report.poison = self.poison
            yield Part(report, [list(column) for column in zip(*rows, strict=True)], last=False)
        yield Part(TaskReport(), [], last=True)

    def _answer(self, at: int) -> str:
        value = "odd" if at in self.differs else str(at)
        return json.dumps({"outputs": [{"topic": "done", "key": None, "value": value, "headers": []}]})

    def close(self) -> None:
        self.usable = False


class Tasks:
    """Tasks over such processes, and the rows that they give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[Any] = []
        self.processes: dict[str, Process] = {}
        monkeypatch.setattr(task_module, "_PROCESSES", {})
        monkeypatch.setattr(task_module, "batch_of", lambda columns, rows: self.rows.extend(zip(*rows, strict=True)))
        monkeypatch.setattr(task_module, "HandlerProcess", lambda config, side: self.processes[side])

    def __call__(
        self, *task: TaskRange, seconds: float = 60.0, suspected: tuple[SuspectedRecord, ...] = (), **changes: Any
    ) -> TaskReport:
        text = json.dumps(backfill_document(**changes))
        report = TaskReport()
        work = Work(config=text, policies=None, seconds=seconds, rate=None, limits={}, suspected=suspected)
        for _ in run_task(work, task, report):
            """`rows` has them."""
        return report


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    return Tasks(monkeypatch)


def test_comparison_judges_each_record_once_and_gives_the_differences(tasks: Tasks) -> None:
    tasks.processes = {"Live": Process("Live"), "Candidate": Process("Candidate", frozenset({3, 450}))}
    report = tasks(TaskRange(0, 0, 300), TaskRange(1, 400, 900), compare=compare_section(), sink=PARQUET)
    assert report.compared == {"equal": 798, "different": 2}
    assert report.records_in == 800
    assert [row[1:3] for row in tasks.rows] == [(0, 3), (1, 450)]
    live, candidate = (tasks.processes[side].requests for side in ("Live", "Candidate"))
    assert [each.ranges for each in live] == [each.ranges for each in candidate]
    assert len(live) > 2, "pieces, so that neither side runs far ahead"
    assert not any(each.bounded for each in live)
    handled = [
        (each.partition, at) for request in live for each in request.ranges for at in range(each.first, each.end)
    ]
    assert handled == [(0, at) for at in range(300)] + [(1, at) for at in range(400, 900)]


def test_comparison_stops_in_time_behind_a_whole_piece(tasks: Tasks) -> None:
    tasks.processes = {"Live": Process("Live"), "Candidate": Process("Candidate")}
    report = tasks(TaskRange(0, 0, 9_000), compare=compare_section(), seconds=0.0)
    assert report.covered == [(0, 0, 100)]
    assert report.compared == {"equal": 100}


def test_death_of_one_side_is_told_and_both_are_begun_again(tasks: Tasks) -> None:
    first = {"Live": Process("Live"), "Candidate": Process("Candidate", dies_at=150)}
    tasks.processes = dict(first)
    report = tasks(TaskRange(0, 0, 300), compare=compare_section())
    assert [(each.offset, each.side) for each in report.died] == [(150, "Candidate")]
    assert report.covered == [(0, 0, 100)], "the piece before it"
    assert not any(each.usable for each in first.values())
    assert not task_module._PROCESSES


def test_poison_of_the_candidate_is_counted(tasks: Tasks) -> None:
    tasks.processes = {"Live": Process("Live"), "Candidate": Process("Candidate")}
    tasks.processes["Candidate"].poison = 1
    assert tasks(TaskRange(0, 0, 1), compare=compare_section()).poison == 1


def test_suspected_record_of_a_comparison_is_a_piece_of_its_own(tasks: Tasks) -> None:
    tasks.processes = {"Live": Process("Live"), "Candidate": Process("Candidate")}
    suspected = (SuspectedRecord(partition=0, offset=50, side="Candidate", deaths=1),)
    report = tasks(TaskRange(0, 0, 60), compare=compare_section(), suspected=suspected)
    assert [each.ranges for each in tasks.processes["Live"].requests] == [
        (TaskRange(0, 0, 50),),
        (TaskRange(0, 50, 51),),
        (TaskRange(0, 51, 60),),
    ]
    assert report.compared == {"equal": 60}


class Batch:
    """Stored answers of the live handler to these records of partition 0, as Spark's worker gives them."""

    def __init__(self, *offsets: int) -> None:
        (part,) = (each for each in Process("Live").play(PlayRequest(WORK, (TaskRange(0, 0, 99),))) if each.rows)
        rows = [row for row in zip(*part.rows, strict=True) if row[2] in offsets]
        self.columns = [
            SimpleNamespace(to_pylist=lambda values=values: list(values)) for values in zip(*rows, strict=True)
        ]


def second_pass(tasks: Tasks, *batches: Any) -> TaskReport:
    text = json.dumps(backfill_document(compare=compare_section("Candidate"), sink=PARQUET))
    report = TaskReport()
    for _ in run_second_pass(replace(WORK, config=text), report, batches):
        """`rows` has them."""
    return report


def test_second_pass_handles_the_spans_of_stored_answers_and_compares(tasks: Tasks) -> None:
    """A record that has no stored answer was not there for the live handler, and differs."""
    tasks.processes = {"Candidate": Process("Candidate", differs=frozenset({5}))}
    report = second_pass(tasks, Batch(2, 3, 5), Batch(8, 10))
    requests = tasks.processes["Candidate"].requests
    assert [each.ranges for each in requests] == [(TaskRange(0, 2, 6),), (TaskRange(0, 8, 11),)]
    assert not any(each.bounded for each in requests)
    assert [row[1:3] for row in tasks.rows] == [(0, 4), (0, 5), (0, 9)]
    assert report.compared == {"equal": 4, "different": 3}
    assert report.covered == [(0, 2, 6), (0, 8, 11)]
    assert report.seconds > 0


def test_death_in_a_second_pass_is_told(tasks: Tasks) -> None:
    tasks.processes = {"Candidate": Process("Candidate", dies_at=8)}
    report = second_pass(tasks, Batch(2), Batch(8), Batch(9))
    assert [(each.offset, each.side) for each in report.died] == [(8, "Candidate")]
    assert report.covered == [(0, 2, 3)]


def test_process_that_cannot_start_is_a_problem_of_the_report(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: str, side: str) -> Process:
        raise BackfillFailed("HandlerImportFailed", "no module", final=True)

    monkeypatch.setattr(task_module, "HandlerProcess", fail)
    report = tasks(TaskRange(0, 0, 300))
    assert report.problem is not None
    assert (report.problem.reason, report.problem.final) == ("HandlerImportFailed", True)


def test_task_that_spark_begins_again_takes_less_each_time() -> None:
    task = (TaskRange(0, 0, 50), TaskRange(1, 0, 50))
    assert part_of(task, 0) == task
    assert part_of(task, 1) == (TaskRange(0, 0, 12),)
    assert part_of(task, 2) == part_of(task, 3) == (TaskRange(0, 0, 1),)
