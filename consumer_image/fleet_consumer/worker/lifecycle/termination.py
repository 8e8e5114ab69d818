"""Ends of a worker: signals that ask for one in order, forced exit, and the termination message, also ahead of time.

A process that runs out of memory or crashes in native code writes nothing at its end. So the message is written while
it lives: by the watchdog for a record that takes long, and before each call of the handler in a container that was
started again after a death, because the record that killed one process soon kills the next.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from fleet_consumer.clock import Clock
from fleet_consumer.handlers.loading import Handler
from fleet_consumer.record import Record
from fleet_consumer.worker.logs import fields, place_of

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
DEFAULTS: Final = (signal.SIG_DFL, signal.default_int_handler)
LISTENED: Final = threading.Event()
"""Set once a worker of this process listens to signals, and for good."""


def end_before_work(_number: int, _frame: FrameType | None) -> None:
    """End the process at once with code 0 while no worker listens: there is nothing to drain yet. Later do nothing.

    A process installs it before it imports the application's code, whose own handlers may call the one that they
    have replaced: this one.
    """
    if not LISTENED.is_set():
        os._exit(0)


class Signals:
    """`keep` and `release_in_child` belong to the main thread; `asked` and `report` to the watchdog.

    Libraries install handlers for these signals when they are imported, set up or first used. A worker that no longer
    hears SIGTERM would be killed in the middle of its records at the end of its grace period.
    """

    def __init__(self) -> None:
        self.asked = False
        self._installed = False
        self._chained: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._calling = set[int]()
        self._reported = set[int]()
        self._raised: list[tuple[int, BaseException]] = []

    def keep(self) -> None:
        """Install our handler where it is not; one of the application's is called after it from now on. Logged once."""
        for number in STOPS:
            found = signal.getsignal(number)
            if found == self._on_signal:
                continue
            signal.signal(number, self._on_signal)
            chained = callable(found) and found not in (*DEFAULTS, end_before_work)
            if callable(found) and chained:
                self._chained[number] = found
            if (chained or self._installed) and number not in self._reported:
                self._reported.add(number)
                LOG.warning(
                    "the handler's code has replaced a signal handler of the worker, which is put back: the signal "
                    "asks for an orderly end",
                    extra=fields(signal=number.name, replaced=repr(found), called_after=chained),
                )
        self._installed = True
        LISTENED.set()

    def release_in_child(self) -> None:
        """A forked child ends by these signals as any process does, or as the application wants it."""
        for number in STOPS:
            if signal.getsignal(number) == self._on_signal:
                default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
                signal.signal(number, self._chained.get(number, default))

    def report(self) -> None:
        """Log what handlers of the application raised; not done where it is raised, in the middle of anything."""
        while self._raised:
            number, error = self._raised.pop(0)
            LOG.error(
                "the application's signal handler raised an error, which changes nothing",
                extra=fields(signal=signal.Signals(number).name, error=repr(error)),
            )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Runs between two bytecodes of the main thread, which may hold any lock: it only leaves a note.
        self.asked = True
        chained = self._chained.get(number)
        if chained is None or number in self._calling:
            return  # a polite handler calls the one it has replaced: ours
        self._calling.add(number)
        try:
            chained(number, frame)
        except BaseException as error:  # such handlers like to end with SystemExit, and a record is in hand
            self._raised.append((number, error))
        finally:
            self._calling.discard(number)


LOG = logging.getLogger("fleet_consumer.worker")

EXIT_HUNG: Final = 75
"""A handler hung, past the poll interval or past the drain time, or the worker itself on its way to the end."""

OVER_THE_LIMIT: Final = "the handler did not answer within the poll interval; the membership is given up"
SETUP_OVER_THE_LIMIT: Final = "the handler's setup did not return within the poll interval"
NOT_DRAINED: Final = "the handler did not end within the drain time"
NOT_CLOSED: Final = "the worker did not end within the time to drain and close"

TERMINATION_LOG: Final = Path("/dev/termination-log")

ALIVE_MARKER: Final = Path("/tmp/.consumer-fleet-alive")
"""A file that outlives the container but not its pod: a process that finds it at its start follows one that died."""

SUSPICION_S: Final = 600.0
"""Every call is noted for so long after a death; later the record that killed is not among those that are read."""

EXIT_PATIENCE_S: Final = 10.0
"""Time that a process whose work is done leaves to the application's threads and exit functions."""

NAMED_MAX: Final = 4
"""Number of records in hand that are named; the message may have 4 KiB."""

REASON: Final = "ProcessDied"


def end_process(why: str, details: Mapping[str, object], reason: str = "HandlerTimeout") -> NoReturn:
    """End the process although a thread of it hangs; its records in hand are not committed, so nothing is lost."""
    try:
        LOG.critical(why, extra=fields(**details))
        named = {key: details.get(f"read{key.title()}", details.get(key)) for key in ("topic", "partition", "offset")}
        records = [named] if named["topic"] is not None else []
        message = {"ok": False, "reason": reason, "message": f"{why}: {details}", "records": records}
        write_termination(json.dumps(message))
        sys.stderr.flush()
    finally:  # also where nothing can be written, such as on a full disk
        os._exit(EXIT_HUNG)


def bound_exit(code: int, patience_s: float = EXIT_PATIENCE_S) -> None:
    """Have this process end with `code` in time, now that its work is done.

    The interpreter waits for every thread that is no daemon and calls what was registered for the exit: both are code
    of the application, and may take for ever.
    """

    def end() -> None:
        time.sleep(patience_s)
        try:
            kept = [each.name for each in threading.enumerate() if not each.daemon and each.is_alive()]
            LOG.warning("the application keeps the process from its end, which is forced", extra=fields(threads=kept))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    threading.Thread(target=end, name="exit", daemon=True).start()


def report_result(result: Mapping[str, object]) -> None:
    """Print a command's result as the last line of standard output, and leave it as the termination message."""
    text = json.dumps(result, ensure_ascii=False)
    print(text, flush=True)
    write_termination(text)


def write_termination(text: str, path: Path = TERMINATION_LOG) -> None:
    """Write the termination message for the kubelet; only a container has that file, so it is never created."""
    if path.exists():
        path.write_text(text, encoding="utf-8")


class LastWord:
    """Writes the termination message ahead of time. `open` before the handler is called, `close` at an orderly end.

    Outside of a container there is no such message, and nothing is written. Any thread.
    """

    def __init__(self, clock: Clock, path: Path = TERMINATION_LOG, marker: Path = ALIVE_MARKER) -> None:
        self._clock = clock
        self._path = path
        self._marker = marker
        self._lock = threading.Lock()
        self._file: int | None = None
        self._suspect_until = float("-inf")
        self._in_hand: dict[int, Record] = {}
        self._seen: Record | None = None
        self._written = b""

    def open(self) -> None:
        """Find out whether a process died here before. A container without these files goes on without them."""
        if not self._path.exists():
            return
        try:
            if self._marker.exists():
                self._suspect_until = self._clock.monotonic() + SUSPICION_S
            self._marker.touch()
            self._file = os.open(self._path, os.O_WRONLY)
        except OSError:
            self._file = None

    def close(self) -> None:
        """Clear the message, because the process ends in order. Idempotent."""
        with self._lock:
            if self._file is not None:
                self._write(())
                os.close(self._file)
                self._file = None
                self._marker.unlink(missing_ok=True)

    def look(self, held: Iterable[Record | None]) -> None:
        """Take the records in hand now, several times a second: one is noted once it was seen at two looks."""
        if self._file is None or self._in_hand:
            return
        record = next((each for each in held if each is not None), None)
        with self._lock:
            self._write(() if record is None or record is not self._seen else (record,))
        self._seen = record

    def noting(self, handler: Handler) -> Handler:
        """The handler; where a process died here before, one that notes each record before it is called with it."""
        if self._file is None or self._clock.monotonic() >= self._suspect_until:
            return handler
        call = handler.call

        def noted(argument: Any) -> Any:
            with self._noted(argument):
                return call(argument)

        async def noted_async(argument: Any) -> Any:
            with self._noted(argument):
                return await call(argument)

        return replace(handler, call=noted_async if handler.asynchronous else noted)

    @contextmanager
    def _noted(self, argument: Any) -> Iterator[None]:
        """Name the record of a call in the message until the call is over."""
        record = argument[0] if isinstance(argument, list) and argument else argument
        if not isinstance(record, Record) or self._clock.monotonic() >= self._suspect_until:
            yield
            return
        with self._lock:
            self._in_hand[id(argument)] = record
            self._write(self._in_hand.values())
        try:
            yield
        finally:
            with self._lock:
                self._in_hand.pop(id(argument), None)
                self._write(self._in_hand.values())

    def _write(self, records: Iterable[Record]) -> None:
        """Replace the message; with the lock held. A disk that refuses it must not end the worker."""
        text = last_word(list(records))
        if self._file is None or text == self._written:
            return
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)
        except OSError:
            return
        self._written = text


def last_word(records: list[Record]) -> bytes:
    """The termination message of a process that dies with these records in hand; empty without any."""
    if not records:
        return b""
    named = [place_of(each)._asdict() for each in records[:NAMED_MAX]]
    message = "the process died while its handler was called"
    return json.dumps({"ok": False, "reason": REASON, "message": message, "records": named}).encode()
