"""One task over batches in memory: what it takes, where it stops, and what it reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.backfill import work as work_module
from fleet_consumer.backfill.errors import BackfillFailed, TaskFailed, marked
from fleet_consumer.backfill.rows import Columns, Row
from fleet_consumer.backfill.slices import FailedRecord, TaskReport
from fleet_consumer.backfill.task import run_task
from fleet_consumer.backfill.work import Work
from tests.unit.backfill.documents import backfill_document, compare_section
from tests.unit.worker.documents import worker_document

HANDLER = """
import threading
from fleet_consumer import Produce, Skip
SEEN = []
def handle(record):
    SEEN.append(record.offset)
    do = record.value["do"]
    if do == "fail":
        raise ValueError("asked to")
    if do == "skip":
        raise Skip("asked to")
    if do == "slow":
        threading.Event().wait(0.05)
    return [Produce("done", str(record.offset)), Produce("done", None)]
def handle_batch(records):
    SEEN.append([record.offset for record in records])
    return [ValueError("asked to") if record.value["do"] == "fail" else None for record in records]
"""


class Column:
    """As much of an Arrow column as tasks use."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(values)
        self.null_count = self._values.count(None)

    def to_pylist(self) -> list[Any]:
        return self._values


class Batch:
    """As much of an Arrow batch as tasks use, of (offset, what to do)."""

    def __init__(self, *records: tuple[int, str]) -> None:
        self.num_rows = len(records)
        offsets = [offset for offset, _ in records]
        self._columns: dict[str, list[Any]] = {
            "partition": [1] * len(records),
            "offset": offsets,
            "timestamp": [1_000 + offset for offset in offsets],
            "key": [b"k%d" % offset for offset in offsets],
            "value": [json.dumps({"do": do}).encode() for _, do in records],
            "headers": [[{"key": "h", "value": b"1"}] if offset % 2 else None for offset in offsets],
        }

    def column(self, name: str) -> Column:
        return Column(self._columns[name])


class Play:
    """A task's settings, its handler, and the rows that it gives back."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        monkeypatch.setattr(work_module, "_LOADED", {})
        monkeypatch.setattr(work_module, "_log_as", lambda config: None)
        monkeypatch.setattr("fleet_consumer.backfill.task.batch_of", self._batch_of)
        monkeypatch.delitem(sys.modules, "handler", raising=False)
        monkeypatch.syspath_prepend(str(folder))
        (folder / "handler.py").write_text(HANDLER)

    def __call__(self, *batches: Batch, seconds: float = 60.0, callable_: str = "handle", **changes: Any) -> TaskReport:
        worker = worker_document()
        python = {"callable": f"handler:{callable_}", "path": str(self.folder)}
        worker["handler"] |= {"python": python, "outputs": ["done"]}
        document = backfill_document(**({"worker": worker} | changes))
        text = json.dumps(document)
        work = Work(config=text, policies=None, attempt=1, seconds=seconds, rate=None, limits={})
        report = TaskReport()
        for _ in run_task(work, report, batches):
            pass
        return report

    def seen(self) -> list[Any]:
        """The offsets that the handler was called with."""
        import importlib

        return list(importlib.import_module("handler").SEEN)

    def _batch_of(self, columns: Columns, rows: Sequence[Row]) -> None:
        self.rows += rows


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    yield Play(tmp_path, monkeypatch)
    sys.modules.pop("handler", None)


PARQUET = {"topic": None, "parquet": "/sink"}


def test_rows_of_files_have_the_coordinates_of_their_input(play: Play) -> None:
    report = play(Batch((5, ""), (6, "skip")), Batch((9, "")), sink=PARQUET)
    assert report.first == (1, 5)
    assert report.stop is None
    assert (report.records_in, report.records_out, report.dropped, report.failed) == (2, 4, 1, 0)
    assert [row[:6] for row in play.rows] == [
        ("flights", 1, 5, 1_005, 0, "done"),
        ("flights", 1, 5, 1_005, 1, "done"),
        ("flights", 1, 9, 1_009, 0, "done"),
        ("flights", 1, 9, 1_009, 1, "done"),
    ]
    assert play.rows[0][6:] == (None, b"5", None)
    assert report.largest == len(b"k5") + len(b'{"do": "skip"}')


def test_fail_stops_at_the_record_and_calls_nothing_after_it(play: Play) -> None:
    report = play(Batch((5, ""), (6, "fail"), (7, "")), Batch((8, "")))
    assert play.seen() == [5, 6]
    assert report.stop == 6
    assert report.failure == FailedRecord(1, 6, "ValueError", "asked to")


def test_skip_goes_on_and_counts(play: Play) -> None:
    report = play(Batch((5, ""), (6, "fail"), (7, "")), onError="Skip")
    assert play.seen() == [5, 6, 7]
    assert (report.records_in, report.failed, report.records_out, report.failure) == (3, 1, 4, None)


def test_slow_handler_stops_when_the_time_is_over(play: Play) -> None:
    report = play(Batch(*((offset, "slow") for offset in range(50))), seconds=0.2)
    assert report.stop == len(play.seen()) == report.records_in
    assert 1 < report.stop < 10
    late = play(Batch((60, "slow"), (61, "slow")), seconds=0.0)
    assert late.stop == 61, "one record is always handled"


def test_batch_handler_gets_growing_lists_and_fails_at_the_first(play: Play) -> None:
    records = [(offset, "fail" if offset in (11, 12) else "") for offset in range(5, 20)]
    report = play(Batch(*records), callable_="handle_batch", onError="Skip")
    calls = play.seen()
    assert [offset for call in calls for offset in call] == list(range(5, 20))
    assert calls[0] == [5]
    assert calls[1] == [6, 7]
    assert (report.records_in, report.failed) == (15, 2)


def test_batch_handler_under_fail_reports_the_first_failed_record(play: Play) -> None:
    records = [(offset, "fail" if offset in (11, 12) else "") for offset in range(5, 20)]
    report = play(Batch(*records), callable_="handle_batch")
    assert report.failure is not None
    assert (report.failure.offset, report.stop) == (11, 11)


def test_text_without_utf8_is_the_failure_of_its_record(play: Play, tmp_path: Path) -> None:
    source = HANDLER.replace('Produce("done", None)', r'Produce("done", "\udc80" if do == "odd" else None)')
    (tmp_path / "handler.py").write_text(source)
    report = play(Batch((5, ""), (6, "odd"), (7, "")), onError="Skip", sink=PARQUET)
    assert (report.records_in, report.records_out, report.failed) == (3, 4, 1)
    assert [row[2] for row in play.rows] == [5, 5, 7, 7]


def test_nothing_is_handled_behind_a_text_without_utf8_that_ends_the_run(play: Play, tmp_path: Path) -> None:
    source = HANDLER.replace('Produce("done", None)', r'Produce("done", "\udc80" if do == "odd" else None)')
    (tmp_path / "handler.py").write_text(source)
    report = play(Batch((5, ""), (6, "odd"), (7, "")), sink=PARQUET)
    assert play.seen() == [5, 6]
    assert report.failure is not None
    assert (report.stop, report.failure.offset, report.failure.error_class.rpartition(".")[2]) == (
        6,
        6,
        "OutputRefused",
    )


def test_output_that_is_not_listed_ends_the_run_whatever_becomes_of_failed_records(play: Play, tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER.replace('Produce("done", None)', 'Produce("elsewhere", None)'))
    report = play(Batch((5, ""), (6, "odd"), (7, "")), onError="Skip", sink=PARQUET)
    assert report.failure is not None
    assert (report.stop, report.failure.offset) == (5, 5)
    assert report.failure.error_class.endswith("OutputNotListed")


def test_text_without_utf8_is_a_failure_of_its_side_in_a_comparison(play: Play, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate"
    candidate.mkdir()
    (candidate / "handler.py").write_text(HANDLER.replace("str(record.offset)", r'"\udc80"'))
    compare = compare_section() | {"candidate": {"callable": "handler:handle", "path": str(candidate)}}
    report = play(Batch((7, "")), compare=compare, sink=PARQUET)
    assert report.compared == {"failed_candidate_only": 1}
    assert "the value of an output cannot be written as UTF-8" in play.rows[0][-1]
    play(Batch((7, "")), compare=compare | {"handlers": "Candidate"}, sink=PARQUET)
    assert json.loads(play.rows[-1][5])["error"]["class"].endswith(".OutputRefused")


def test_filtered_records_are_passed_by(play: Play) -> None:
    chosen = {"keyRegex": "k[67]", "headerEquals": {"h": "1"}, "fromTime": None, "toTime": None}
    report = play(Batch((5, ""), (6, ""), (7, ""), (8, "")), filter=chosen)
    assert play.seen() == [7]
    assert (report.first, report.filtered, report.records_in, report.stop) == ((1, 5), 3, 1, None)


def test_broken_handler_and_setup_are_errors_of_the_task(play: Play, tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "def handle(record): ...\ndef setup(context):\n    raise OSError('no database')\n"
    )
    with pytest.raises(TaskFailed) as failed:
        play(Batch((5, "")))
    found = marked(f"Spark said: {failed.value}")
    assert isinstance(found, BackfillFailed)
    assert (found.reason, found.final) == ("SetupFailed", False)
    assert "no database" in str(found)


def test_comparison_writes_only_differences(play: Play, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate"
    candidate.mkdir()
    (candidate / "handler.py").write_text(HANDLER.replace("str(record.offset)", "str(record.offset // 7 * 7)"))
    compare = compare_section() | {"candidate": {"callable": "handler:handle", "path": str(candidate)}}
    report = play(Batch((7, ""), (8, ""), (9, "fail"), (14, "skip")), compare=compare, sink=PARQUET)
    assert report.compared == {"equal": 3, "different": 1}
    assert (report.records_in, report.failed, report.dropped) == (4, 0, 0)
    assert [row[:5] for row in play.rows] == [("flights", 1, 8, 1_008, b"k8")]
    assert [(each.partition, each.offset) for each in report.samples] == [(1, 8)]
    stored = play(Batch((7, ""), (9, "fail")), compare=compare | {"handlers": "Candidate"}, sink=PARQUET)
    assert stored.records_in == 2
    assert json.loads(play.rows[-2][5])["outputs"][0]["value"] == "7"
    assert json.loads(play.rows[-1][5])["error"]["class"] == "ValueError"
