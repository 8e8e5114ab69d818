"""A worker's log on standard error, constant text plus fields: a JSON object for each line, or text.

Whatever is logged while a handler has a record in hand, by the handler or by a library under it, carries that
record's coordinates. Settings are never logged as a whole: they name secrets' files, and connections hold secrets.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, Final

from fleet_consumer.contract.log import LogConfig
from fleet_consumer.contract.skips import Place
from fleet_consumer.handlers.call import CURRENT_CALL
from fleet_consumer.record import Record
from fleet_consumer.worker.printed import printed_as_lines

MESSAGE_CHARACTERS_MAX: Final = 8192
"""Longer texts are cut: log collectors split or drop what is larger than 16 KiB."""

BUDGET_LINES: Final = 20
BUDGET_WINDOW_S: Final = 10.0
"""At most so many lines about single records in so many seconds; a poisoned topic must not fill a disk."""

PARTS_BUDGET_LINES: Final = 10
PARTS_BUDGET_WINDOW_S: Final = 60.0
"""At most so many lines from one of our libraries: librdkafka reports an absent broker several times a second."""

ERASE_LINE: Final = "\x1b[K"
"""The sequence that has a terminal erase the rest of its line: that of the progress of a local run."""
OUR_LOGGERS: Final = "fleet_consumer"
OWN_LOGGERS: Final = frozenset({"fleet_consumer.worker", "fleet_consumer.backfill"})


def fields(**values: object) -> dict[str, Any]:
    """The `extra` argument that puts `values` into a log line."""
    return {"fields": values}


def place_of(record: Record) -> Place:
    """The place at which a record was read: its partition is the one that may stand, whatever the record's origin."""
    read = record.delivery
    return Place(read.topic, read.partition, read.offset)


def about(record: Record) -> dict[str, object]:
    """The coordinates under which a record is known in logs: its origin's, and in a retry also where it was read."""
    coordinates: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempt": record.attempt,
    }
    read = place_of(record)
    if read != (record.topic, record.partition, record.offset):
        coordinates |= {"readTopic": read.topic, "readPartition": read.partition, "readOffset": read.offset}
    return coordinates


def now_text(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


RecordInHand = Callable[[logging.LogRecord], Record | None]
"""The record that a handler had in hand when it logged."""

ATTRIBUTES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "fields"}
"""What a log record has by itself; anything else came from its logger's `extra`."""


def in_hand(on_loop: Callable[[], Record | None], loop_thread: int | None) -> RecordInHand:
    """The finder of the record in hand: of `on_loop` on the consume loop's own thread; handlers that run elsewhere
    carry theirs with them. A batch is known by its first record."""

    def find(record: logging.LogRecord) -> Record | None:
        call = CURRENT_CALL.get()
        if call is not None:
            return call.records[0] if call.records else None
        return on_loop() if record.thread == loop_thread else None

    return find


def nothing_in_hand(record: logging.LogRecord) -> None:
    """The finder of a process that handles no records."""


class LineFormatter(logging.Formatter):
    """The parts of a line that all formats have."""

    def __init__(self, record_in_hand: RecordInHand = nothing_in_hand) -> None:
        super().__init__()
        self._record_in_hand = record_in_hand

    def message(self, record: logging.LogRecord) -> str:
        """The text, cut; as it stands in the code where its arguments do not fit."""
        try:
            return record.getMessage()[:MESSAGE_CHARACTERS_MAX]
        except Exception:
            return f"{record.msg} {record.args!r}"[:MESSAGE_CHARACTERS_MAX]

    def values(self, record: logging.LogRecord) -> dict[str, object]:
        """The coordinates of the record in hand, `extra` of the application, and our own fields."""
        held = self._record_in_hand(record)
        extra = {name: _bounded(value) for name, value in record.__dict__.items() if name not in ATTRIBUTES}
        return {**extra, **(about(held) if held is not None else {}), **getattr(record, "fields", {})}

    def exception(self, record: logging.LogRecord) -> str:
        """The traceback, its end if it is long; empty without one."""
        return self.formatException(record.exc_info)[-MESSAGE_CHARACTERS_MAX:] if record.exc_info else ""

    def stack(self, record: logging.LogRecord) -> str:
        """The stack that a logger's `stack_info` asks for, its end if it is long; empty without one."""
        return self.formatStack(record.stack_info)[-MESSAGE_CHARACTERS_MAX:] if record.stack_info else ""


class JsonFormatter(LineFormatter):
    """One JSON object on one line, an exception within it."""

    def format(self, record: logging.LogRecord) -> str:
        head: dict[str, object] = {
            "time": now_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        line = {**head, **self.values(record), **head}
        if text := self.exception(record):
            line["exception"] = text
        if text := self.stack(record):
            line["stackInfo"] = text
        try:
            return json.dumps(line, default=repr, ensure_ascii=False, allow_nan=False)
        except Exception:  # a number that JSON does not have, a key that is no text, an object without a `repr`
            return json.dumps({str(name): _plain(value) for name, value in line.items()}, ensure_ascii=False)


def _bounded(value: object) -> object:
    """The value, or the beginning of its JSON where that is too long."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return value[:MESSAGE_CHARACTERS_MAX]
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except Exception:  # it has no JSON; `_plain` finds something to say
        return value
    return value if len(text) <= MESSAGE_CHARACTERS_MAX else text[:MESSAGE_CHARACTERS_MAX]


def _plain(value: object) -> str | int | bool | None:
    """A value that JSON certainly has."""
    if value is None or isinstance(value, str | int):
        return value
    try:
        return repr(value)[:MESSAGE_CHARACTERS_MAX]
    except Exception:
        return f"<{type(value).__name__}>"


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
        if not record.name.startswith("fleet_consumer.") or record.name in OWN_LOGGERS:
            return True
        key = (record.name, record.levelno)
        budget = self._budgets.setdefault(key, LineBudget(PARTS_BUDGET_LINES, PARTS_BUDGET_WINDOW_S))
        allowed, left_out = budget.spend(record.created)
        if left_out:
            record.fields = {**getattr(record, "fields", {}), "linesLeftOut": left_out}
        return allowed


class TextFormatter(LineFormatter):
    """The same lines for people; a traceback follows in lines of its own.

    `process` tells apart the lines of several processes on one terminal.
    """

    def __init__(
        self, record_in_hand: RecordInHand = nothing_in_hand, *, process: str = "", terminal: bool = False
    ) -> None:
        super().__init__(record_in_hand)
        self._process = f" [{process}]" if process else ""
        self._before = ERASE_LINE if terminal else ""

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={value}" for name, value in self.values(record).items())
        head = f"{self._before}{now_text(record.created)} {record.levelname.lower()}{self._process} {record.name}"
        parts = (f"{head}: {self.message(record)}{pairs}", self.exception(record), self.stack(record))
        return "\n".join(part for part in parts if part)


class OwnLog:
    """The place of this process's own lines, which an application that configures logging must not lose.

    `logging.config` disables all loggers that exist and takes the handlers of the root logger away, by default.
    """

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None
        self._level = logging.NOTSET

    def begin(self, handler: logging.Handler, level: int) -> None:
        """Remember the handler of the log, and its level."""
        self._handler, self._level = handler, level

    def keep(self) -> None:
        """Have the lines of our own loggers logged as before; called after the application's code had its chance."""
        if self._handler is None:
            return
        for name in list(logging.root.manager.loggerDict):
            if name in (OUR_LOGGERS, "py.warnings") or name.startswith(f"{OUR_LOGGERS}."):
                logging.getLogger(name).disabled = False
        ours = logging.getLogger(OUR_LOGGERS)
        if self._handler not in logging.getLogger().handlers and self._handler not in ours.handlers:
            ours.addHandler(self._handler)
            ours.setLevel(self._level)
            ours.propagate = False  # a handler of the application would print them, and what is printed is logged

    def end(self) -> None:
        """Leave our loggers as they were."""
        ours = logging.getLogger(OUR_LOGGERS)
        if self._handler is not None and self._handler in ours.handlers:
            ours.removeHandler(self._handler)
            ours.setLevel(logging.NOTSET)
            ours.propagate = True
        self._handler = None


OWN_LOG: Final = OwnLog()
"""One for the process, as logging is."""


@contextmanager
def logging_as(
    config: LogConfig, record_in_hand: RecordInHand = nothing_in_hand, *, process: str = ""
) -> Iterator[None]:
    """Send all logging of this process to standard error, and until the end of the context all that is printed, too,
    where each line must be JSON."""
    lines: LineFormatter = JsonFormatter(record_in_hand)
    if config.format != "Json":
        lines = TextFormatter(record_in_hand, process=process, terminal=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(PartsBudget())
    handler.setFormatter(lines)
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    level = logging.getLogger().level
    OWN_LOG.begin(handler, level)
    try:
        with printed_as_lines(handler, level) if config.format == "Json" else nullcontext():
            yield
    finally:
        OWN_LOG.end()
