"""A worker's log on standard error: constant messages with fields, as one JSON object per line or as plain text.

Lines that are logged while a record is being handled, by the handler or by libraries that it calls, contain the
record's coordinates. Settings and connections are never logged as a whole: settings contain the names of secret files,
and connections contain secrets.
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
"""Maximum number of characters of a string. Longer strings are cut, because log collectors split or drop lines of more
than 16 KiB."""

BUDGET_LINES: Final = 20
BUDGET_WINDOW_S: Final = 10.0
"""At most `BUDGET_LINES` lines about single records are logged in this many seconds. Otherwise poison records could
fill the disk."""

PARTS_BUDGET_LINES: Final = 10
PARTS_BUDGET_WINDOW_S: Final = 60.0
"""At most `PARTS_BUDGET_LINES` lines per library logger and level are logged in this many seconds. For example,
librdkafka reports an unreachable broker several times a second."""

ERASE_LINE: Final = "\x1b[K"
"""Terminal sequence that erases the rest of the current line, which shows the progress of a local run."""
OUR_LOGGERS: Final = "fleet_consumer"
OWN_LOGGERS: Final = frozenset({"fleet_consumer.worker", "fleet_consumer.backfill"})


def fields(**values: object) -> dict[str, Any]:
    """Return an `extra` argument for a logger. It adds `values` to the log line."""
    return {"fields": values}


def place_of(record: Record) -> Place:
    """Return the topic, partition and offset at which the record was read. They may differ from its origin's."""
    read = record.delivery
    return Place(read.topic, read.partition, read.offset)


def about(record: Record) -> dict[str, object]:
    """Return a record's coordinates for logs: those of its origin, and for a retry also those of the retried copy."""
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
    """Format epoch seconds as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


RecordInHand = Callable[[logging.LogRecord], Record | None]
"""Function that returns the record whose handler logged the line, or None."""

ATTRIBUTES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "fields"}
"""Standard attributes of log records. All other attributes come from the `extra` argument."""


def in_hand(on_loop: Callable[[], Record | None], loop_thread: int | None) -> RecordInHand:
    """Return a function that finds the record whose handler logged a line.

    On the consume loop's thread, the record is `on_loop()`. In executors, it is the record in `CURRENT_CALL`. For a
    batch, it is the first record.
    """

    def find(record: logging.LogRecord) -> Record | None:
        call = CURRENT_CALL.get()
        if call is not None:
            return call.records[0] if call.records else None
        return on_loop() if record.thread == loop_thread else None

    return find


def nothing_in_hand(record: logging.LogRecord) -> None:
    """Return None. Used in processes that handle no records."""


class LineFormatter(logging.Formatter):
    """Base class of the formatters. Builds the parts of a log line."""

    def __init__(self, record_in_hand: RecordInHand = nothing_in_hand) -> None:
        super().__init__()
        self._record_in_hand = record_in_hand

    def message(self, record: logging.LogRecord) -> str:
        """Return the truncated message. If formatting fails, return the format string and `repr` of the arguments."""
        try:
            return record.getMessage()[:MESSAGE_CHARACTERS_MAX]
        except Exception:
            return f"{record.msg} {record.args!r}"[:MESSAGE_CHARACTERS_MAX]

    def values(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the fields of a line: the application's `extra`, the handled record's coordinates, and our own."""
        held = self._record_in_hand(record)
        extra = {name: _bounded(value) for name, value in record.__dict__.items() if name not in ATTRIBUTES}
        return {**extra, **(about(held) if held is not None else {}), **getattr(record, "fields", {})}

    def exception(self, record: logging.LogRecord) -> str:
        """Return the traceback; only its end if it is too long, and an empty string without an exception."""
        return self.formatException(record.exc_info)[-MESSAGE_CHARACTERS_MAX:] if record.exc_info else ""

    def stack(self, record: logging.LogRecord) -> str:
        """Return the stack of `stack_info`; only its end if it is too long, and an empty string without a stack."""
        return self.formatStack(record.stack_info)[-MESSAGE_CHARACTERS_MAX:] if record.stack_info else ""


class JsonFormatter(LineFormatter):
    """Formats a log record, including its traceback, as one JSON object on one line."""

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
    """Return the value; if it is too long as JSON, return the beginning of the JSON."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return value[:MESSAGE_CHARACTERS_MAX]
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except Exception:  # the value cannot be serialized; `_plain` later converts it to a string
        return value
    return value if len(text) <= MESSAGE_CHARACTERS_MAX else text[:MESSAGE_CHARACTERS_MAX]


def _plain(value: object) -> str | int | bool | None:
    """Return the value if it is a JSON scalar, otherwise a string that represents it."""
    if value is None or isinstance(value, str | int):
        return value
    try:
        return repr(value)[:MESSAGE_CHARACTERS_MAX]
    except Exception:
        return f"<{type(value).__name__}>"


class LineBudget:
    """Allows `lines` lines per window and counts suppressed lines. Pure: `now` is in seconds of any clock."""

    def __init__(self, lines: int = BUDGET_LINES, window_s: float = BUDGET_WINDOW_S) -> None:
        self._lines = lines
        self._window_s = window_s
        self._opened_at = float("-inf")
        self._spent = 0

    def spend(self, now: float) -> tuple[bool, int]:
        """Return True if one more line may be written, and a number of suppressed lines.

        For the first line of a window, this is the number of lines suppressed in the previous window. Otherwise it is
        0.
        """
        left_out = 0
        if now - self._opened_at >= self._window_s:
            left_out = max(0, self._spent - self._lines)
            self._opened_at, self._spent = now, 0
        self._spent += 1
        return self._spent <= self._lines, left_out


class PartsBudget(logging.Filter):
    """Limits the lines of the project's own libraries, such as the consumer. Lines of the worker and of handlers pass.

    Each logger has a separate budget per level, so many lines about rebalances never hide an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._budgets: dict[tuple[str, int], LineBudget] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line may pass. The first line after suppressed lines gets a field with their number."""
        if not record.name.startswith("fleet_consumer.") or record.name in OWN_LOGGERS:
            return True
        key = (record.name, record.levelno)
        budget = self._budgets.setdefault(key, LineBudget(PARTS_BUDGET_LINES, PARTS_BUDGET_WINDOW_S))
        allowed, left_out = budget.spend(record.created)
        if left_out:
            record.fields = {**getattr(record, "fields", {}), "linesLeftOut": left_out}
        return allowed


class TextFormatter(LineFormatter):
    """Formats a log record as plain text. A traceback follows on separate lines. `process` is a name that distinguishes
    the lines of several processes on one terminal."""

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
    """Keeps the project's loggers working after an application has configured logging.

    By default, `logging.config` disables all existing loggers and removes the handlers of the root logger.
    """

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None
        self._level = logging.NOTSET

    def attach(self, handler: logging.Handler, level: int) -> None:
        self._handler, self._level = handler, level

    def keep(self) -> None:
        """Restore the project's loggers. Called after application code that may have configured logging."""
        if self._handler is None:
            return
        for name in list(logging.root.manager.loggerDict):
            if name in (OUR_LOGGERS, "py.warnings") or name.startswith(f"{OUR_LOGGERS}."):
                logging.getLogger(name).disabled = False
        ours = logging.getLogger(OUR_LOGGERS)
        if self._handler not in logging.getLogger().handlers and self._handler not in ours.handlers:
            ours.addHandler(self._handler)
            ours.setLevel(self._level)
            ours.propagate = False  # if the application's handler printed a line, it would be logged again

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
    """Send log lines to standard error inside the context. With the format Json, printed lines are logged as well."""
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
