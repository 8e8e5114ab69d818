"""A log line is one JSON object that says which record it is about; a poisoned topic cannot fill a disk."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

from fleet_consumer.handlers.call import CURRENT_CALL, HandlerCall
from fleet_consumer.record import Record
from fleet_consumer.worker.logs import JsonFormatter, LineBudget, PartsBudget, TextFormatter, fields

RECORD = Record("flights", 3, 42, 0, None, b"secret")


def line(message: str, *, held: Record | None, thread: int | None, **values: object) -> dict[str, Any]:
    logger = logging.getLogger("shop")
    record = logger.makeRecord("shop", logging.INFO, "f.py", 1, message, (), None, extra=fields(**values))
    parsed: dict[str, Any] = json.loads(JsonFormatter(lambda: held, thread).format(record))
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


def test_people_get_text() -> None:
    record = logging.getLogger("shop").makeRecord(
        "shop", logging.WARNING, "f.py", 1, "record failed", (), None, extra=fields(topic="flights", offset=42)
    )
    assert TextFormatter().format(record) == "warning: record failed topic=flights offset=42"


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
