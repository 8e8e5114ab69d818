"""The watchdog: the thread that passes on signals and detects handlers that do not return.

A synchronous handler cannot be cancelled from outside, so nothing here tries. It is *seen*: past its time-out the
worker names the record, and past the group's poll interval, when the membership is gone anyway, the process ends so
that a fresh one can take its place.

The loop only stores the record it is about to handle (one attribute, no clock, no lock), and executors show their
calls. A thread of its own looks every quarter of a second and measures how long the same object has been there.

No error ends that thread: a worker without it would neither hear SIGTERM nor see a handler hang.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from fleet_consumer.clock import Clock
from fleet_consumer.handlers.call import HandlerCall
from fleet_consumer.record import Record
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

Duty = Callable[[float], object]
"""One task of a periodic thread, called with `now` (monotonic seconds)."""

LOOK_INTERVAL_S: Final = 0.25
"""Interval of the watchdog's looks; bounds the precision of time-outs, and the delay of an ordered stop."""

CLOSE_WAIT_S: Final = 5.0
"""Longest wait for a thread that is to end: it may be blocked in a write to a pipe that nobody reads."""

IN_HAND_S: Final = 1.0
IN_HAND_MAX: Final = 100
"""Records in hand are shown that a handler has had for so long, and no more than so many."""

STACK_FRAMES_MAX: Final = 5
"""Innermost frames of a hung handler that are logged: enough to see which call it waits in."""


@dataclass(slots=True, eq=False)
class Watch:
    """State shared by the consume loop and the watchdog.

    `record` is written by the loop: the record that its handler has, None between batches. `due` is raised by the
    watchdog once a second, and lowered by the loop, as the sign to look after what cannot wait for the batch's end.
    """

    record: Record | None = None
    due: bool = False


class Held(NamedTuple):
    """A record that a handler has; `call` is the same object for as long as the same call has it."""

    record: Record
    call: object
    thread: int | None


@dataclass(frozen=True, slots=True)
class Hang:
    """A handler that is past its time-out with this record."""

    record: Record
    thread: int | None
    seconds: float
    over: bool
    """True once the poll interval is over as well."""


class InHand(NamedTuple):
    """A record that a handler has had for so many seconds; of a batch the first."""

    record: Record
    seconds: float


class HangDetector:
    """Decides, from what is seen at some times, which handlers hang. Pure: `now` is monotonic seconds.

    This is the progress watchdog of each partition as well: where polls do not wait for handlers, the membership
    proves nothing, but a partition can stand still only because the call with its first unfinished record does, or
    because its writes do not come through, which `writing` watches.
    """

    def __init__(self, *, timeout_s: float, limit_s: float) -> None:
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        # By identity of the call; the call itself is kept, so that its identity is not given to another.
        self._seen: dict[int, tuple[Held, float]] = {}

    def in_hand(self, now: float) -> list[InHand]:
        """The records of the last look that have been in hand for a while, the oldest first."""
        found = [InHand(held.record, now - since) for held, since in self._seen.values() if now - since >= IN_HAND_S]
        return sorted(found, key=lambda each: -each.seconds)[:IN_HAND_MAX]

    def look(self, held: Sequence[Held], now: float) -> list[Hang]:
        """The hangs: records that their handlers have had for too long."""
        before, self._seen = self._seen, {}
        hangs = []
        for each in held:
            _, since = self._seen[id(each.call)] = before.get(id(each.call), (each, now))
            if now - since >= self._timeout_s:
                hangs.append(Hang(each.record, each.thread, now - since, now - since >= self._limit_s))
        return hangs


class PeriodicThread:
    """A thread that carries out its duties four times a second, in order, each guarded by itself: an error is logged
    once for each duty and class, and the next duty follows. Making one starts nothing."""

    def __init__(self, name: str, duties: Sequence[Duty], clock: Clock) -> None:
        self._name = name
        self._duties = tuple(duties)
        self._clock = clock
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged = set[tuple[Duty, type[BaseException]]]()
        self.beat_at: float | None = None
        """Start of the last round (monotonic seconds), None before `start`. Any thread."""

    def start(self) -> None:
        self.beat_at = self._clock.monotonic()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; one whose duty does not return is left behind. Idempotent."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)
            self._thread = None

    def _run(self) -> None:
        while not self._closed.wait(LOOK_INTERVAL_S):
            now = self.beat_at = self._clock.monotonic()
            for duty in self._duties:
                try:
                    duty(now)
                except BaseException as error:  # whatever it is, the other duties are carried out
                    self._log(duty, error)

    def _log(self, duty: Duty, error: BaseException) -> None:
        if (duty, type(error)) not in self._logged:
            self._logged.add((duty, type(error)))
            with suppress(Exception):  # a broken log is no reason to stop either
                name = getattr(duty, "__qualname__", repr(duty))
                LOG.error(
                    "unexpected error in a periodic thread, which goes on; it is logged once",
                    extra=fields(thread=self._name, duty=name),
                    exc_info=error,
                )


class Watchdog(PeriodicThread):
    """The thread that looks. `watched` is the identifier of the consume loop's thread, set before the start.

    `calls()` returns the calls outside of the consume loop. `duties` are carried out at every look, before the hangs
    are: `on_hang(hang, stack)` once for each record that hangs, and once more when the hang is over the limit: the
    owner ends the process then.
    """

    def __init__(
        self,
        watch: Watch,
        detector: HangDetector,
        *,
        calls: Callable[[], Sequence[HandlerCall]],
        clock: Clock,
        duties: Sequence[Duty],
        on_hang: Callable[[Hang, str], None],
    ) -> None:
        super().__init__("watchdog", [*duties, self._remind, self._look_for_hangs], clock)
        self._watch = watch
        self._detector = detector
        self._calls = calls
        self._on_hang = on_hang
        self.watched: int | None = None
        self._reported: list[tuple[Record, bool]] = []
        self._reminded_at = 0.0
        self.hangs: tuple[Hang, ...] = ()
        self.in_hand: tuple[InHand, ...] = ()

    def _remind(self, now: float) -> None:
        """Have the loop look after what cannot wait, once a second."""
        if now - self._reminded_at >= 1.0:
            self._watch.due, self._reminded_at = True, now

    def _look_for_hangs(self, now: float) -> None:
        hangs = self._detector.look(self._held(), now)
        self.hangs = tuple(hangs)
        self.in_hand = tuple(self._detector.in_hand(now))
        self._reported = [each for each in self._reported if any(each[0] is hang.record for hang in hangs)]
        for hang in hangs:
            if not any(record is hang.record and over == hang.over for record, over in self._reported):
                self._on_hang(hang, stack_of(hang.thread))
                self._reported.append((hang.record, hang.over))

    def _held(self) -> list[Held]:
        held = []
        record = self._watch.record
        if record is not None:
            held.append(Held(record, record, self.watched))
        for call in self._calls():
            records = call.records
            held.append(Held(records[0], records, call.thread))
        return held


class SetupHangs(Exception):
    """The handler's `setup` does not return."""

    reason = "HandlerSetupHangs"


class SetupWatch:
    """The handler's `setup` while it runs; it has the limits of every other call of the handler.

    `running` is for the thread that waits for `setup`, `look` for the watchdog. Times are in seconds.
    """

    def __init__(self, spec: str, *, timeout_s: float, limit_s: float, clock: Clock) -> None:
        self._spec = spec
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        self._clock = clock
        self._began: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """One call of `setup`, until the end of the block."""
        self._began = self._clock.monotonic()
        try:
            yield
        finally:
            self._began = None

    def look(self, now: float) -> tuple[SetupHangs | None, bool]:
        """The error of a `setup` that has been running for too long, and whether the process should end for it."""
        began = self._began
        if began is None or now - began < min(self._timeout_s, self._limit_s):
            return None, False
        return SetupHangs(
            f"setup of handler {self._spec!r} has not returned after {now - began:.0f} s. Give what it waits for "
            f"time-outs of its own, or raise consumer.maxPollIntervalSeconds ({self._limit_s:g} s), after which the "
            "process ends and is started again"
        ), now - began >= self._limit_s


def stack_of(thread_id: int | None) -> str:
    """The innermost frames of a thread, in one line."""
    frame = sys._current_frames().get(thread_id or 0)
    if frame is None:
        return "(the handler's thread is gone)"
    places = traceback.extract_stack(frame)[-STACK_FRAMES_MAX:]
    return " < ".join(f"{place.name} ({place.filename}:{place.lineno})" for place in reversed(places))
