"""A worker's log: one JSON object a line on standard error, constant text plus fields.

Whatever is logged while a handler has a record in hand, by the handler or by a library under it, carries that
record's coordinates. Settings are never logged as a whole: they name secrets' files, and connections hold secrets.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from fleet_consumer.handlers.call import CURRENT_CALL
from fleet_consumer.record import Record

MESSAGE_CHARACTERS_MAX: Final = 8192
"""Longer texts are cut: log collectors split or drop what is larger than 16 KiB."""

BUDGET_LINES: Final = 20
BUDGET_WINDOW_S: Final = 10.0
"""At most so many lines about single records in so many seconds; a poisoned topic must not fill a disk."""

PARTS_BUDGET_LINES: Final = 10
PARTS_BUDGET_WINDOW_S: Final = 60.0
"""At most so many lines from one of our libraries: librdkafka reports an absent broker several times a second."""

OWN_LOGGER: Final = "fleet_consumer.worker"


def fields(**values: object) -> dict[str, Any]:
    """The `extra` argument that puts `values` into a log line."""
    return {"fields": values}


def about(record: Record) -> dict[str, object]:
    """The coordinates under which a record is known in logs: its origin's, and in a retry also where it was read."""
    coordinates: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempt": record.attempt,
    }
    read = record.delivery
    if (read.topic, read.partition, read.offset) != (record.topic, record.partition, record.offset):
        coordinates |= {"readTopic": read.topic, "readPartition": read.partition, "readOffset": read.offset}
    return coordinates


def now_text(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """Renders a log record; `record_in_hand` gives the record on the consume loop's own thread, handlers that run
    elsewhere carry their hand with them. A batch is known by its first record."""

    def __init__(self, record_in_hand: Callable[[], Record | None], handler_thread: int | None) -> None:
        super().__init__()
        self._record_in_hand = record_in_hand
        self._handler_thread = handler_thread

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": now_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MESSAGE_CHARACTERS_MAX],
        }
        call = CURRENT_CALL.get()
        if call is not None:
            held: Record | None = call.records[0]
        else:
            held = self._record_in_hand() if record.thread == self._handler_thread else None
        if held is not None:
            line.update(about(held))
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-MESSAGE_CHARACTERS_MAX:]
        return json.dumps(line, default=str, ensure_ascii=False)


class LineBudget:
    """Lets so many lines through in each window, and counts the others. Pure: `now` is any clock's seconds."""

    def __init__(self, lines: int = BUDGET_LINES, window_s: float = BUDGET_WINDOW_S) -> None:
        self._lines = lines
        self._window_s = window_s
        self._opened_at = float("-inf")
        self._spent = 0

    def spend(self, now: float) -> tuple[bool, int]:
        """True if one more line may be written, and how many were left out since the last window that left some out.

        The count is given once, with the first line of the next window.
        """
        left_out = 0
        if now - self._opened_at >= self._window_s:
            left_out = max(0, self._spent - self._lines)
            self._opened_at, self._spent = now, 0
        self._spent += 1
        return self._spent <= self._lines, left_out


class PartsBudget(logging.Filter):
    """Bounds the lines of our own libraries; the worker's lines and those of handlers all pass.

    Each logger has a budget for each level, so that many lines about rebalances never hide the one error after them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._budgets: dict[tuple[str, int], LineBudget] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the line may pass; the first one after some that were left out names how many there were."""
        if not record.name.startswith("fleet_consumer.") or record.name == OWN_LOGGER:
            return True
        key = (record.name, record.levelno)
        budget = self._budgets.setdefault(key, LineBudget(PARTS_BUDGET_LINES, PARTS_BUDGET_WINDOW_S))
        allowed, left_out = budget.spend(record.created)
        if left_out:
            record.fields = {**getattr(record, "fields", {}), "linesLeftOut": left_out}
        return allowed


class TextFormatter(logging.Formatter):
    """The same lines for a person in front of a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        text = f"{record.levelname.lower()}: {record.getMessage()[:MESSAGE_CHARACTERS_MAX]}{' ' * bool(pairs)}{pairs}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(
    record_in_hand: Callable[[], Record | None], handler_thread: int | None, *, for_people: bool = False
) -> None:
    """Send all logging of this process to standard error, from level INFO: as JSON, or as text `for_people`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(PartsBudget())
    handler.setFormatter(TextFormatter() if for_people else JsonFormatter(record_in_hand, handler_thread))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
