"""Comparison of two passes whose images differ: the join of their stored answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from fleet_consumer.backfill.comparing import DIFFERENT, EQUAL, Answer, compare, error_text, result_text, sample_text
from fleet_consumer.backfill.reports import TaskReport
from fleet_consumer.backfill.rows import DIFFERENCE_COLUMNS, Row, batch_of
from fleet_consumer.contract.backfill_ledger import Sample


def joined_function(topic: str, ignored: Collection[str], reports: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow` over the joined answers; `reports` is the driver's accumulator."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        report = TaskReport()
        for batch in batches:
            rows = [row for each in batch.to_pylist() if (row := judged(topic, each, ignored, report)) is not None]
            if rows:
                yield batch_of(DIFFERENCE_COLUMNS, rows)
        reports.add({("join", context.partitionId() if context is not None else 0): report})

    return run


def judged(topic: str, joined: dict[str, Any], ignored: Collection[str], report: TaskReport) -> Row | None:
    """Compare one record's two answers; the row of a difference. A record that one pass did not have differs."""
    live, candidate = _answer(joined["live"]), _answer(joined["candidate"])
    verdict = DIFFERENT if live is None or candidate is None else compare(live, candidate, ignored)
    if verdict == EQUAL:
        report.note(EQUAL, None)
        return None
    partition, offset = joined["partition"], joined["offset"]
    sample = Sample(partition=partition, offset=offset, live=sample_text(live), candidate=sample_text(candidate))
    report.note(verdict, sample)
    place = (topic, partition, offset, joined["timestamp"], joined["key"])
    return (*place, result_text(live), result_text(candidate), error_text(live), error_text(candidate))


def _answer(text: str | None) -> Answer | None:
    return None if text is None else json.loads(text)
