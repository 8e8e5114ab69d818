"""A worker's log on standard error: constant text plus fields, as one JSON object per line or as plain text.

If a handler, or a library that it calls, logs a line while a record is being handled, the line carries the record's
coordinates. Neither settings, which name secret files, nor connections, which contain secrets, are logged as a whole.
"""

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
"""Limit of a string in characters. Longer strings are cut, because log collectors split or drop lines above 16 KiB."""

BUDGET_LINES: Final = 20
BUDGET_WINDOW_S: Final = 10.0
"""At most `BUDGET_LINES` lines about single records are logged in this many seconds, so that poison records do not fill
the disk."""

PARTS_BUDGET_LINES: Final = 10
PARTS_BUDGET_WINDOW_S: Final = 60.0
"""Window in seconds in which at most `PARTS_BUDGET_LINES` lines are logged for each library logger and level.
librdkafka reports an absent broker several times a second."""

ERASE_LINE: Final = "\x1b[K"
"""Terminal sequence that erases the rest of the line, on which a local run shows its progress."""
OUR_LOGGERS: Final = "fleet_consumer"
OWN_LOGGERS: Final = frozenset({"fleet_consumer.worker", "fleet_consumer.backfill"})


def fields(**values: object) -> dict[str, Any]:
    """Return the `extra` argument that adds `values` to a log line."""
    return {"fields": values}


def place_of(record: Record) -> Place:
    """Return the place at which a record was read, not its origin: a stuck partition waits at this offset."""
    read = record.delivery
    return Place(read.topic, read.partition, read.offset)


def about(record: Record) -> dict[str, object]:
    """Return a record's coordinates for logs: those of its origin and, for a retry, also those at which it was read."""
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
    """Format a time (seconds since the epoch) as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


RecordInHand = Callable[[logging.LogRecord], Record | None]
"""Returns the record that was being handled by the handler that logged this line, or None."""

ATTRIBUTES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "fields"}
"""Attributes of every log record. Any other attribute of a log record comes from `extra`."""


def in_hand(on_loop: Callable[[], Record | None], loop_thread: int | None) -> RecordInHand:
    """Return a function that finds the record of the handler that logged a line.

    On the consume loop's thread this is `on_loop()`, in executors the record in `CURRENT_CALL`. A batch is identified
    by its first record.
    """

    def find(record: logging.LogRecord) -> Record | None:
        call = CURRENT_CALL.get()
        if call is not None:
            return call.records[0] if call.records else None
        return on_loop() if record.thread == loop_thread else None

    return find


def nothing_in_hand(record: logging.LogRecord) -> None:
    """Return None, for a process that handles no records."""


class LineFormatter(logging.Formatter):
    """Builds the components of a log line that all formats share."""

    def __init__(self, record_in_hand: RecordInHand = nothing_in_hand) -> None:
        super().__init__()
        self._record_in_hand = record_in_hand

    def message(self, record: logging.LogRecord) -> str:
        """Return the text, truncated; the unformatted text and the `repr` of its arguments if formatting fails."""
        try:
            return record.getMessage()[:MESSAGE_CHARACTERS_MAX]
        except Exception:
            return f"{record.msg} {record.args!r}"[:MESSAGE_CHARACTERS_MAX]

    def values(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the coordinates of the record being handled, the application's `extra`, and our own fields."""
        held = self._record_in_hand(record)
        extra = {name: _bounded(value) for name, value in record.__dict__.items() if name not in ATTRIBUTES}
        return {**extra, **(about(held) if held is not None else {}), **getattr(record, "fields", {})}

    def exception(self, record: logging.LogRecord) -> str:
        """Return the traceback, or its end if it is too long; empty without an exception."""
        return self.formatException(record.exc_info)[-MESSAGE_CHARACTERS_MAX:] if record.exc_info else ""

    def stack(self, record: logging.LogRecord) -> str:
        """Return the stack of `stack_info`, or its end if it is too long; empty without a stack."""
        return self.formatStack(record.stack_info)[-MESSAGE_CHARACTERS_MAX:] if record.stack_info else ""


class JsonFormatter(LineFormatter):
    """Formats a log record as one JSON object on one line, including the exception."""

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
        except Exception:  # NaN or infinity, a key that is not a string, a failing `repr`
            return json.dumps({str(name): _plain(value) for name, value in line.items()}, ensure_ascii=False)


def _bounded(value: object) -> object:
    """Return the value, or the beginning of its JSON if the JSON is too long."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return value[:MESSAGE_CHARACTERS_MAX]
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except Exception:  # the value cannot be serialized; `_plain` makes a string of it
        return value
    return value if len(text) <= MESSAGE_CHARACTERS_MAX else text[:MESSAGE_CHARACTERS_MAX]


def _plain(value: object) -> str | int | bool | None:
    """Return a value that can always be represented in JSON."""
    if value is None or isinstance(value, str | int):
        return value
    try:
        return repr(value)[:MESSAGE_CHARACTERS_MAX]
    except Exception:
        return f"<{type(value).__name__}>"


class LineBudget:
    """Admits `lines` lines in each window and counts the others. Pure: `now` is in seconds of any clock."""

    def __init__(self, lines: int = BUDGET_LINES, window_s: float = BUDGET_WINDOW_S) -> None:
        self._lines = lines
        self._window_s = window_s
        self._opened_at = float("-inf")
        self._spent = 0

    def spend(self, now: float) -> tuple[bool, int]:
        """Return True if one more line may be written, and the number of lines suppressed in the previous window. The
        number is returned once, with the first line of the next window; otherwise it is 0."""
        left_out = 0
        if now - self._opened_at >= self._window_s:
            left_out = max(0, self._spent - self._lines)
            self._opened_at, self._spent = now, 0
        self._spent += 1
        return self._spent <= self._lines, left_out


class PartsBudget(logging.Filter):
    """Limits the lines of our libraries, such as those of the consumer. All lines of the worker and of handlers pass.

    Each logger has a budget per level, so that many lines about rebalances never hide a single error that follows.
    """

    def __init__(self) -> None:
        super().__init__()
        self._budgets: dict[tuple[str, int], LineBudget] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line may pass. The first line after suppressed lines carries the number of these lines."""
        if not record.name.startswith("fleet_consumer.") or record.name in OWN_LOGGERS:
            return True
        key = (record.name, record.levelno)
        budget = self._budgets.setdefault(key, LineBudget(PARTS_BUDGET_LINES, PARTS_BUDGET_WINDOW_S))
        allowed, left_out = budget.spend(record.created)
        if left_out:
            record.fields = {**getattr(record, "fields", {}), "linesLeftOut": left_out}
        return allowed


class TextFormatter(LineFormatter):
    """Formats a log record as plain text; a traceback follows on separate lines. `process` distinguishes the lines of
    several processes on one terminal."""

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
    """Keeps our loggers working after an application has configured logging.

    By default `logging.config` disables all existing loggers and removes the root logger's handlers.
    """

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None
        self._level = logging.NOTSET

    def attach(self, handler: logging.Handler, level: int) -> None:
        self._handler, self._level = handler, level

    def keep(self) -> None:
        """Restore our loggers. Called after application code that may have configured logging."""
        if self._handler is None:
            return
        for name in list(logging.root.manager.loggerDict):
            if name in (OUR_LOGGERS, "py.warnings") or name.startswith(f"{OUR_LOGGERS}."):
                logging.getLogger(name).disabled = False
        ours = logging.getLogger(OUR_LOGGERS)
        if self._handler not in logging.getLogger().handlers and self._handler not in ours.handlers:
            ours.addHandler(self._handler)
            ours.setLevel(self._level)
            ours.propagate = False  # if the application's log handler printed our lines, they would be logged again

    def end(self) -> None:
        ours = logging.getLogger(OUR_LOGGERS)
        if self._handler is not None and self._handler in ours.handlers:
            ours.removeHandler(self._handler)
            ours.setLevel(logging.NOTSET)
            ours.propagate = True
        self._handler = None


OWN_LOG: Final = OwnLog()


@contextmanager
def logging_as(
    config: LogConfig, record_in_hand: RecordInHand = nothing_in_hand, *, process: str = ""
) -> Iterator[None]:
    """Send this process's logging to standard error; with the JSON format also lines printed inside the context."""
    lines: LineFormatter = JsonFormatter(record_in_hand)
    if config.format != "Json":
        lines = TextFormatter(record_in_hand, process=process, terminal=sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(PartsBudget())
    handler.setFormatter(lines)
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    level = logging.getLogger().level
    OWN_LOG.attach(handler, level)
    try:
        with printed_as_lines(handler, level) if config.format == "Json" else nullcontext():
            yield
    finally:
        OWN_LOG.end()
