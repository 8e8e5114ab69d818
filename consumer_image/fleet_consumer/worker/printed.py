"""Standard output and standard error of a worker as lines of its log: `print` of a handler, warnings, tracebacks."""

from __future__ import annotations

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
"""A longer line is logged in pieces of this length."""

OBJECT_CHARACTERS_MAX: Final = 256 * 1024
"""Length up to which a line that begins like an object waits for its end; then it is logged in pieces, too."""

UNCAUGHT: Final = "uncaught"


GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EIO})
"""Errors of a write to a pipe, a socket or a terminal that nobody reads any more."""


class Output(io.FileIO):
    """A standard stream that outlives its reader: what is written afterwards is dropped, and raises nothing.

    So no `print` of a handler fails its record because the pipe of a run in a terminal was closed.
    """

    def write(self, data: Any, /) -> int:
        """Write, or drop it where the reader is gone."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            self._drop()
            return len(data)

    def unread(self) -> bool:
        """Return True once the reader is gone, which is seen without a write where the system has `poll`."""
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
        os.dup2(sink, self.fileno())  # libraries and child processes write to the number
        os.close(sink)


def outlive_readers() -> list[Output]:
    """Replace standard output and standard error by streams that outlive their readers; called before logging."""
    outputs = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue  # closed from the beginning, or replaced by whoever called
        stream.flush()
        output = Output(stream.fileno(), "w", closefd=False)
        buffering = stream.line_buffering
        text = io.TextIOWrapper(io.BufferedWriter(output), stream.encoding, stream.errors, line_buffering=buffering)
        setattr(sys, name, text)
        outputs.append(output)
    return outputs


@dataclass(slots=True)
class _Rest:
    """The beginning of a thread's line, in parts: joining them at each write would be quadratic."""

    parts: list[str] = field(default_factory=list)
    length: int = 0

    def take(self) -> str:
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
    """Stands for a text stream; each line that is written becomes a line of the log, by the thread that wrote it.

    A line that is a JSON object already passes as it is: the application has a log format of its own. What the log's
    own output writes to its stream while it reports an error goes to the stream itself. Lines go to `log` itself and
    not to a logger: `logging.config` of an application disables loggers, and a handler that it gives to the root
    logger may write to this stream.
    """

    def __init__(self, stream: TextIO, name: str, level: int, log: logging.Handler | None) -> None:
        self._stream = stream
        self._name = name
        self._level = level
        self._log = log  # None where the level of the log leaves these lines out
        self._own = threading.local()
        self._waiting: dict[threading.Thread, _Rest] = {}

    def write(self, text: str) -> int:
        """Log the lines that end in `text`; the rest waits for its end."""
        if getattr(self._own, "logging", False):
            return self._stream.write(text)
        rest = self._rest()
        first, *lines = text.split("\n")
        rest.keep(first)
        for line in lines:
            self._emit(rest.take())
            rest.keep(line)
        if rest.is_full:
            waiting = rest.take()
            whole = len(waiting) // LINE_CHARACTERS_MAX * LINE_CHARACTERS_MAX
            self._emit_pieces(waiting[:whole])
            rest.keep(waiting[whole:])
        self._note(rest)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Log what waits for the end of its line."""
        rest = self._rest()
        self._emit(rest.take())
        self._note(rest)
        self._stream.flush()

    def finish(self) -> None:
        """Log what waits in any thread, at the end."""
        while self._waiting:
            _, rest = self._waiting.popitem()
            self._emit(rest.take())
        self._stream.flush()

    def isatty(self) -> bool:
        """Lines of a log have no colours."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _rest(self) -> _Rest:
        rest: _Rest | None = getattr(self._own, "rest", None)
        if rest is None:
            rest = self._own.rest = _Rest()
        return rest

    def _note(self, rest: _Rest) -> None:
        """Remember who waits for the end of a line; the lines of threads that have ended have no other end."""
        thread = threading.current_thread()
        if not rest.length:
            self._waiting.pop(thread, None)
        elif thread not in self._waiting:
            for ended in [each for each in list(self._waiting) if not each.is_alive()]:
                left = self._waiting.pop(ended, None)
                if left is not None:
                    self._emit(left.take())
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
    """Give a line to a handler, past all loggers."""
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
    """Have `log` write what is printed until the end of the context, and uncaught exceptions as one line each.

    Printed lines below the level `bound` are left out. An exception that leaves the context is written by the
    interpreter's hook, if nobody catches it. The handler must write to a stream that it was given before.
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
    put(log, UNCAUGHT, logging.ERROR, "an exception was not caught", (kind, error, traceback))


def _left(log: logging.Handler, left: BaseException, otherwise: ExceptHook, *found: Any) -> None:
    """The hook after an exception has left the context: that one is still a line of the log."""
    if found[1] is left and isinstance(left, Exception):
        _uncaught(log, *found)
    else:
        otherwise(*found)


def _uncaught_in_thread(log: logging.Handler, found: threading.ExceptHookArgs) -> None:
    if found.exc_type is SystemExit or found.exc_value is None:
        return
    name = found.thread.name if found.thread is not None else "a thread"
    error = (found.exc_type, found.exc_value, found.exc_traceback)
    put(log, UNCAUGHT, logging.ERROR, f"an exception ended {name}", error)
