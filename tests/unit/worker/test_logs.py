"""A log line is one JSON object that says which record it is about; a poisoned topic cannot fill a disk."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet_consumer.contract.log import LEVELS, LogConfig
from fleet_consumer.handlers.call import CURRENT_CALL, HandlerCall
from fleet_consumer.record import Record
from fleet_consumer.worker.logs import (
    OWN_LOG,
    JsonFormatter,
    LineBudget,
    PartsBudget,
    TextFormatter,
    fields,
    in_hand,
    logging_as,
)
from fleet_consumer.worker.printed import Output

RECORD = Record("flights", 3, 42, 0, None, b"secret")


def line(message: str, *, held: Record | None, thread: int | None, **values: object) -> dict[str, Any]:
    logger = logging.getLogger("shop")
    record = logger.makeRecord("shop", logging.INFO, "f.py", 1, message, (), None, extra=fields(**values))
    parsed: dict[str, Any] = json.loads(JsonFormatter(in_hand(lambda: held, thread)).format(record))
    return parsed


def test_line_of_a_handler_carries_its_record() -> None:
    told = line("half way", held=RECORD, thread=threading.get_ident())
    assert {name: told[name] for name in ("message", "logger", "level", "topic", "partition", "offset", "attempt")} == {
        "message": "half way",
        "logger": "shop",
        "level": "info",
        "topic": "flights",
        "partition": 3,
        "offset": 42,
        "attempt": 0,
    }
    assert "secret" not in json.dumps(told)


def test_line_of_another_thread_does_not() -> None:
    assert "offset" not in line("a request", held=RECORD, thread=threading.get_ident() + 1)


def test_handler_elsewhere_carries_its_record_with_it() -> None:
    CURRENT_CALL.set(HandlerCall([RECORD, Record("flights", 3, 43, 0, None, None)], 1))
    try:
        assert line("half way", held=None, thread=None)["offset"] == 42
    finally:
        CURRENT_CALL.set(None)


def test_text_has_the_same_parts() -> None:
    record = logging.getLogger("shop").makeRecord(
        "shop", logging.WARNING, "f.py", 1, "slow %s", ("answer",), None, extra=fields(took=2)
    )
    record.created, thread = 1_700_000_000.5, threading.get_ident()
    assert TextFormatter(in_hand(lambda: RECORD, thread)).format(record) == (
        "2023-11-14T22:13:20.500Z warning shop: slow answer topic=flights partition=3 offset=42 attempt=0 took=2"
    )


def test_extra_of_an_application_is_part_of_the_object_and_never_replaces_the_rest() -> None:
    record = logging.makeLogRecord({"name": "shop", "msg": "paid", "orderId": 7, "level": "forged", "time": 0})
    parsed = json.loads(JsonFormatter().format(record))
    assert (parsed["orderId"], parsed["level"]) == (7, "level none")
    assert parsed["time"] != 0


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "attributes",
    [
        {"msg": "%d records", "args": ("many",)},
        {"msg": "paid", "amount": float("nan")},
        {"msg": "paid", "order": {("a", 1): 2}},
        {"msg": "paid", "order": Unprintable()},
    ],
    ids=["arguments that do not fit", "no number", "a key that is not a string", "no text at all"],
)
def test_odd_values_still_make_one_json_object(attributes: dict[str, Any]) -> None:
    text = JsonFormatter().format(logging.makeLogRecord({"name": "shop", **attributes}))
    assert json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["logger"] == "shop"
    assert "\n" not in text


@pytest.fixture
def root() -> Iterator[None]:
    """The root logger as it was, and all others enabled."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield
    for name in list(logger.manager.loggerDict):
        logging.getLogger(name).disabled = False
    logger.handlers[:], logger.level = handlers, level


def printed(config: LogConfig, capsys: pytest.CaptureFixture[str], run: Callable[[], object]) -> list[str]:
    """The lines on standard error after `run`; nothing else may have gone anywhere."""
    with logging_as(config, in_hand(lambda: RECORD, threading.get_ident())):
        run()
    out, err = capsys.readouterr()
    assert out == ""
    return str(err).splitlines()


@pytest.mark.usefixtures("root")
def test_everything_that_a_handler_writes_is_one_json_object_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        print("one", 1)
        print("two\nthree\n\nhalf", end="")
        sys.stdout.flush()
        print("careful", file=sys.stderr)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old call", DeprecationWarning, stacklevel=1)
        try:
            raise ValueError("no\nsuch order")
        except ValueError:
            logging.getLogger("shop").exception("failed")
        thread = threading.Thread(target=lambda: 1 / 0, name="background")
        thread.start()
        thread.join()

    lines = [json.loads(line) for line in printed(LogConfig(), capsys, run)]
    found = [(line["logger"], line["level"], line["message"].split("\n")[0]) for line in lines]
    assert found[:5] == [
        ("stdout", "info", "one 1"),
        ("stdout", "info", "two"),
        ("stdout", "info", "three"),
        ("stdout", "info", "half"),
        ("stderr", "warning", "careful"),
    ]
    assert found[5][0] == "py.warnings"
    assert "old call" in found[5][2]
    assert found[6:] == [("shop", "error", "failed"), ("uncaught", "error", "uncaught exception in background")]
    assert all(line["offset"] == 42 for line in lines[:7])
    assert "no\nsuch order" in lines[6]["exception"]
    assert "ZeroDivisionError" in lines[7]["exception"]


@pytest.mark.usefixtures("root")
def test_object_that_an_application_prints_passes_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as(LogConfig()):
        print('{"event": "paid"}', flush=True)
        print("{not json}")
    out, err = capsys.readouterr()
    assert out == '{"event": "paid"}\n'
    assert [json.loads(line)["message"] for line in err.splitlines()] == ["{not json}"]


DICT_CONFIG = {
    "version": 1,
    "formatters": {"plain": {"format": "%(levelname)s %(name)s %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stdout"}},
    "root": {"level": "INFO", "handlers": ["out"]},
}


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("how", ["dictConfig", "basicConfig"])
def test_application_that_configures_logging_loses_no_line_and_repeats_none(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dictConfig` disables the loggers that exist by default; it silenced the whole worker."""
    worker = logging.getLogger("fleet_consumer.worker")

    def run() -> None:
        if how == "dictConfig":
            logging.config.dictConfig(DICT_CONFIG)
        else:
            logging.basicConfig(
                force=True, level="INFO", stream=sys.stdout, format="%(levelname)s %(name)s %(message)s"
            )
        OWN_LOG.keep()
        logging.getLogger("app").info("paid")
        print("printed")
        print("complaint", file=sys.stderr)
        worker.info("committed")
        thread = threading.Thread(target=lambda: 1 / 0, name="background")
        thread.start()
        thread.join()

    lines = [json.loads(line) for line in printed(LogConfig(), capsys, run)]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("stdout", "INFO app paid"),
        ("stdout", "printed"),
        ("stderr", "complaint"),
        ("fleet_consumer.worker", "committed"),
        ("uncaught", "uncaught exception in background"),
    ]
    ours = logging.getLogger("fleet_consumer")
    assert (ours.handlers, ours.propagate) == ([], True)


@pytest.mark.usefixtures("root")
def test_second_handler_of_an_application_doubles_its_lines_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        logging.getLogger().addHandler(logging.StreamHandler())
        logging.getLogger("app").warning("paid")
        print("printed")

    lines = [json.loads(line) for line in printed(LogConfig(), capsys, run)]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("app", "paid"),
        ("stderr", "paid"),
        ("stdout", "printed"),
    ]


@pytest.mark.usefixtures("root")
def test_exception_that_ends_the_main_thread_is_one_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(RuntimeError) as caught, logging_as(LogConfig()):
        raise RuntimeError("bug in\nmain")
    assert capsys.readouterr().err == ""  # whoever catches it reports it
    sys.excepthook(RuntimeError, caught.value, caught.value.__traceback__)
    told = json.loads(capsys.readouterr().err)
    assert (told["logger"], told["level"]) == ("uncaught", "error")
    assert "bug in\nmain" in told["exception"]


@pytest.mark.usefixtures("root")
def test_printed_lines_are_cut_into_pieces_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    long = "".join(chr(ord("a") + each % 26) for each in range(20_001))

    def run() -> None:
        sys.stdout.write(f"{long}\n")  # the line and its end at once
        print(long)  # the line, then its end
        for character in long:
            print(character, end="")
        print()
        thread = threading.Thread(target=lambda: print("half of a thread", end=""))
        thread.start()
        thread.join()

    messages = [json.loads(line)["message"] for line in printed(LogConfig(), capsys, run)]
    assert max(map(len, messages)) == 8192
    assert "".join(messages) == 3 * long + "half of a thread"


@pytest.mark.usefixtures("root")
def test_long_object_that_an_application_prints_passes_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps({"event": "paid", "body": "x" * 20_000})
    with logging_as(LogConfig()):
        print(text)
    assert capsys.readouterr() == (f"{text}\n", "")


@pytest.mark.usefixtures("root")
def test_cutting_takes_time_in_proportion_to_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    """16 MiB took minutes: each piece copied all the rest."""
    text = "x" * (16 << 20)
    began = time.process_time()
    with logging_as(LogConfig(level="Error")):
        sys.stdout.write(text)
    assert time.process_time() - began < 2.0
    assert capsys.readouterr().err == ""


def test_extra_values_are_bounded_and_the_stack_is_kept() -> None:
    values = {"body": "y" * 100_000, "tree": {"leaves": ["z" * 100] * 1000}, "count": 7, "order": {"id": 7}}
    record = logging.makeLogRecord({"name": "shop", "msg": "paid", "stack_info": "Stack:\n  here", **values})
    parsed = json.loads(JsonFormatter().format(record))
    assert (len(parsed["body"]), len(parsed["tree"]), parsed["count"], parsed["order"]) == (8192, 8192, 7, {"id": 7})
    assert parsed["stackInfo"] == "Stack:\n  here"
    assert TextFormatter().format(record).endswith("\nStack:\n  here")


@pytest.mark.usefixtures("root")
def test_level_bounds_what_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        for level in ("debug", "info", "warning", "error"):
            getattr(logging.getLogger("shop"), level)(level)

    seen = {
        level: [line.split()[3] for line in printed(LogConfig(level=level, format="Text"), capsys, run)]
        for level in LEVELS
    }
    assert seen == {
        "Debug": ["debug", "info", "warning", "error"],
        "Info": ["info", "warning", "error"],
        "Warning": ["warning", "error"],
        "Error": ["error"],
    }


def test_fields_are_part_of_the_object() -> None:
    assert line("committed", held=None, thread=None, count=3)["count"] == 3


def test_budget_lets_some_lines_through_and_counts_the_rest_once() -> None:
    budget = LineBudget(lines=2, window_s=10)
    assert [budget.spend(0.0) for _ in range(5)] == [(True, 0), (True, 0), (False, 0), (False, 0), (False, 0)]
    assert [budget.spend(10.0), budget.spend(11.0)] == [(True, 3), (True, 0)]
    assert budget.spend(30.0) == (True, 0)


def told_by(name: str, times: int, *, at: float) -> list[logging.LogRecord]:
    """Lines that pass, of so many equal lines of one logger."""
    lines = [logging.makeLogRecord({"name": name, "msg": "broker away", "created": at}) for _ in range(times)]
    return [line for line in lines if BUDGET.filter(line)]


BUDGET = PartsBudget()


def test_libraries_are_bounded_each_for_itself_and_handlers_are_not() -> None:
    """A broker that is away for a night must not fill the disk with the same line."""
    assert len(told_by("fleet_consumer.fetch.thread", 100, at=0.0)) == 10
    assert len(told_by("fleet_consumer.net.client", 5, at=1.0)) == 5
    assert len(told_by("shop.orders", 100, at=2.0)) == 100
    (first,) = told_by("fleet_consumer.fetch.thread", 1, at=60.0)
    assert first.fields == {"linesLeftOut": 90}  # type: ignore[attr-defined]


def test_lines_about_rebalances_do_not_hide_the_error_after_them() -> None:
    budget = PartsBudget()
    name = "fleet_consumer.coordinator.thread"
    infos = [{"name": name, "levelno": logging.INFO, "msg": "joining", "created": 0.0} for _ in range(12)]
    assert sum(budget.filter(logging.makeLogRecord(each)) for each in infos) == 10
    assert budget.filter(
        logging.makeLogRecord({"name": name, "levelno": logging.ERROR, "msg": "ended", "created": 1.0})
    )


def test_print_to_a_pipe_without_a_reader_raises_nothing() -> None:
    reading, writing = os.pipe()
    with io.TextIOWrapper(io.BufferedWriter(output := Output(writing, "w")), line_buffering=True) as stream:
        print("seen", file=stream)
        assert not output.unread()
        assert os.read(reading, 100) == b"seen\n"
        os.close(reading)
        print("lost", file=stream)
        assert output.unread()
        print("lost as well", file=stream)


def test_lines_of_several_processes_on_a_terminal_are_told_apart_and_take_the_place_of_the_progress() -> None:
    record = logging.makeLogRecord({"name": "fleet_consumer.worker", "levelname": "INFO", "msg": "worker started"})
    line = TextFormatter(process="retry", terminal=True).format(record)
    assert line.startswith("\x1b[K")
    assert line.endswith(" info [retry] fleet_consumer.worker: worker started")
