"""End of a worker: signals for an orderly stop, forced exit, and the termination message.

A process that runs out of memory or crashes in native code cannot write a message at its end. The termination message
is therefore written in advance. The watchdog writes the message when a record is handled for long. In a container that
was restarted after a crash, the message is written before each handler call. The record that killed one process often
soon kills the next process.

Decisions: docs/decisions/0025-status-and-breakers.md, docs/decisions/0028-setup-and-signals.md.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
"""Set once a worker of this process handles signals, and never cleared."""


def end_before_work(_number: int, _frame: FrameType | None) -> None:
    """Signal handler for the time before a worker handles signals: exit with code 0, because no record is in flight.

    Once a worker handles signals, this function does nothing. It is installed before the application's code is
    imported. A signal handler of the application may call the handler that it replaced, which is this function.
    """
    if not LISTENED.is_set():
        os._exit(0)


class Signals:
    """Signal handlers of the worker. The main thread calls `keep` and `release_in_child`. The watchdog reads `asked`
    and calls `report`.

    Libraries may install handlers for these signals when they are imported, set up or first used. A worker that no
    longer receives SIGTERM would continue to handle records, and be killed at the end of its grace period.
    """

    def __init__(self) -> None:
        self.asked = False
        self._installed = False
        self._chained: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._calling = set[int]()
        self._reported = set[int]()
        self._raised: list[tuple[int, BaseException]] = []

    def keep(self) -> None:
        """Install the worker's handlers, and restore them if they were replaced. A replacement is logged once per
        signal. The application's handler is then called after the worker's handler."""
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
                    "the handler's code replaced a signal handler of the worker; it is restored, because the signal "
                    "requests an orderly stop",
                    extra=fields(signal=number.name, replaced=repr(found), called_after=chained),
                )
        self._installed = True
        LISTENED.set()

    def release_in_child(self) -> None:
        """In a forked child, replace the worker's signal handlers by the application's or by the defaults."""
        for number in STOPS:
            if signal.getsignal(number) == self._on_signal:
                default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
                signal.signal(number, self._chained.get(number, default))

    def report(self) -> None:
        """Log errors of the application's signal handlers. This is not done in `_on_signal`, which may interrupt any
        code."""
        while self._raised:
            number, error = self._raised.pop(0)
            LOG.error(
                "the application's signal handler raised an error, which is ignored",
                extra=fields(signal=signal.Signals(number).name, error=repr(error)),
            )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only sets a flag, because it interrupts the main thread, which may hold any lock.
        self.asked = True
        chained = self._chained.get(number)
        if chained is None or number in self._calling:
            return  # the chained handler calls this handler, which it replaced
        self._calling.add(number)
        try:
            chained(number, frame)
        except BaseException as error:  # often SystemExit, which must not interrupt the handling of a record
            self._raised.append((number, error))
        finally:
            self._calling.discard(number)


LOG = logging.getLogger("fleet_consumer.worker")

EXIT_HUNG: Final = 75
"""Exit code if a handler exceeded the poll interval or the drain timeout, or if the worker did not stop in time."""

OVER_THE_LIMIT: Final = "the handler did not return within the poll interval; the worker leaves the group"
SETUP_OVER_THE_LIMIT: Final = "the handler's setup did not return within the poll interval"
NOT_DRAINED: Final = "the handler did not return within the drain timeout"
NOT_CLOSED: Final = "the worker did not end within the drain and close timeouts"

TERMINATION_LOG: Final = Path("/dev/termination-log")

ALIVE_MARKER: Final = Path("/tmp/.consumer-fleet-alive")
"""A file that remains when the container restarts, until the pod ends. If it exists at the start, the previous process
died."""

RECORD_CALLS_S: Final = 600.0
"""Time in seconds after the restart in which calls are recorded. In this time, the record that killed the previous
process is read again."""

EXIT_PATIENCE_S: Final = 10.0
"""Seconds in which the application's threads and exit functions must end after the work is done."""

NAMED_MAX: Final = 4
"""Maximum number of records in the termination message, which is limited to 4 KiB."""

REASON: Final = "ProcessDied"


def end_process(why: str, details: Mapping[str, object], reason: str = "HandlerTimeout") -> NoReturn:
    """End the process even if a thread hangs. The records being handled are not committed, so no record is lost."""
    try:
        LOG.critical(why, extra=fields(**details))
        named = {key: details.get(f"read{key.title()}", details.get(key)) for key in ("topic", "partition", "offset")}
        records = [named] if named["topic"] is not None else []
        message = {"ok": False, "reason": reason, "message": f"{why}: {details}", "records": records}
        write_termination(json.dumps(message))
        sys.stderr.flush()
    finally:  # exits even if writing fails, for example because the disk is full
        os._exit(EXIT_HUNG)


def bound_exit(code: int, patience_s: float = EXIT_PATIENCE_S) -> None:
    """Ensure that the process exits with `code` within `patience_s` seconds. Call this when the work is done.

    At exit, the interpreter waits for all non-daemon threads and calls exit functions. Both may be code of the
    application that never returns.
    """

    def end() -> None:
        time.sleep(patience_s)
        try:
            kept = [each.name for each in threading.enumerate() if not each.daemon and each.is_alive()]
            LOG.warning("the application prevents the exit; forcing it", extra=fields(threads=kept))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    threading.Thread(target=end, name="exit", daemon=True).start()


def report_result(result: Mapping[str, object]) -> None:
    """Print a command's result as the last line of standard output, and write it as the termination message."""
    text = json.dumps(result, ensure_ascii=False)
    print(text, flush=True)
    write_termination(text)


def write_termination(text: str, path: Path = TERMINATION_LOG) -> None:
    """Write the termination message for the kubelet. Outside a container the file does not exist; it is not created."""
    if path.exists():
        path.write_text(text, encoding="utf-8")


class LastWord:
    """Writes the termination message in advance; does nothing outside a container. Any thread.

    Call `open` before the first handler call, and `close` at an orderly end.
    """

    def __init__(self, clock: Clock, path: Path = TERMINATION_LOG, marker: Path = ALIVE_MARKER) -> None:
        self._clock = clock
        self._path = path
        self._marker = marker
        self._lock = threading.Lock()
        self._file: int | None = None
        self._record_until = float("-inf")
        self._in_hand: dict[int, Record] = {}
        self._seen: Record | None = None
        self._written = b""

    def open(self) -> None:
        """Open the message's file, and check whether the previous process left its marker, which means that it died."""
        if not self._path.exists():
            return
        with suppress(OSError):
            if self._marker.exists():
                self._record_until = self._clock.monotonic() + RECORD_CALLS_S
            self._marker.touch()
            self._file = os.open(self._path, os.O_WRONLY)

    def close(self) -> None:
        """Clear the message and remove the marker, at an orderly end. Idempotent."""
        with self._lock:
            if self._file is not None:
                self._write(())
                os.close(self._file)
                self._file = None
                self._marker.unlink(missing_ok=True)

    def record_held(self, held: Iterable[Record | None]) -> None:
        """Write the first record in `held` if it was also the first at the previous call. None entries are ignored."""
        if self._file is None or self._in_hand:
            return
        record = next((each for each in held if each is not None), None)
        with self._lock:
            self._write(() if record is None or record is not self._seen else (record,))
        self._seen = record

    def recording(self, handler: Handler) -> Handler:
        """Return `handler`; after a crash, return a handler that writes its record to the message before each call."""
        if self._file is None or self._clock.monotonic() >= self._record_until:
            return handler
        call = handler.call

        def recorded(argument: Any) -> Any:
            with self._recorded(argument):
                return call(argument)

        async def recorded_async(argument: Any) -> Any:
            with self._recorded(argument):
                return await call(argument)

        return replace(handler, call=recorded_async if handler.asynchronous else recorded)

    @contextmanager
    def _recorded(self, argument: Any) -> Iterator[None]:
        """Keep the record of a call in the message until the call ends."""
        record = argument[0] if isinstance(argument, list) and argument else argument
        if not isinstance(record, Record) or self._clock.monotonic() >= self._record_until:
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
        """Replace the message. The caller holds the lock. Disk errors are ignored: they must not end the worker."""
        text = last_word(list(records))
        if self._file is None or text == self._written:
            return
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)
            self._written = text


def last_word(records: list[Record]) -> bytes:
    """Return the termination message for a process that dies while it handles these records. Empty without records."""
    if not records:
        return b""
    named = [place_of(each)._asdict() for each in records[:NAMED_MAX]]
    message = "the process died during a handler call"
    return json.dumps({"ok": False, "reason": REASON, "message": message, "records": named}).encode()
