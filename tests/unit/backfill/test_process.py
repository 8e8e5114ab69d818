"""Requests in a handler's process, over messages in memory: what is handled, where it stops, and what is told."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from confluent_kafka import Message

from fleet_consumer.backfill import process
from fleet_consumer.backfill.call_slots import CallSlots
from fleet_consumer.backfill.calling import OneByOne
from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.process import DEATHS_MAX, HandlerServer
from fleet_consumer.backfill.slices import FailedRecord, TaskRange, TaskReport
from fleet_consumer.backfill.work import Part, PlayRequest, Work, config_of
from fleet_consumer.contract.backfill_ledger import SuspectedRecord
from fleet_consumer.group.errors import RecordsExpired, TopicMissing
from fleet_consumer.librdkafka.bounded import Fetched
from fleet_consumer.librdkafka.producer import ProduceFailed
from fleet_consumer.record import Record, TopicPartition
from tests.support.clock import StillClock
from tests.unit.backfill.documents import backfill_document, compare_section
from tests.unit.worker.documents import worker_document

HANDLER = """
import asyncio
import threading
from fleet_consumer import Produce, Skip
SEEN = []
DONE = []
def setup(context):
    SEEN.append(context.purpose)
def teardown(context):
    DONE.append(context.purpose)
def handle(record):
    SEEN.append(record.offset)
    do = record.value["do"]
    if do == "fail":
        raise ValueError("asked to")
    if do == "skip":
        raise Skip("asked to")
    if do == "forge":
        record.offset, record.partition = record.offset + 3, 0
    if do == "slow":
        threading.Event().wait(0.05)
    if do == "odd":
        return Produce("done", "\\udc80")
    if do == "elsewhere":
        return Produce("elsewhere", "x")
    return [Produce("done", str(record.offset)), Produce("done", None)]
def handle_batch(records):
    SEEN.append([record.offset for record in records])
    return [ValueError("asked to") if record.value["do"] == "fail" else None for record in records]
async def wait(record):
    SEEN.append(record.offset)
    await asyncio.sleep(0.05)
    return Produce("done", str(record.offset))
"""

Records = tuple[tuple[int, str], ...]
PARQUET = {"topic": None, "parquet": "/sink"}


def message(offset: int, do: str, partition: int = 1) -> Message:
    fields: dict[str, Any] = {
        "topic": "flights",
        "partition": partition,
        "offset": offset,
        "timestamp": (1, 1_000 + offset),
        "key": b"k%d" % offset,
        "value": json.dumps({"do": do}).encode(),
        "headers": [("h", b"1")] if offset % 2 else None,
    }
    return Message(**fields)


class Reader:
    """A stand-in for librdkafka at the process's border: it gives the messages of a range three at a time."""

    messages: Mapping[int, list[Message]]
    error: Exception | None = None

    def __init__(self, *_: object, **__: object) -> None: ...

    def runs(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Fetched]:
        for place, (first, end) in ranges.items():
            wanted = [each for each in type(self).messages[place.partition] if first <= (each.offset() or 0) < end]
            while wanted:
                given, wanted = wanted[:3], wanted[3:]
                yield Fetched({place: given}, frozenset())
            error = type(self).error
            if error is not None:
                raise error
            yield Fetched({}, frozenset({place}))


class Played:
    """One order's parts."""

    def __init__(self, parts: list[Part], handler: Any) -> None:
        self.report = TaskReport()
        self.rows: list[tuple[Any, ...]] = []
        for part in parts:
            self.report.add(part.report)
            self.rows += zip(*part.rows, strict=True)
        self.parts = len(parts)
        self.lasts = [part.last for part in parts]
        self.seen = [each for each in handler.SEEN if each != "backfill" and each != "compare"]

    @property
    def reached(self) -> dict[int, int]:
        """The end of each partition's covered offsets."""
        return {part: end for part, _, end in self.report.covered}


class Play:
    """A handler's process in this one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setattr(process, "BoundedReader", Reader)
        monkeypatch.setattr(process, "tame_collector", lambda: None)
        monkeypatch.setattr(Reader, "error", None)
        monkeypatch.syspath_prepend(str(folder))
        (folder / "handler.py").write_text(HANDLER)
        self.server: HandlerServer | None = None

    def __call__(
        self,
        *records: tuple[int, str],
        seconds: float = 60.0,
        callable_: str = "handle",
        suspected: tuple[SuspectedRecord, ...] = (),
        side: str = "Live",
        ranges: tuple[TaskRange, ...] | None = None,
        handler: Mapping[str, Any] | None = None,
        rate: float | None = None,
        producer: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Played:
        worker = worker_document()
        python = {"callable": f"handler:{callable_}", "path": str(self.folder)}
        worker["handler"] |= {"python": python, "outputs": ["done"], "concurrency": 1, **(handler or {})}
        worker |= {} if producer is None else {"producer": {"properties": producer}}
        config = config_of(json.dumps(backfill_document(**({"worker": worker} | changes))))
        Reader.messages = {1: [message(*each) for each in records], 0: [message(*each, 0) for each in records]}
        sys.modules.pop("handler", None)
        slots = config.worker.handler.concurrency
        with TemporaryFile() as file:
            self.server = HandlerServer(config, side, CallSlots(file.fileno(), slots, 500))
            work = Work(config="", policies=None, seconds=seconds, rate=rate, limits={}, suspected=suspected)
            last = records[-1][0] + 1
            parts = list(self.server.play(PlayRequest(work, ranges or (TaskRange(1, records[0][0], last + 10),))))
        return Played(parts, importlib.import_module("handler"))


class Refusing:
    """Writers to a topic that refuses the outputs of offset 6."""

    def __init__(self, config: object) -> None: ...

    def writer_to(self, topic: str, message_max_bytes: int | None) -> Refusing:
        return self

    def send(self, key: object, value: object, headers: object, partition: int | None = None) -> object:
        return value

    def await_handles(self, handles: Sequence[object]) -> list[ProduceFailed | None]:
        return [ProduceFailed("out", "MSG_SIZE_TOO_LARGE", "too large") if each == "6" else None for each in handles]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    yield Play(tmp_path, monkeypatch)
    sys.modules.pop("handler", None)


def test_rows_have_the_coordinates_of_their_input_and_gaps_are_covered(play: Play) -> None:
    played = play((5, ""), (6, "skip"), (9, ""), sink=PARQUET)
    report = played.report
    assert played.reached == {1: 20}
    assert (report.records_in, report.records_out, report.dropped, report.failed) == (2, 4, 1, 0)
    assert [row[:6] for row in played.rows] == [
        ("flights", 1, 5, 1_005, 0, "done"),
        ("flights", 1, 5, 1_005, 1, "done"),
        ("flights", 1, 9, 1_009, 0, "done"),
        ("flights", 1, 9, 1_009, 1, "done"),
    ]
    assert played.rows[0][6:] == (None, b"5", None)
    assert played.lasts == [*[False] * (played.parts - 1), True]


def test_several_ranges_of_one_partition_are_read_one_after_the_other(play: Play) -> None:
    records = tuple((offset, "") for offset in range(20))
    ranges = (TaskRange(1, 2, 4), TaskRange(0, 7, 9), TaskRange(1, 10, 12))
    played = play(*records, ranges=ranges)
    assert played.seen == [7, 8, 2, 3, 10, 11]
    assert sorted(played.report.covered) == [(0, 7, 9), (1, 2, 4), (1, 10, 12)]


def test_fail_stops_at_the_record_and_calls_nothing_after_it(play: Play) -> None:
    played = play((5, ""), (6, "fail"), (7, ""), (8, ""))
    assert played.seen == [5, 6]
    assert played.reached == {1: 6}
    assert played.report.failure == FailedRecord(1, 6, "ValueError", "asked to")
    assert (played.report.records_in, played.report.failed) == (1, 0), "the record itself comes again"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_record_that_a_handler_modifies_covers_its_own_offset_only(play: Play, concurrency: int) -> None:
    records = [(offset, "forge") for offset in range(5, 9)]
    more = ((9, "fail"), *((offset, "") for offset in range(10, 15)))
    played = play(*records, *more, handler={"concurrency": concurrency})
    assert played.report.covered == [(1, 5, 9)]
    assert played.report.failure is not None
    assert played.report.failure.offset == 9
    assert play(*records, handler={"concurrency": concurrency}).report.covered == [(1, 5, 19)]


def test_skip_goes_on_and_counts(play: Play) -> None:
    played = play((5, ""), (6, "fail"), (7, ""), onError="Skip")
    report = played.report
    assert played.seen == [5, 6, 7]
    assert (report.records_in, report.failed, report.records_out, report.failure) == (3, 1, 4, None)


def test_slow_handler_stops_when_the_time_is_over(play: Play) -> None:
    played = play(*((offset, "slow") for offset in range(50)), seconds=0.2)
    assert played.reached[1] == len(played.seen) == played.report.records_in
    assert 1 < played.reached[1] < 10
    late = play((60, "slow"), (61, "slow"), seconds=0.0)
    assert late.reached == {1: 61}, "one record is always handled"


def test_rate_is_kept_and_its_cost_told(play: Play) -> None:
    played = play(*((offset, "") for offset in range(12)), rate=40.0)
    assert played.report.records_in == 12
    assert 0.1 < played.report.waited < 1.0


def test_batch_handler_gets_growing_lists_and_fails_at_the_first(play: Play) -> None:
    records = [(offset, "fail" if offset in (11, 12) else "") for offset in range(5, 20)]
    played = play(*records, callable_="handle_batch", onError="Skip")
    assert [offset for call in played.seen for offset in call] == list(range(5, 20))
    assert played.seen[0] == [5]
    assert (played.report.records_in, played.report.failed) == (15, 2)
    failed = play(*records, callable_="handle_batch")
    assert failed.report.failure is not None
    assert (failed.report.failure.offset, failed.reached) == (11, {1: 11})


def test_concurrent_calls_are_under_way_at_once_and_told_in_order(play: Play) -> None:
    records = [(offset, "") for offset in range(60)]
    played = play(*records, callable_="wait", handler={"concurrency": 30}, sink=PARQUET, seconds=60.0)
    assert played.report.records_in == 60
    assert [row[2] for row in played.rows] == list(range(60))
    assert played.reached == {1: 70}


def test_concurrent_calls_stop_at_the_failed_record(play: Play) -> None:
    records = [(offset, "fail" if offset == 7 else "") for offset in range(30)]
    played = play(*records, handler={"concurrency": 4})
    assert played.report.failure is not None
    assert (played.report.failure.offset, played.reached) == (7, {1: 7})
    assert played.report.records_in == 7
    assert max(played.seen) < 30


def test_text_without_utf8_is_the_failure_of_its_record(play: Play) -> None:
    played = play((5, ""), (6, "odd"), (7, ""), onError="Skip", sink=PARQUET)
    assert (played.report.records_in, played.report.records_out, played.report.failed) == (3, 4, 1)
    assert [row[2] for row in played.rows] == [5, 5, 7, 7]
    ended = play((5, ""), (6, "odd"), (7, ""), sink=PARQUET)
    assert ended.seen == [5, 6]
    assert ended.report.failure is not None
    assert ended.report.failure.error_class.endswith("OutputRefused")


def test_output_that_is_not_listed_ends_the_run_whatever_becomes_of_failed_records(play: Play) -> None:
    played = play((5, "elsewhere"), (6, ""), onError="Skip", sink=PARQUET)
    assert played.report.failure is not None
    assert (played.reached, played.report.failure.offset) == ({}, 5)
    assert played.report.failure.error_class.endswith("OutputNotListed")


def test_filtered_records_are_passed_by(play: Play) -> None:
    chosen = {"keyRegex": "k[67]", "headerEquals": {"h": "1"}, "fromTime": None, "toTime": None}
    played = play((5, ""), (6, ""), (7, ""), (8, ""), filter=chosen)
    assert played.seen == [7]
    assert (played.report.filtered, played.report.records_in, played.reached) == (3, 1, {1: 19})


@pytest.mark.parametrize("first", range(9))
def test_filtered_records_are_counted_once_however_often_a_slice_stops(play: Play, first: int) -> None:
    """Records after the point where a task stops are read again in the next slice."""
    chosen = {"keyRegex": None, "headerEquals": {"h": "1"}, "fromTime": None, "toTime": None}
    records = [(offset, "") for offset in range(9)]
    at, filtered, handled = first, 0, 0
    while at < 9:
        report = play(*records, filter=chosen, seconds=0.0, ranges=(TaskRange(1, at, 9),)).report
        assert report.covered[0].first == at
        at, filtered, handled = report.covered[-1].end, filtered + report.filtered, handled + report.records_in
    assert (filtered, handled) == (len(range(first + first % 2, 9, 2)), len(range(first + 1 - first % 2, 9, 2)))


def test_suspected_record_is_alone_in_its_part(play: Play) -> None:
    suspected = SuspectedRecord(partition=1, offset=6, side="Live", deaths=DEATHS_MAX - 1)
    played = play(*((offset, "") for offset in range(5, 9)), suspected=(suspected,))
    assert played.seen == [5, 6, 7, 8]
    assert (1, 5, 6) in played.report.covered
    assert (1, 6, 7) in played.report.covered


def test_refused_output_before_a_suspected_record_ends_the_task(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suspected record's own part would cover the discarded part, and with it the refused record."""
    monkeypatch.setattr(process, "Writers", Refusing)
    suspected = SuspectedRecord(partition=1, offset=7, side="Live", deaths=1)
    sink = {"topic": "out", "parquet": None}
    played = play(*((offset, "") for offset in range(5, 10)), suspected=(suspected,), sink=sink)
    assert (played.reached, played.report.records_in) == ({}, 0)
    assert played.seen == [5, 6]
    assert played.report.failure is not None
    assert played.report.failure.offset == 6


def test_record_of_three_deaths_is_set_aside(play: Play) -> None:
    suspected = SuspectedRecord(partition=1, offset=6, side="Live", deaths=DEATHS_MAX)
    played = play((5, ""), (6, ""), (7, ""), suspected=(suspected,), onError="Skip")
    assert played.seen == [5, 7]
    assert (played.report.records_in, played.report.failed, played.report.poison) == (3, 1, 1)
    ended = play((5, ""), (6, ""), (7, ""), suspected=(suspected,))
    assert ended.report.failure == FailedRecord(1, 6, "Poison", "the record ended the process of its handler 3 times")
    other = play((5, ""), (6, ""), suspected=(SuspectedRecord(partition=1, offset=6, side="Candidate", deaths=3),))
    assert other.seen == [5, 6]


@pytest.mark.parametrize(
    ("error", "reason"), [(RecordsExpired("gone"), "RangeExpired"), (TopicMissing("no topic"), "TopicMissing")]
)
def test_error_of_the_brokers_is_told_behind_what_is_done(
    play: Play, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    monkeypatch.setattr(process, "PART_S", 0.0)
    monkeypatch.setattr(Reader, "error", error)
    played = play((5, ""), (6, ""))
    assert played.report.problem is not None
    assert (played.report.problem.reason, played.report.problem.final) == (reason, False)
    assert (played.reached, played.report.records_in) == ({1: 7}, 2)


@pytest.mark.parametrize("quiet_s", [1.0, 200.0])
def test_time_in_the_handler_is_no_silence(play: Play, monkeypatch: pytest.MonkeyPatch, quiet_s: float) -> None:
    """A gap in the log also causes a step without records."""
    clock = StillClock()
    monkeypatch.setattr(process, "SystemClock", lambda: clock)

    class Quiet(Reader):
        def runs(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Fetched]:
            for fetched in super().runs(ranges):
                yield fetched
                clock.now += quiet_s
                yield Fetched({}, frozenset())

    def handle(caller: object, records: list[Record], deadline: float, ends: object) -> list[tuple[()]]:
        clock.now += 200.0
        return [()] * len(records)

    monkeypatch.setattr(process, "BoundedReader", Quiet)
    monkeypatch.setattr(OneByOne, "handle", handle)
    played = play((5, ""), (6, ""), seconds=1e6)
    said = None if played.report.problem is None else played.report.problem.reason
    assert said == (None if quiet_s < 2.0 else "BrokerUnreachable")


def test_producer_setting_that_is_not_allowed_is_the_problem_of_the_task(play: Play) -> None:
    """The sink needs the producer from the beginning, the failed topic with the first failed record."""
    sink = {"topic": "out", "parquet": None}
    for played in (
        play((5, ""), sink=sink, producer={"acks": "0"}),
        play((5, "fail"), onError="FailedTopic", producer={"acks": "0"}),
    ):
        assert played.report.problem is not None
        assert (played.report.problem.reason, played.report.problem.final) == ("PropertyNotAllowed", True)
        assert "acks cannot be set" in played.report.problem.message
        assert (played.reached, played.lasts) == ({}, [True])


def test_broken_handler_and_setup_are_errors_of_the_task(play: Play, tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "def handle(record): ...\ndef setup(context):\n    raise OSError('no database')\n"
    )
    with pytest.raises(BackfillFailed, match="no database") as failed:
        play((5, ""))
    assert (failed.value.reason, failed.value.final) == ("SetupFailed", False)
    (tmp_path / "handler.py").write_text("import no_such_module_at_all\n")
    with pytest.raises(BackfillFailed, match="no_such_module_at_all") as failed:
        play((5, ""))
    assert (failed.value.reason, failed.value.final) == ("HandlerImportFailed", True)


def test_process_without_its_task_stops_after_the_current_group(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task may already handle the same records."""
    handle = OneByOne.handle

    def leave(caller: OneByOne, *arguments: Any) -> Any:
        assert play.server is not None
        play.server.abandon()
        return handle(caller, *arguments)

    monkeypatch.setattr(OneByOne, "handle", leave)
    played = play((5, ""), (6, ""), (7, ""))
    assert (played.seen, played.lasts) == ([5], [])


def test_teardown_runs_with_the_purpose(play: Play) -> None:
    play((5, ""))
    assert play.server is not None
    play.server.tear_down()
    assert importlib.import_module("handler").DONE == ["backfill"]


def test_side_of_a_comparison_answers_with_documents(play: Play, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate"
    candidate.mkdir()
    (candidate / "handler.py").write_text(HANDLER.replace("str(record.offset)", "str(record.offset + 1)"))
    compare = compare_section() | {"candidate": {"callable": "handler:handle", "path": str(candidate)}}
    live = play((7, ""), (9, "fail"), (11, "skip"), compare=compare, sink=PARQUET)
    documents = [json.loads(row[5]) for row in live.rows]
    assert [row[:5] for row in live.rows] == [("flights", 1, at, 1_000 + at, b"k%d" % at) for at in (7, 9, 11)]
    assert documents[0]["outputs"][0]["value"] == "7"
    assert documents[1]["error"]["class"] == "ValueError"
    assert documents[2] == {"dropped": "asked to"}
    assert (live.report.records_in, live.report.failed) == (3, 0)


def test_candidate_is_another_handler_in_another_process(play: Play, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate"
    candidate.mkdir()
    (candidate / "handler.py").write_text(HANDLER.replace("str(record.offset)", "str(record.offset + 1)"))
    sys.path.remove(str(tmp_path))
    compare = compare_section() | {"candidate": {"callable": "handler:handle", "path": str(candidate)}}
    played = play((7, ""), side="Candidate", compare=compare, sink=PARQUET)
    assert json.loads(played.rows[0][5])["outputs"][0]["value"] == "8"
