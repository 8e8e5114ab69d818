"""Standard output and standard error of a worker as lines of its log: `print` of a handler, warnings, tracebacks."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, TextIO, cast

LINE_CHARACTERS_MAX: Final = 8192
"""A line without an end is logged in pieces of this length."""

UNCAUGHT: Final = logging.getLogger("uncaught")


class PrintedLines:
    """Stands for a text stream; each line that is written becomes a line of the log, by the thread that wrote it.

    A line that is a JSON object already passes as it is: the application has a log format of its own. What the log's
    own output writes to its stream while it reports an error goes to the stream itself.
    """

    def __init__(self, stream: TextIO, name: str, level: int) -> None:
        self._stream = stream
        self._log = logging.getLogger(name)
        self._level = level
        self._own = threading.local()

    def write(self, text: str) -> int:
        """Log the lines that end in `text`; the rest waits for its end."""
        if getattr(self._own, "logging", False):
            return self._stream.write(text)
        *lines, rest = (getattr(self._own, "rest", "") + text).split("\n")
        while len(rest) > LINE_CHARACTERS_MAX:
            lines.append(rest[:LINE_CHARACTERS_MAX])
            rest = rest[LINE_CHARACTERS_MAX:]
        self._own.rest = rest
        for line in lines:
            self._emit(line.rstrip("\r"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Log what waits for the end of its line."""
        rest, self._own.rest = getattr(self._own, "rest", ""), ""
        self._emit(rest)
        self._stream.flush()

    def isatty(self) -> bool:
        """Lines of a log have no colours."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _emit(self, line: str) -> None:
        if not line.strip():
            return
        if _is_object(line):
            self._stream.write(f"{line}\n")
            return
        self._own.logging = True
        try:
            self._log.log(self._level, "%s", line)
        finally:
            self._own.logging = False


def _is_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


@contextmanager
def printed_as_lines() -> Iterator[None]:
    """Have all that is printed logged until the end of the context, and uncaught exceptions as one line each.

    The log itself must write to a stream that it was given before.
    """
    streams, hooks = (sys.stdout, sys.stderr), (sys.excepthook, threading.excepthook)
    sys.stdout = cast("TextIO", PrintedLines(sys.stdout, "stdout", logging.INFO))
    sys.stderr = cast("TextIO", PrintedLines(sys.stderr, "stderr", logging.WARNING))
    sys.excepthook, threading.excepthook = _uncaught, _uncaught_in_thread
    logging.captureWarnings(True)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        logging.captureWarnings(False)
        sys.stdout, sys.stderr = streams
        sys.excepthook, threading.excepthook = hooks


def _uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    UNCAUGHT.error("an exception was not caught", exc_info=(kind, error, traceback))


def _uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_type is SystemExit or found.exc_value is None:
        return
    name = found.thread.name if found.thread is not None else "a thread"
    UNCAUGHT.error("an exception ended %s", name, exc_info=(found.exc_type, found.exc_value, found.exc_traceback))
