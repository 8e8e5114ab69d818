"""Redirection of standard output and standard error to the log: a handler's `print`, warnings and tracebacks."""

import errno
import io
import json
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, TextIO, cast

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]
ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

LINE_CHARACTERS_MAX: Final = 8192
"""Maximum length of a printed line in characters. A longer line is logged in pieces of this length."""

OBJECT_CHARACTERS_MAX: Final = 256 * 1024
"""Maximum length in characters of an incomplete line that begins with `{`, and so may become a JSON object. A longer
line is logged in pieces."""

UNCAUGHT: Final = "uncaught"


GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EIO})
"""Errors of a write to a pipe, socket or terminal whose reader has closed it."""


class Output(io.FileIO):
    """A standard stream that can be written after its reader has closed it. Such writes are dropped without an error.
    Otherwise a handler's `print` to a closed pipe would fail the record."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            self._drop()
            return len(data)

    def unread(self) -> bool:
        """Return True once the reader has closed the stream. With `select.poll`, this is detected without a write."""
        if not self._dropped and hasattr(select, "poll"):
            found = select.poll()
            found.register(self.fileno(), 0)
            if any(event & select.POLLERR for _, event in found.poll(0)):
                self._drop()
        return self._dropped

    _dropped = False

    def _drop(self) -> None:
        self._dropped = True
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, self.fileno())  # libraries and child processes write to the file descriptor
        os.close(sink)


def outlive_readers() -> list[Output]:
    """Replace standard output and error by `Output` streams. Call this function before logging is configured."""
    outputs = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # it was closed at the start, or the caller replaced it
        stream.flush()
        output = Output(stream.fileno(), "w", closefd=False)
        buffering = stream.line_buffering
        text = io.TextIOWrapper(io.BufferedWriter(output), stream.encoding, stream.errors, line_buffering=buffering)
        setattr(sys, name, text)
        outputs.append(output)
    return outputs


@dataclass(slots=True)
class _Rest:
    """A thread's incomplete line, stored in pieces. Joining the pieces at each write would take quadratic time."""

    parts: list[str] = field(default_factory=list)
    length: int = 0

    def pop_text(self) -> str:
        text = "".join(self.parts)
        self.parts.clear()
        self.length = 0
        return text

    def keep(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.length += len(text)

    @property
    def is_full(self) -> bool:
        looks_like_object = bool(self.parts) and self.parts[0].startswith("{")
        return self.length > (OBJECT_CHARACTERS_MAX if looks_like_object else LINE_CHARACTERS_MAX)


class PrintedLines:
    """Replaces a text stream. Each written line becomes a log line, on the thread that wrote it.

    A line that is a JSON object passes unchanged, because it comes from an application with its own log format. If the
    log handler itself writes to the stream, to report an error, its lines go to the original stream. Lines go directly
    to the handler `log`, without a logger. An application's `logging.config` may disable loggers, and its root handler
    may write to this stream.
    """

    def __init__(self, stream: TextIO, name: str, level: int, log: logging.Handler | None) -> None:
        self._stream = stream
        self._name = name
        self._level = level
        self._log = log  # None if the log level excludes these lines
        self._own = threading.local()
        self._waiting: dict[threading.Thread, _Rest] = {}

    def write(self, text: str) -> int:
        """Log the complete lines in `text`, and keep the incomplete last line."""
        if getattr(self._own, "logging", False):
            return self._stream.write(text)
        rest = self._rest()
        first, *lines = text.split("\n")
        rest.keep(first)
        for line in lines:
            self._emit(rest.pop_text())
            rest.keep(line)
        if rest.is_full:
            waiting = rest.pop_text()
            whole = len(waiting) // LINE_CHARACTERS_MAX * LINE_CHARACTERS_MAX
            self._emit_pieces(waiting[:whole])
            rest.keep(waiting[whole:])
        self._track(rest)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Log the incomplete line of this thread."""
        rest = self._rest()
        self._emit(rest.pop_text())
        self._track(rest)
        self._stream.flush()

    def finish(self) -> None:
        """Log the incomplete lines of all threads."""
        while self._waiting:
            _, rest = self._waiting.popitem()
            self._emit(rest.pop_text())
        self._stream.flush()

    def isatty(self) -> bool:
        """Return False, so that applications write no colour codes."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _rest(self) -> _Rest:
        rest: _Rest | None = getattr(self._own, "rest", None)
        if rest is None:
            rest = self._own.rest = _Rest()
        return rest

    def _track(self, rest: _Rest) -> None:
        """Update the list of threads with an incomplete line. Logs the incomplete lines of threads that have ended."""
        thread = threading.current_thread()
        if not rest.length:
            self._waiting.pop(thread, None)
        elif thread not in self._waiting:
            for ended in [each for each in list(self._waiting) if not each.is_alive()]:
                left = self._waiting.pop(ended, None)
                if left is not None:
                    self._emit(left.pop_text())
            self._waiting[thread] = rest

    def _emit(self, line: str) -> None:
        line = line.rstrip("\r")
        if not line.strip():
            return
        if _is_object(line):
            self._stream.write(f"{line}\n")
        else:
            self._emit_pieces(line)

    def _emit_pieces(self, line: str) -> None:
        if self._log is None:
            return
        self._own.logging = True
        try:
            for begin in range(0, len(line), LINE_CHARACTERS_MAX):
                put(self._log, self._name, self._level, line[begin : begin + LINE_CHARACTERS_MAX])
        finally:
            self._own.logging = False


def put(log: logging.Handler, name: str, level: int, message: str, error: ExceptionInfo | None = None) -> None:
    """Pass a line directly to the handler `log`, without a logger."""
    log.handle(logging.LogRecord(name, level, "", 0, message, None, error))


def _is_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


@contextmanager
def printed_as_lines(log: logging.Handler, bound: int) -> Iterator[None]:
    """Inside the context, log printed lines and uncaught exceptions with `log`, each as one line.

    Printed lines below the level `bound` are dropped. An exception that leaves the context and is not caught later is
    logged by `sys.excepthook`. `log` must write to a stream that was opened before the context.
    """
    streams, hooks = (sys.stdout, sys.stderr), (sys.excepthook, threading.excepthook)
    out, err = (
        PrintedLines(stream, name, level, log if level >= bound else None)
        for stream, name, level in ((sys.stdout, "stdout", logging.INFO), (sys.stderr, "stderr", logging.WARNING))
    )
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    sys.excepthook, threading.excepthook = partial(_uncaught, log), partial(_uncaught_in_thread, log)
    logging.captureWarnings(True)
    try:
        yield
    except BaseException as error:
        hooks = partial(_left, log, error, hooks[0]), hooks[1]
        raise
    finally:
        out.finish()
        err.finish()
        logging.captureWarnings(False)
        sys.stdout, sys.stderr = streams
        sys.excepthook, threading.excepthook = hooks


def _uncaught(
    log: logging.Handler, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    put(log, UNCAUGHT, logging.ERROR, "uncaught exception", (kind, error, traceback))


def _left(log: logging.Handler, left: BaseException, otherwise: ExceptHook, *found: Any) -> None:
    """`sys.excepthook` after the context. Logs the exception that left the context as one line, and passes all
    others to `otherwise`."""
    if found[1] is left and isinstance(left, Exception):
        _uncaught(log, *found)
    else:
        otherwise(*found)


def _uncaught_in_thread(log: logging.Handler, found: threading.ExceptHookArgs) -> None:
    if found.exc_type is SystemExit or found.exc_value is None:
        return
    name = found.thread.name if found.thread is not None else "a thread"
    error = (found.exc_type, found.exc_value, found.exc_traceback)
    put(log, UNCAUGHT, logging.ERROR, f"uncaught exception in {name}", error)
