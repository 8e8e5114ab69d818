"""One task of a slice, in Spark's Python worker. Separate processes run the handlers; the task returns rows to Spark.

After an error, a task stops and reports the error. It does not raise the error, because Spark would then repeat the
task and the handler's side effects. So Spark repeats a task only if its executor died. The first repetition handles a
smaller part of the task's ranges, later repetitions a single record, to find a record that kills executors.

Decision: docs/decisions/0059-backfill-engine.md.
"""

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
from fleet_consumer.backfill.work import Pacer, Part, PlayRequest, Work, config_of
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BOTH, CANDIDATE, LIVE, BackfillConfig

if TYPE_CHECKING:
    import pyarrow

PIECE_FIRST: Final = 100
PIECE_MAX: Final = 5_000
PIECE_S: Final = 1.0
"""Number of offsets in the first piece, maximum number of offsets in a piece, and target duration of a piece in
seconds. Both handlers of a comparison handle one piece before their answers are compared."""

_PROCESSES: dict[tuple[str, str], HandlerProcess] = {}
"""The handlers' processes of this Python worker, keyed by settings and side (live or candidate)."""


def task_function(
    work: Work, number: int, planned: Sequence[Task] | None, reports: Any
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function for Spark's `mapInArrow`. Its input has one row for each task or, if `planned` is None, the
    answers stored by the first pass of a comparison. `reports` is the driver's accumulator, keyed by slice and task."""

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
                """The row has no content; the task's number is that of the Spark partition."""
            yield from run_task(work, part_of(planned[task], attempt), report)
        # The accumulator gets reports only from tasks that reach their end.
        reports.add({(number, task): report})

    return run


def run_task(work: Work, task: Task, report: TaskReport) -> "Iterator[pyarrow.RecordBatch]":
    """Run a task and fill in its report. Yields its rows as Arrow batches."""

    def play(*processes: HandlerProcess) -> Iterator[list[list[Any]]]:
        handle = _single if len(processes) == 1 else _compared
        return handle(work, task, report, *processes)

    return _run(work, report, play)


def run_second_pass(
    work: Work, report: TaskReport, batches: "Iterable[pyarrow.RecordBatch]"
) -> "Iterator[pyarrow.RecordBatch]":
    """Let the candidate handle the records of the stored answers, and fill in the report. Yields the differences."""
    return _run(work, report, partial(_second, work, batches, report))


def _run(
    work: Work, report: TaskReport, play: Callable[..., Iterator[list[list[Any]]]]
) -> "Iterator[pyarrow.RecordBatch]":
    """Call `play` with the processes of this pass, and yield its rows as Arrow batches. An error is written to the
    report instead of raised; the next task then starts new processes."""
    if not gc.get_freeze_count():
        # PySpark collects garbage after each task, which takes 50 ms unless the imported modules are frozen.
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
        report.died += death.suspected
        _forget_dead()
    except BackfillFailed as error:
        report.problem = error.problem
        _forget_dead()


def _ignored(config: BackfillConfig) -> Ignored:
    assert config.compare is not None, "this Backfill compares"
    return Ignored.from_paths(config.compare.ignore_fields, config.compare.ignore_headers)


def _process(config: str, side: str) -> HandlerProcess:
    known = _PROCESSES.get((config, side))
    if known is None or not known.usable:
        known = _PROCESSES[config, side] = HandlerProcess(config, side)
    return known


def _forget_dead() -> None:
    """Close all processes after a failure, because in a comparison the other process may still run a request."""
    for process in _PROCESSES.values():
        process.close()
    _PROCESSES.clear()


def _single(work: Work, task: Task, report: TaskReport, process: HandlerProcess) -> Iterator[list[list[Any]]]:
    for part in process.play(PlayRequest(work, task)):
        report.add(part.report)
        yield part.rows


def _compared(
    work: Work, task: Task, report: TaskReport, live: HandlerProcess, candidate: HandlerProcess
) -> Iterator[list[list[Any]]]:
    """Run both handlers over the same records, piece by piece, each in its own process. Yields rows of differences."""
    config, clock = config_of(work.config), SystemClock()
    keeps, ignored = config.sink.parquet is not None, _ignored(config)
    pacer, size, left = Pacer(work.seconds, work.rate, clock), PIECE_FIRST, task
    while left and pacer.may_take(offsets_of(shortened(left, size))):
        piece, began = _up_to_suspected(shortened(left, size), work), clock.monotonic()
        playing = [process.play(PlayRequest(work, piece, bounded=False)) for process in (live, candidate)]
        # The parts of both processes are read alternately, so that neither process waits long until its parts are read.
        rounds = zip(*zip_longest(*playing), strict=True)
        (found, ours), (other, theirs) = (_gathered(filter(None, parts)) for parts in rounds)
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
    work: Work, batches: "Iterable[pyarrow.RecordBatch]", report: TaskReport, candidate: HandlerProcess
) -> Iterator[list[list[Any]]]:
    """Run the candidate over the records of stored answers, batch by batch. Yields the rows of the differences."""
    ignored = _ignored(config_of(work.config))
    for batch in batches:
        live = _by_place([column.to_pylist() for column in batch.columns])
        spans: dict[int, tuple[int, int]] = {}
        for partition, offset in sorted(live):
            spans[partition] = (spans.get(partition, (offset, 0))[0], offset + 1)
        task = tuple(TaskRange(part, first, end) for part, (first, end) in spans.items())
        found, answers = _gathered(candidate.play(PlayRequest(work, task, bounded=False)))
        if found.problem is not None:
            report.problem = found.problem
            return
        rows = _differences(live, answers, ignored, report)
        report.add(found)
        yield rows.columns


def _up_to_suspected(piece: Task, work: Work) -> Task:
    """Return the part of a piece before its first suspected record, or this record alone if the piece begins with it.
    If a process dies, its whole piece must be repeated, so a suspected record is handled alone."""
    for number, each in enumerate(piece):
        offsets = [one.offset for one in work.suspected if one.partition == each.partition]
        first = min((offset for offset in offsets if each.first <= offset < each.end), default=None)
        if first is not None:
            before = TaskRange(each.partition, each.first, first)
            kept = (*piece[:number], before) if before.offsets else piece[:number]
            return kept or (TaskRange(each.partition, first, first + 1),)
    return piece


Answers = dict[tuple[int, int], list[Any]]
"""Answers as rows, keyed by partition and offset."""


def _gathered(parts: Iterable[Part]) -> tuple[TaskReport, Answers]:
    report, answers = TaskReport(), Answers()
    for part in parts:
        report.add(part.report)
        answers |= _by_place(part.rows)
    return report, answers


def _by_place(columns: Sequence[Sequence[Any]]) -> Answers:
    return {(row[1], row[2]): list(row) for row in zip(*columns, strict=True)}


def _differences(live: Answers, candidate: Answers, ignored: Ignored, report: TaskReport) -> Rows:
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
