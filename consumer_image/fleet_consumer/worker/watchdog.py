"""Noticing a handler that does not answer.

A synchronous handler cannot be cancelled from outside, so nothing here tries. It is *seen*: past its time-out the
worker names the record, and past the group's poll interval, when the membership is gone anyway, the process ends so
that a fresh one can take its place.

The loop only stores the record it is about to handle (one attribute, no clock, no lock). A thread of its own looks
every quarter of a second and measures how long the same object has been there.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.record import Record

LOOK_INTERVAL_S: Final = 0.25
"""How often the watchdog looks; what bounds the precision of time-outs, and the delay of an ordered stop."""

STACK_FRAMES_MAX: Final = 5
"""Innermost frames of a hung handler that are told: enough to see which call it waits in."""


class Watch:
    """What the consume loop and the watchdog share.

    `record` is written by the loop: the record in its handler's hands, None between batches. `due` is raised by the
    watchdog once a second, and lowered by the loop, as the sign to look after what cannot wait for the batch's end.
    """

    __slots__ = ("due", "record")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.due = False


@dataclass(frozen=True, slots=True)
class Hang:
    """A handler that is past its time-out with this record."""

    record: Record
    seconds: float
    over: bool
    """True once the poll interval is over as well."""


class HangDetector:
    """Decides, from what is seen at some times, that a handler hangs. Pure: `now` is monotonic seconds."""

    def __init__(self, *, timeout_s: float, limit_s: float) -> None:
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        self._seen: Record | None = None
        self._since = 0.0

    def look(self, record: Record | None, now: float) -> Hang | None:
        """Tell whether `record` has been in its handler's hands for too long. It is kept, so its identity is safe."""
        if record is not self._seen:
            self._seen, self._since = record, now
        if record is None or now - self._since < self._timeout_s:
            return None
        return Hang(record, now - self._since, now - self._since >= self._limit_s)


class Watchdog:
    """The thread that looks. Making one starts nothing.

    `on_look(now)` runs at every look; `on_hang(hang, stack)` once for each record that hangs, and once more when the
    hang is over the limit: the owner ends the process then.
    """

    def __init__(
        self,
        watch: Watch,
        detector: HangDetector,
        *,
        clock: Clock,
        on_look: Callable[[float], None],
        on_hang: Callable[[Hang, str], None],
    ) -> None:
        self._watch = watch
        self._detector = detector
        self._clock = clock
        self._on_look = on_look
        self._on_hang = on_hang
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.hang: Hang | None = None

    def start(self, watched: threading.Thread) -> None:
        """Begin to look; `watched` is the thread that runs handlers."""
        self._thread = threading.Thread(target=self._run, args=(watched.ident,), name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking. Idempotent."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, watched: int | None) -> None:
        told: tuple[Record, bool] | None = None
        second = 0.0
        while not self._closed.wait(LOOK_INTERVAL_S):
            now = self._clock.monotonic()
            if now - second >= 1.0:
                self._watch.due, second = True, now
            self._on_look(now)
            self.hang = hang = self._detector.look(self._watch.record, now)
            if hang is not None and (told is None or told[0] is not hang.record or told[1] != hang.over):
                told = (hang.record, hang.over)
                self._on_hang(hang, _stack(watched))


def _stack(thread_id: int | None) -> str:
    frame = sys._current_frames().get(thread_id or 0)
    if frame is None:
        return "(the handler's thread is gone)"
    places = traceback.extract_stack(frame)[-STACK_FRAMES_MAX:]
    return " < ".join(f"{place.name} ({place.filename}:{place.lineno})" for place in reversed(places))
