"""The watchdog: a thread that reacts to signals and detects handlers that do not return.

A synchronous handler cannot be cancelled from outside. After the handler's timeout, the worker reports the record.
After the poll interval (`max.poll.interval.ms`), the membership is lost, so the process ends and is replaced.

The loop only stores its current record (one attribute, no clock, no lock), and executors list their calls. The watchdog
checks every 0.25 s, and measures for how long it finds the same object. No error ends the thread, because without the
watchdog a worker would notice neither SIGTERM nor a hanging handler.
"""

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
"""A task of a periodic thread. Called with the current time (monotonic seconds)."""

CHECK_INTERVAL_S: Final = 0.25
"""Interval of the watchdog's checks in seconds. Timeouts and signals may be noticed this much late."""

CLOSE_WAIT_S: Final = 5.0
"""Longest wait in seconds for the thread to end. The thread may be blocked by a write to a pipe without a reader."""

IN_HAND_S: Final = 1.0
"""Handling time in seconds after which a record is reported as being handled."""
IN_HAND_MAX: Final = 100
"""Maximum number of records that a report lists as being handled."""

STACK_FRAMES_MAX: Final = 5
"""Number of innermost stack frames of a hung handler to log. They show the call in which the handler waits."""


@dataclass(slots=True, eq=False)
class Watch:
    """State shared by the consume loop and the watchdog.

    The loop sets `record` to the record that is being handled on its thread, or to None between batches. The watchdog
    sets `due` once a second, to request the work that cannot wait for the end of a batch. The loop then clears `due`.
    """

    record: Record | None = None
    due: bool = False


class Held(NamedTuple):
    """A record that is being handled. `call` identifies the handler call by its object identity."""

    record: Record
    call: object
    thread: int | None


@dataclass(frozen=True, slots=True)
class Hang:
    """A handler call that exceeded its timeout with this record."""

    record: Record
    thread: int | None
    seconds: float
    over: bool
    """True if the call has also exceeded the poll interval."""


class InHand(NamedTuple):
    """A record that is being handled, and the seconds since its call began. For a batch, it is the first record."""

    record: Record
    seconds: float


class HangDetector:
    """Detects hanging handlers by comparing successive checks. Pure: `now` is in monotonic seconds.

    A hang also shows that a partition makes no progress. The membership does not show this if polls do not wait for
    handlers, because it then stays valid. A partition is stuck in two cases: the call with its first unfinished record
    hangs, or its writes are not acknowledged. `writing` detects the second case.
    """

    def __init__(self, *, timeout_s: float, limit_s: float) -> None:
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        # Calls by `id`. Each call is kept in its value, because the `id` of a deleted object may be used again.
        self._seen: dict[int, tuple[Held, float]] = {}

    def in_hand(self, now: float) -> list[InHand]:
        """Return the records that had been in a handler for `IN_HAND_S` or longer at the last check, oldest first."""
        found = [InHand(held.record, now - since) for held, since in self._seen.values() if now - since >= IN_HAND_S]
        return sorted(found, key=lambda each: -each.seconds)[:IN_HAND_MAX]

    def detect(self, held: Sequence[Held], now: float) -> list[Hang]:
        before, self._seen = self._seen, {}
        hangs = []
        for each in held:
            _, since = self._seen[id(each.call)] = before.get(id(each.call), (each, now))
            if now - since >= self._timeout_s:
                hangs.append(Hang(each.record, each.thread, now - since, now - since >= self._limit_s))
        return hangs


class PeriodicThread:
    """A thread that runs its duties in order, four times a second. The constructor does not start the thread.

    An error in a duty is logged once per duty and error class, and the next duty runs.
    """

    def __init__(self, name: str, duties: Sequence[Duty], clock: Clock) -> None:
        self._name = name
        self._duties = tuple(duties)
        self._clock = clock
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged = set[tuple[Duty, type[BaseException]]]()
        self.beat_at: float | None = None
        """Start of the last round (monotonic seconds); None before `start`. Any thread may read this value."""

    def start(self) -> None:
        self.beat_at = self._clock.monotonic()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, or abandon it if a duty does not return in time. Idempotent."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)
            self._thread = None

    def _run(self) -> None:
        while not self._closed.wait(CHECK_INTERVAL_S):
            now = self.beat_at = self._clock.monotonic()
            for duty in self._duties:
                try:
                    duty(now)
                except BaseException as error:  # whatever the error is, the other duties must run
                    self._log(duty, error)

    def _log(self, duty: Duty, error: BaseException) -> None:
        if (duty, type(error)) not in self._logged:
            self._logged.add((duty, type(error)))
            with suppress(Exception):  # an error of the log must not stop the thread
                name = getattr(duty, "__qualname__", repr(duty))
                LOG.error(
                    "unexpected error in a periodic thread; the thread continues, and further errors are not logged",
                    extra=fields(thread=self._name, duty=name),
                    exc_info=error,
                )


class Watchdog(PeriodicThread):
    """The watchdog's thread. `watched` is the identifier of the consume loop's thread, and is set before the start.

    `calls()` returns the running calls of executors. At every check, the `duties` run first. `on_hang(hang, stack)` is
    called once for each hanging record, and again when the hang exceeds the limit. The second call should end the
    process.
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
        super().__init__("watchdog", [*duties, self._remind, self._check_for_hangs], clock)
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
        """Request the work that cannot wait for the end of the loop's batch, once a second."""
        if now - self._reminded_at >= 1.0:
            self._watch.due, self._reminded_at = True, now

    def _check_for_hangs(self, now: float) -> None:
        hangs = self._detector.detect(self._held(), now)
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
    """Applies the limits of handler calls, in seconds, to the handler's `setup`. The thread that waits for `setup` uses
    `running`. The watchdog calls `overdue`."""

    def __init__(self, spec: str, *, timeout_s: float, limit_s: float, clock: Clock) -> None:
        self._spec = spec
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        self._clock = clock
        self._began: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        self._began = self._clock.monotonic()
        try:
            yield
        finally:
            self._began = None

    def overdue(self, now: float) -> tuple[SetupHangs | None, bool]:
        """Return the error if `setup` is overdue (otherwise None), and whether this error should end the process."""
        began = self._began
        if began is None or now - began < min(self._timeout_s, self._limit_s):
            return None, False
        return SetupHangs(
            f"setup of handler {self._spec!r} has not returned after {now - began:.0f} s. Give its calls timeouts, or "
            f"raise consumer.maxPollIntervalSeconds ({self._limit_s:g} s): after that time the process is restarted"
        ), now - began >= self._limit_s


def stack_of(thread_id: int | None) -> str:
    """Return the innermost frames of a thread in one line."""
    frame = sys._current_frames().get(thread_id or 0)
    if frame is None:
        return "(the handler's thread has ended)"
    places = traceback.extract_stack(frame)[-STACK_FRAMES_MAX:]
    return " < ".join(f"{place.name} ({place.filename}:{place.lineno})" for place in reversed(places))
