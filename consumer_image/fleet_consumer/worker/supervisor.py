"""A worker's sessions, one after the other, until the worker is to stop.

Some errors end a consumer but need not end the process: a pod that ends is started again at once, and again, and hides
the reason behind restarts. So the next session begins in the same process, after a wait.
"""

from __future__ import annotations

import logging
from typing import Final

from fleet_consumer.group.errors import FencedInstance
from fleet_consumer.group.timing import Backoff
from fleet_consumer.worker.lifecycle.termination import NOT_DRAINED, Signals, end_process
from fleet_consumer.worker.logs import about, fields
from fleet_consumer.worker.member import WorkerState, note_end, reason_of
from fleet_consumer.worker.session import CLOSE_TIMEOUT_S, WorkerContext, open_session

LOG = logging.getLogger("fleet_consumer.worker")

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
"""A session that ended by an error is followed by the next after 1 s, 2 s, 4 s … 30 s: its partitions stand still until
then."""

FENCED_FIRST_S: Final = 5.0
FENCED_MAX_S: Final = 300.0
"""The same for a member that was fenced, up to 5 min: when it comes back it fences the other in turn, so this bounds
how often two of them can disturb the group."""


class Supervisor:
    """Runs on the main thread, except `end`. Shows the running session in `state.session`."""

    def __init__(self, worker: WorkerContext, state: WorkerState, signals: Signals) -> None:
        self._worker = worker
        self._state = state
        self._signals = signals
        self._clock = worker.clock
        self._stop = worker.stop
        self._gives_up = False

    def run(self) -> None:
        """Live session after session until `end`."""
        backoff = SessionBackoff()
        while not self._stop.is_set():
            began = self._clock.monotonic()
            try:
                self._live_session()
            except Exception as error:
                # Whatever it is, a fresh session starts at the committed offsets: records may repeat, none is lost.
                if self._state.error is not error:
                    note_end(self._state, error, None, self._clock.wall())
                delay = backoff.after(error, self._clock.monotonic() - began)
                LOG.exception("session ended", extra=fields(reason=reason_of(error), again_in_s=delay))
                self._stop.wait(delay)

    def end(self, within_s: float | None = None, *, gives_up: bool = False) -> None:
        """Stop the loop before its session is closed, or it will not drain; arguments as in `Loop.stop`. Any thread."""
        self._gives_up = self._gives_up or gives_up
        session = self._state.session
        if session is not None:
            session.loop.stop(within_s, gives_up=gives_up)
        self._stop.set()

    def _live_session(self) -> None:
        """Be a member until the worker is to stop, or until an error that this consumer cannot outlive."""
        began = self._clock.monotonic()
        session = open_session(self._worker)
        try:
            session.start()
            self._state.session, self._state.error = session, None
            while not self._stop.is_set():
                if not session.step():
                    # What is in hand comes to its end first; handed over in the middle it would be handled twice.
                    session.loop.stop()
                    return
                self._signals.keep()
                if self._state.ended is not None and self._clock.monotonic() - began > BACKOFF_MAX_S:
                    self._state.ended = None
        except Exception as error:
            note_end(self._state, error, self._worker.watch.record, self._clock.wall())
            raise
        finally:
            # An error on the way out must not hide the one that led here, nor keep the pod from ending.
            self._state.session = None
            self._worker.watch.record = None
            try:
                session.close(CLOSE_TIMEOUT_S)
            except Exception:
                LOG.exception("closing the session failed; uncommitted records come again")
            if self._stop.is_set():
                self._end_calls()

    def _end_calls(self) -> None:
        """After the drain: whatever is still being handled is cancelled, or ends with the process."""
        executor = self._worker.executor
        if executor is None or not executor.calls():
            return
        executor.cancel()
        left = executor.calls()
        if left and not self._gives_up:
            end_process(NOT_DRAINED, about(left[0].records[0]))


class SessionBackoff:
    """The wait before the next session, by the error that ended the last one. Pure."""

    def __init__(self) -> None:
        self._usual = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S, lambda: 1.0)
        self._fenced = Backoff(FENCED_FIRST_S, FENCED_MAX_S, lambda: 1.0)

    def after(self, error: Exception, lived_s: float) -> float:
        """Seconds to wait after a session that lived so long; one that outlived the longest wait starts afresh."""
        fenced = isinstance(error, FencedInstance)
        backoff = self._fenced if fenced else self._usual
        if lived_s > (FENCED_MAX_S if fenced else BACKOFF_MAX_S):
            backoff.reset()
        return backoff.next()
