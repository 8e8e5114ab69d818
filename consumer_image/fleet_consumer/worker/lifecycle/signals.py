"""SIGTERM and SIGINT of a worker's process: they ask for an orderly end, whatever its application installs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

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
