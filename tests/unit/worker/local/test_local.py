"""Options of a local run become the settings that a worker's pod would have."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import WorkerConfig, parse_config
from fleet_consumer.group.membership import Membership
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.cli import main
from fleet_consumer.worker.commands.options import parser
from fleet_consumer.worker.consume.progress import PartitionProgress
from fleet_consumer.worker.local import retries as local_retries
from fleet_consumer.worker.local import running
from fleet_consumer.worker.local.retries import Counts
from fleet_consumer.worker.local.running import ProgressPrinter, settings_of
from fleet_consumer.worker.member import WorkerState
from fleet_consumer.worker.printed import Output
from fleet_consumer.worker.stats import Stats


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text("def handle(record): pass\n")
    return file


def config(*arguments: str) -> WorkerConfig:
    return parse_config(settings_of(parser().parse_args(["run", *arguments])))


def test_minimal_options_are_enough(handler: Path) -> None:
    found = config("--local", str(handler), "--topic", "orders", "--bootstrap", "localhost:9092")
    assert found.handler.python is not None
    assert (found.handler.python.callable, found.handler.python.path) == ("shop:handle", str(handler.parent))
    assert (found.topics, found.brokers.bootstrap_servers) == (("orders",), ("localhost:9092",))
    assert found.group_id.startswith("local.")
    assert found.group_id.endswith(".shop")
    assert found.failed_topic == f"_fleet.{found.group_id}.failed"
    assert found.consumer.auto_offset_reset == "Earliest"
    assert not found.consumer.static_membership


def test_every_option_is_accepted(handler: Path) -> None:
    text = (
        f"--local {handler}:Shop.sell --topic-pattern orders.* --bootstrap a:1 --bootstrap b:2 --group mine "
        "--from latest --output done --failed-topic bad --concurrency 4 --timeout 5 --decode-key String "
        "--decode-value Json --assignor range --tls-ca ca.pem --sasl PLAIN --credentials /secrets"
    )
    found = config(*text.split())
    assert found.handler.title == "shop:Shop.sell"
    assert found.topic_pattern is not None
    assert (found.group_id, found.failed_topic, found.handler.outputs) == ("mine", "bad", ("done",))
    assert (found.handler.concurrency, found.handler.timeout_seconds) == (4, 5)
    assert (found.handler.decode.key, found.handler.decode.value) == ("String", "Json")
    assert (found.consumer.assignors, found.consumer.auto_offset_reset) == (("range",), "Latest")
    assert found.brokers.tls is not None
    assert found.brokers.sasl is not None


def test_batch_handler_is_found_when_it_is_alone(handler: Path) -> None:
    handler.write_text("def handle_batch(records): pass\n")
    assert config("--local", str(handler), "--topic", "t", "--bootstrap", "a:1").handler.title == "shop:handle_batch"


def test_callable_is_imported_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = config("--local", "shop.orders:handle", "--topic", "t", "--bootstrap", "a:1")
    assert found.handler.python is not None
    assert (found.handler.python.callable, found.handler.python.path) == ("shop.orders:handle", str(tmp_path))
    assert found.group_id.endswith(".orders")


def test_handler_behind_http_is_its_address() -> None:
    found = config("--local", "http://localhost:8000/records", "--topic", "t", "--bootstrap", "a:1", "--batch")
    assert found.handler.title == "http://127.0.0.1:8000/records"
    assert found.handler.http is not None
    assert found.handler.http.batch


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--topic t", "--bootstrap: is missing"),
        ("--bootstrap a:1", "--topic: give --topic"),
        ("--bootstrap a:1 --topic t --topic-pattern x", "--topic: give --topic"),
        ("--bootstrap a:1 --topic-pattern (", "not a usable regular expression"),
        ("--bootstrap a:1 --topic t --group @", "groupId"),
        ("--bootstrap a:1 --topic t --tls-cert c.pem", "certFile and keyFile go together"),
        ("--bootstrap a:1 --topic t --sasl PLAIN", "directory"),
        ("--bootstrap a:1 --topic t --local gone.py", "there is no file"),
        ("--bootstrap a:1 --topic t --local handler", "neither a file, such as handler.py, nor a callable"),
        ("--bootstrap a:1 --topic t --local http://example.org/", "http://localhost:PORT/PATH"),
    ],
)
def test_impossible_options_are_named(handler: Path, arguments: str, told: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        config("--local", str(handler), *arguments.split())
    assert told in str(caught.value)


class Screen(io.StringIO):
    """The text that is written to a terminal, or to a file."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._is_terminal = terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_progress_is_written_over_itself_on_a_terminal_and_rarely_elsewhere() -> None:
    written: dict[bool, str] = {}
    stats = Stats(done=3, failed=1)
    for terminal in (True, False):
        screen = Screen(terminal=terminal)
        progress = ProgressPrinter(lambda: 0.0, screen)
        progress.watch(WorkerState("local", 300.0, None, stats))
        for quarter in range(80):
            progress.tick(quarter / 4)
        written[terminal] = screen.getvalue()
    assert written[True].count("\r\x1b[Kdone=3 failed=1 dropped=0") == 19
    assert written[True].endswith("\r"), "a log line takes its place"
    assert written[False] == "done=3 failed=1 dropped=0\ndone=3 failed=1 dropped=0 rate=0.0/s\n"


def test_progress_shows_how_fast_records_end() -> None:
    screen, stats = Screen(terminal=False), Stats()
    progress = ProgressPrinter(lambda: 0.0, screen)
    progress.watch(WorkerState("local", 300.0, None, stats))
    progress.tick(1.0)
    stats.done, stats.failed = 25, 5
    progress.tick(11.0)
    assert screen.getvalue().endswith(" rate=3.0/s\n")


@pytest.mark.parametrize(("ends", "told"), [((30, 12), " lag=27 "), ((30, None), " in-flight=2 ")])
def test_progress_shows_the_lag_once_the_ends_of_all_partitions_are_known(
    ends: tuple[int | None, ...], told: str
) -> None:
    parts = [TopicPartition("orders", number) for number in range(2)]
    partitions = {each: PartitionProgress(each) for each in parts}
    partitions[parts[0]].start, partitions[parts[1]].committed = 5, 10
    known = {each: end for each, end in zip(parts, ends, strict=True) if end is not None}
    loop = Mock(in_flight=2, error=None)
    loop.partitions, loop.ends.current.return_value, loop.committing.refused = partitions, known, None
    session = Mock(loop=loop)
    session.consumer.membership.return_value = Membership(group_id="orders")
    state = WorkerState("local", 300.0, None, Stats(done=3))
    state.session = session
    progress = ProgressPrinter(lambda: 0.0, Screen(terminal=False))
    progress.watch(state)
    line = progress.line()
    assert line.startswith(f"done=3 failed=0 dropped=0{told}")


def test_last_line_is_removed_from_a_terminal_before_the_final_counts(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(terminal=True)
    ProgressPrinter(lambda: 0.0, screen).end()
    assert (screen.getvalue(), capsys.readouterr().out) == ("\x1b[K", "done=0 failed=0 dropped=0\n")


def test_run_ends_once_when_the_reader_of_its_output_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(running, "end_main_thread", lambda: ended.append("asked"))
    reading, writing = os.pipe()
    with Output(writing, "w") as output:
        progress = ProgressPrinter(lambda: 0.0, Screen(terminal=False), [output])
        progress.tick(0.0)
        assert not ended
        os.close(reading)
        progress.tick(0.25)
        progress.tick(0.5)
    assert ended == ["asked"]


class Retries:
    """A retry process that is said to have come so far."""

    def __init__(self, counts: Counts, waiting: int | None) -> None:
        self.counts = counts
        self.waiting = Mock(count=waiting)
        self.checks = 0

    def check_running(self) -> None:
        self.checks += 1


@pytest.mark.parametrize(("waiting", "told"), [(2, " waiting=2"), (None, "")])
def test_progress_with_retries_is_of_both_processes(waiting: int | None, told: str) -> None:
    retries = Retries(Counts(done=2, failed=1, dropped=1, retried=4), waiting)
    progress = ProgressPrinter(lambda: 0.0, Screen(terminal=False))
    progress.retries = cast(Any, retries)
    progress.watch(WorkerState("local", 300.0, None, Stats(done=3, retried=3)))
    assert progress.line() == f"done=5 failed=1 dropped=1 retried=7{told}"
    progress.tick(0.5)
    assert retries.checks == 1


def test_retry_process_ends_when_its_input_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(local_retries, "end_main_thread", told.set)
    monkeypatch.setattr(threading, "excepthook", lambda found: None)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb"):
        stream.close()
        local_retries.Lifeline(stream).hold()
        assert told.wait(30)


@pytest.mark.parametrize("closes", [True, False])
def test_retry_process_ends_on_command_and_at_end_of_input(monkeypatch: pytest.MonkeyPatch, closes: bool) -> None:
    """A handler may have forked: then its forks hold the pipe open, and only the word comes through."""
    told = threading.Event()
    monkeypatch.setattr(local_retries, "end_main_thread", told.set)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as lifeline, os.fdopen(writing, "wb", buffering=0) as end:
        line = local_retries.Lifeline(lifeline)
        line.hold()
        if closes:
            end.close()
        else:
            end.write(b"\n")
        assert told.wait(30)
        assert line.cut is closes


def test_retry_process_ends_when_its_parent_is_gone_though_forks_hold_its_input_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = list[str]()
    monkeypatch.setattr(local_retries, "end_main_thread", lambda: told.append("end"))
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb"):
        lifeline = local_retries.Lifeline(stream)
        report = local_retries.RetryReport(tmp_path, lifeline)
        report.tick(0.0)
        assert (told, lifeline.cut) == ([], False)
        monkeypatch.setattr(os, "getppid", lambda: 1)
        report.tick(0.25)
        report.tick(0.5)
    assert (told, lifeline.cut) == (["end"], True)


def test_help_names_both_ways_to_retry(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = capsys.readouterr().out
    assert "--retry 5s,5s,30s" in told
    assert "--retry-policy fleet.yaml" in told


def test_retry_role_is_not_for_a_local_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--local", "handler.py", "--role", "retry"])
    assert "--local runs both roles if --retry" in capsys.readouterr().err
