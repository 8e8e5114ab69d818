"""One task of a slice: from Arrow batches to handler calls, sinks, and the task's report.

A task never raises for a record: Spark would repeat it, and with it the handler's effects. It stops, and reports.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.backfill.comparing import EQUAL, answer_of, dumped, judged
from fleet_consumer.backfill.rows import (
    ANSWER_COLUMNS,
    DIFFERENCE_COLUMNS,
    OUTPUT_COLUMNS,
    Columns,
    Raw,
    Row,
    batch_of,
    raw_records,
)
from fleet_consumer.backfill.slices import FailedRecord, TaskReport
from fleet_consumer.backfill.work import (
    BOTH,
    CANDIDATE,
    LIVE,
    LoadedHandler,
    Pacer,
    Selection,
    Work,
    config_of,
    handlers_of,
    policies_of,
    policy_of,
)
from fleet_consumer.backfill.writing import FailedTopic, SinkTopic
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.handlers.performing import Result
from fleet_consumer.record import Produce
from fleet_consumer.retry.failure import Drop, OutputNotListed, OutputRefused, classify, without_words
from fleet_consumer.worker.logs import fields

if TYPE_CHECKING:
    import pyarrow

LOG = logging.getLogger("fleet_consumer.backfill")

COMPARED_AT_ONCE: Final = 500
"""Records that one handler of a comparison gets before the other does."""
SINGLE_AT_ONCE: Final = 100
"""Records that are handled one by one between two looks at the rate."""
LINES_MAX: Final = 20
"""Lines about single records of one task; a poisoned topic must not fill a disk."""


class Taker(ABC):
    """A way to use records. `at_once` is the most that it takes together, `rows` are those not fetched yet."""

    columns: Columns
    at_once = COMPARED_AT_ONCE

    def __init__(self, work: Work, config: BackfillConfig, report: TaskReport) -> None:
        self._work, self._config, self._report = work, config, report
        self._policy = policy_of(work)
        self.rows: list[Row] = []

    @abstractmethod
    def take(self, group: Sequence[Raw]) -> int | None:
        """Use consecutive records; the offset to stop at, None to go on."""

    def settle(self) -> int | None:
        """Wait for what was begun; the offset to stop at, None to go on."""
        return None


def columns_of(config: BackfillConfig) -> Columns:
    """The rows that a task of this Backfill gives back."""
    if config.compare is None:
        return OUTPUT_COLUMNS
    return DIFFERENCE_COLUMNS if config.compare.handlers == BOTH else ANSWER_COLUMNS


def task_function(work: Work, number: int, reports: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow`; `reports` is the driver's accumulator, keyed by slice and task."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        report = TaskReport()
        yield from run_task(work, report, batches)
        # Only a task that came to its end reports; a repeated one replaces the report of the first.
        reports.add({(number, context.partitionId() if context is not None else 0): report})

    return run


def run_task(work: Work, report: TaskReport, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Handle the records of these batches until the time is over or a record ends the run. Raises TaskFailed."""
    config = config_of(work.config)
    handlers_of(work)  # before the time begins
    pacer = Pacer(work.seconds, work.rate, SystemClock())
    taker = _taker(work, config, report, pacer)
    selection = Selection(config.filter)
    for batch in batches:
        report.stop = _take_batch(batch, taker, selection, pacer, report)
        stop = taker.settle()
        if stop is not None:
            report.stop = stop if report.stop is None else min(stop, report.stop)
        rows, taker.rows = taker.rows, []
        if rows:
            yield batch_of(taker.columns, rows)
        if report.stop is not None:
            break
    report.seconds, report.waited = pacer.seconds, pacer.waited


def _take_batch(
    batch: pyarrow.RecordBatch, taker: Taker, selection: Selection, pacer: Pacer, report: TaskReport
) -> int | None:
    """Take the batch's records in order, in groups; the offset from which on nothing was taken, None at its end."""
    group: list[Raw] = []
    size = 1
    for raw in raw_records(batch):
        if report.first is None:
            report.first = (raw.partition, raw.offset)
        report.largest = max(report.largest, raw.size)
        if not selection.takes_all and not selection.takes(raw.timestamp, raw.key, raw.headers):
            report.filtered += 1
            continue
        if not group:
            size = pacer.group(taker.at_once)
            if not pacer.may_take(size):
                return raw.offset
        group.append(raw)
        if len(group) >= size:
            stop = taker.take(group)
            if stop is not None:
                return stop
            group = []
    return taker.take(group) if group else None


def _taker(work: Work, config: BackfillConfig, report: TaskReport, pacer: Pacer) -> Taker:
    handlers = handlers_of(work)
    if config.compare is None:
        return _Handled(work, config, handlers[LIVE], report, pacer)
    sides = [(side, each.perform) for side, each in handlers.items()]
    return _Compared(work, config, sides, report) if len(sides) > 1 else _Answered(work, config, sides[0][1], report)


Perform = Callable[[Sequence[Any]], list[Result]]


class _Handled(Taker):
    """The group's own handler, its outputs to the sink, its failures by `onError`."""

    columns = OUTPUT_COLUMNS

    def __init__(
        self, work: Work, config: BackfillConfig, handler: LoadedHandler, report: TaskReport, pacer: Pacer
    ) -> None:
        super().__init__(work, config, report)
        self.at_once = config.worker.consumer.max_poll_records if handler.handler.batch else SINGLE_AT_ONCE
        self._perform, self._pacer = handler.perform, pacer
        sink = config.sink.topic
        self._sink = None if sink is None else SinkTopic(config, sink, work.limits.get(sink))
        self._failed: FailedTopic | None = None
        self._lines = 0

    def take(self, group: Sequence[Raw]) -> int | None:
        left = group
        while left:
            results = self._perform([raw.record(self._config.topic) for raw in left], self._go_on)
            for raw, result in zip(left, results, strict=False):
                if result.error is None:
                    self._done(raw, [_encoded(each) for each in result.produces])
                elif self._stops(raw, result.error):
                    return raw.offset
            left = left[len(results) :]
            if left and not self._pacer.in_time():
                return left[0].offset
        return None

    def settle(self) -> int | None:
        stop: int | None = None
        for raw, count, error in [] if self._sink is None else self._sink.settle():
            self._report.records_in -= 1
            self._report.records_out -= count
            if self._stops(raw, OutputRefused(f"the sink's topic refuses an output: {error}")):
                stop = raw.offset if stop is None else min(stop, raw.offset)
        if self._failed is not None:
            self._failed.settle()
        return stop

    def _go_on(self, result: Result) -> bool:
        # After an error it is judged first: nothing is handled behind the record that ends the run.
        return result.error is None and self._pacer.in_time()

    def _done(self, raw: Raw, produces: Sequence[Produce]) -> None:
        self._report.records_in += 1
        self._report.records_out += len(produces)
        if not produces:
            return
        if self._sink is not None:
            self._sink.send(raw, produces)
        elif self._config.sink.parquet is not None:
            place = (self._config.topic, raw.partition, raw.offset, raw.timestamp)
            self.rows += [
                (*place, number, each.topic, each.key, each.value, each.headers or None)
                for number, each in enumerate(produces)
            ]

    def _stops(self, raw: Raw, error: BaseException) -> bool:
        """Judge a failed record; True if the task ends here."""
        verdict = classify(error, self._policy)
        if not self._config.worker.handler.error_text:
            verdict = without_words(verdict)
        if isinstance(verdict, Drop):
            self._report.dropped += 1
            self._log("record dropped", raw, error=verdict.message)
            return False
        failure = verdict.failure
        self._report.records_in += 1
        self._report.failed += 1
        self._log("record failed", raw, errorClass=failure.error_class, error=failure.message)
        # An output that is not listed would fail them all: an error of the deployment, which the run ends for.
        on_error = "Fail" if isinstance(error, OutputNotListed) else self._config.on_error
        if on_error == "FailedTopic":
            if self._failed is None:
                limit = self._work.limits.get(self._config.worker.failed_topic)
                self._failed = FailedTopic(self._config, policies_of(self._work.policies), limit)
            self._failed.send(raw, failure)
        if on_error != "Fail":
            return False
        known = self._report.failure
        if known is None or raw.offset < known.offset:
            self._report.failure = FailedRecord(raw.partition, raw.offset, failure.error_class, failure.message)
        return True

    def _log(self, text: str, raw: Raw, **values: object) -> None:
        self._lines += 1
        if self._lines <= LINES_MAX:
            where = {"topic": self._config.topic, "partition": raw.partition, "offset": raw.offset}
            LOG.warning(text, extra=fields(**where, **values))


class _Compared(Taker):
    """Both handlers over the same records; nothing is written but the differences."""

    columns = DIFFERENCE_COLUMNS

    def __init__(
        self, work: Work, config: BackfillConfig, sides: Sequence[tuple[str, Perform]], report: TaskReport
    ) -> None:
        super().__init__(work, config, report)
        self._sides = dict(sides)
        assert config.compare is not None, "this Backfill compares"
        self._ignored = frozenset(config.compare.ignore_fields)

    def take(self, group: Sequence[Raw]) -> int | None:
        results = [self._perform(side, group) for side in (LIVE, CANDIDATE)]
        for raw, one, other in zip(group, *results, strict=True):
            self._report.records_in += 1
            self._report.records_out += len(one.produces)
            if one.error is None and other.error is None and one.produces == other.produces:
                self._report.note(EQUAL, None)
                continue
            place = (self._config.topic, raw.partition, raw.offset, raw.timestamp, raw.key)
            text = self._config.worker.handler.error_text
            live, candidate = (answer_of(each, self._policy, error_text=text) for each in (one, other))
            rows = judged(place, live, candidate, self._ignored, self._report)
            self.rows += rows if self._config.sink.parquet is not None else []
        return None

    def _perform(self, side: str, group: Sequence[Raw]) -> list[Result]:
        # Each handler gets records of its own: it may change them, and decoding does.
        return self._sides[side]([raw.record(self._config.topic) for raw in group])


class _Answered(Taker):
    """One handler's answers as rows, for a comparison in two passes."""

    columns = ANSWER_COLUMNS

    def __init__(self, work: Work, config: BackfillConfig, perform: Perform, report: TaskReport) -> None:
        super().__init__(work, config, report)
        self._perform = perform

    def take(self, group: Sequence[Raw]) -> int | None:
        results = self._perform([raw.record(self._config.topic) for raw in group])
        for raw, result in zip(group, results, strict=True):
            self._report.records_in += 1
            self._report.records_out += len(result.produces)
            answer = answer_of(result, self._policy, error_text=self._config.worker.handler.error_text)
            place = (self._config.topic, raw.partition, raw.offset, raw.timestamp, raw.key)
            self.rows.append((*place, dumped(answer)))
        return None


def _encoded(produce: Produce) -> Produce:
    """The output as bytes, with plain pairs as headers."""
    headers = [(name, value) for name, value in produce.headers]
    return Produce(produce.topic, _bytes(produce.value), _bytes(produce.key), headers)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
