"""One task of a slice, in Spark's Python worker: its handlers' processes do the work, and it gives rows to Spark.

A task never raises for a record, nor for anything that another try would meet again: Spark would repeat it, and with it
the handler's effects. It stops, and reports. What Spark repeats is a task whose executor died; it takes a smaller part
of its ranges then, and a single record in the end, so that one that ends executors is found.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.backfill.children import Died, HandlerProcess
from fleet_consumer.backfill.comparing import Ignored, judged
from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.rows import Rows, batch_of, columns_of
from fleet_consumer.backfill.slices import Task, TaskRange, TaskReport, behind, offsets_of, part_of, shortened
from fleet_consumer.backfill.work import Order, Pacer, Part, Work, config_of
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BOTH, CANDIDATE, LIVE, BackfillConfig

if TYPE_CHECKING:
    import pyarrow

PIECE_FIRST: Final = 100
PIECE_MAX: Final = 5_000
PIECE_S: Final = 1.0
"""Offsets that both handlers of a comparison get before their answers are compared: about what takes a second."""

_PROCESSES: dict[tuple[str, str], HandlerProcess] = {}
"""The handlers' processes of this Python worker, by the settings and the side."""


def task_function(
    work: Work, number: int, planned: Sequence[Task] | None, reports: Any
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow` over one row for each task or, with None planned, over the stored answers of the
    first pass of a comparison; `reports` is the driver's accumulator, keyed by slice and task."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "Spark runs this"
        task, attempt = context.partitionId(), context.attemptNumber()
        report = TaskReport(repeated=int(attempt > 0))
        if planned is None:
            yield from run_second_pass(work, report, batches)
        else:
            for _ in batches:
                """The row says nothing; its partition is the task."""
            yield from run_task(work, part_of(planned[task], attempt), report)
        # Only a task that came to its end reports.
        reports.add({(number, task): report})

    return run


def run_task(work: Work, task: Task, report: TaskReport) -> Iterator[pyarrow.RecordBatch]:
    """Play a task, and fill in its report."""

    def play(*processes: HandlerProcess) -> Iterator[list[list[Any]]]:
        handle = _single if len(processes) == 1 else _compared
        return handle(work, task, report, *processes)

    return _run(work, report, play)


def run_second_pass(
    work: Work, report: TaskReport, batches: Iterable[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    """Have the candidate handle the records of these answers of the live handler, and fill in the report."""
    return _run(work, report, partial(_second, work, batches, report))


def _run(
    work: Work, report: TaskReport, play: Callable[..., Iterator[list[list[Any]]]]
) -> Iterator[pyarrow.RecordBatch]:
    """Batches of the rows that `play` yields with the processes of this pass.

    The report says why a task has to stop; the next one begins with new processes then.
    """
    if not gc.get_freeze_count():
        # PySpark collects cycles after each task, which walks all imported modules for 50 ms unless they are frozen.
        gc.freeze()
    try:
        config = config_of(work.config)
        columns = columns_of(config)
        handlers = LIVE if config.compare is None else config.compare.handlers
        sides = (LIVE, CANDIDATE) if handlers == BOTH else (handlers,)
        processes = [_process(work.config, side) for side in sides]
        clock = SystemClock()
        began = clock.monotonic()
        for rows in play(*processes):
            if rows and rows[0]:
                yield batch_of(columns, rows)
        report.seconds = clock.monotonic() - began
    except Died as death:
        report.died += death.suspects
        _forget_dead()
    except BackfillFailed as error:
        report.problem = error.problem
        _forget_dead()


def _ignored(config: BackfillConfig) -> Ignored:
    assert config.compare is not None, "this Backfill compares"
    return Ignored.of(config.compare.ignore_fields, config.compare.ignore_headers)


def _process(config: str, side: str) -> HandlerProcess:
    known = _PROCESSES.get((config, side))
    if known is None or not known.usable:
        known = _PROCESSES[config, side] = HandlerProcess(config, side)
    return known


def _forget_dead() -> None:
    """Forget processes that are gone, and end those whose partner is: they may be in the middle of an order."""
    for process in _PROCESSES.values():
        process.close()
    _PROCESSES.clear()


def _single(work: Work, task: Task, report: TaskReport, process: HandlerProcess) -> Iterator[list[list[Any]]]:
    for part in process.play(Order(work, task)):
        report.add(part.report)
        yield part.rows


def _compared(
    work: Work, task: Task, report: TaskReport, live: HandlerProcess, candidate: HandlerProcess
) -> Iterator[list[list[Any]]]:
    """Both handlers over the same records, piece by piece, each in its own process; yields the differences."""
    config, clock = config_of(work.config), SystemClock()
    keeps, ignored = config.sink.parquet is not None, _ignored(config)
    pacer, size, left = Pacer(work.seconds, work.rate, clock), PIECE_FIRST, task
    while left and pacer.may_take(offsets_of(shortened(left, size))):
        piece, began = _without_suspects(shortened(left, size), work), clock.monotonic()
        playing = [process.play(Order(work, piece, bounded=False)) for process in (live, candidate)]
        # In turns: neither waits for long until its part is taken.
        turns = zip(*zip_longest(*playing), strict=True)
        (found, ours), (other, theirs) = (_gathered(filter(None, parts)) for parts in turns)
        if problem := found.problem or other.problem:
            report.problem = problem
            return
        rows = _differences(ours, theirs, ignored, report)
        report.add(found)
        report.poison += other.poison
        yield rows.columns if keeps else []
        left = behind(left, piece)
        size = max(1, min(PIECE_MAX, 2 * size, int(size * PIECE_S / max(clock.monotonic() - began, 1e-3))))
    report.waited = pacer.waited


def _second(
    work: Work, batches: Iterable[pyarrow.RecordBatch], report: TaskReport, candidate: HandlerProcess
) -> Iterator[list[list[Any]]]:
    """The candidate over the records of stored answers, batch by batch; yields the differences."""
    ignored = _ignored(config_of(work.config))
    for batch in batches:
        live = _by_place([column.to_pylist() for column in batch.columns])
        spans: dict[int, tuple[int, int]] = {}
        for partition, offset in sorted(live):
            spans[partition] = (spans.get(partition, (offset, 0))[0], offset + 1)
        task = tuple(TaskRange(part, first, end) for part, (first, end) in spans.items())
        found, answers = _gathered(candidate.play(Order(work, task, bounded=False)))
        if found.problem is not None:
            report.problem = found.problem
            return
        rows = _differences(live, answers, ignored, report)
        report.add(found)
        yield rows.columns


def _without_suspects(piece: Task, work: Work) -> Task:
    """The piece up to its first suspect, or that one alone: a death costs the whole piece."""
    for number, each in enumerate(piece):
        offsets = [one.offset for one in work.suspects if one.partition == each.partition]
        first = min((offset for offset in offsets if each.first <= offset < each.end), default=None)
        if first is not None:
            before = TaskRange(each.partition, each.first, first)
            kept = (*piece[:number], before) if before.offsets else piece[:number]
            return kept or (TaskRange(each.partition, first, first + 1),)
    return piece


Answers = dict[tuple[int, int], list[Any]]
"""Rows of answers by partition and offset."""


def _gathered(parts: Iterable[Part]) -> tuple[TaskReport, Answers]:
    """The whole report, and the answers."""
    report, answers = TaskReport(), Answers()
    for part in parts:
        report.add(part.report)
        answers |= _by_place(part.rows)
    return report, answers


def _by_place(columns: Sequence[Sequence[Any]]) -> Answers:
    return {(row[1], row[2]): list(row) for row in zip(*columns, strict=True)}


def _differences(live: Answers, candidate: Answers, ignored: Ignored, report: TaskReport) -> Rows:
    """Judge the answers to each record; the rows of those that differ."""
    rows = Rows()
    for place in sorted({*live, *candidate}):
        one, other = live.get(place), candidate.get(place)
        row = one or other
        assert row is not None
        for found in judged(tuple(row[:5]), _document(one), _document(other), ignored, report):
            rows.add(*found)
    return rows


def _document(row: list[Any] | None) -> str | None:
    return None if row is None else row[5]
