"""Runs a worker's sessions, one after the other, until the worker stops.

After an error that ends a session, the next session starts in the same process after a wait. If the process exited
instead, the pod would be restarted repeatedly, which would hide the reason.
"""

import logging
from typing import Final

from fleet_consumer.group.errors import FencedInstance
from fleet_consumer.group.timing import Backoff
from fleet_consumer.worker.lifecycle.termination import NOT_DRAINED, Signals, end_process
from fleet_consumer.worker.logs import about, fields
from fleet_consumer.worker.member import WorkerState, reason_of, record_end
from fleet_consumer.worker.session import CLOSE_TIMEOUT_S, WorkerContext, open_session

LOG = logging.getLogger("fleet_consumer.worker")

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
"""Longest wait in seconds after a session that ended with an error: 1, 2, 4 … 30 s. The worker's partitions make no
progress during the wait."""

FENCED_FIRST_S: Final = 5.0
FENCED_MAX_S: Final = 300.0
"""Longest wait in seconds (5 min) after a member was fenced. When this member joins again, it fences the other member.
The wait limits how often two members with the same instance id disturb the group."""


class Supervisor:
    """Runs the sessions on the main thread, and stores the current one in `state.session`. Any thread may call
    `end`."""

    def __init__(self, worker: WorkerContext, state: WorkerState, signals: Signals) -> None:
        self._worker = worker
        self._state = state
        self._signals = signals
        self._clock = worker.clock
        self._stop = worker.stop
        self._gives_up = False

    def run(self) -> None:
        backoff = SessionBackoff()
        while not self._stop.is_set():
            began = self._clock.monotonic()
            try:
                self._live_session()
            except Exception as error:
                # Continue after any error. A new session starts at the committed offsets, so records may be repeated,
                # but none is lost.
                if self._state.error is not error:
                    record_end(self._state, error, None, self._clock.wall())
                delay = backoff.after(error, self._clock.monotonic() - began)
                LOG.exception("session ended", extra=fields(reason=reason_of(error), again_in_s=delay))
                self._stop.wait(delay)

    def end(self, within_s: float | None = None, *, gives_up: bool = False) -> None:
        """Stop the loop, so that it drains, and run no further session. Arguments as in `Loop.stop`. Any thread."""
        self._gives_up = self._gives_up or gives_up
        session = self._state.session
        if session is not None:
            session.loop.stop(within_s, gives_up=gives_up)
        self._stop.set()

    def _live_session(self) -> None:
        """Run one session, until the worker stops or a new session is required. Raises errors that end the session."""
        began = self._clock.monotonic()
        session = open_session(self._worker)
        try:
            session.start()
            self._state.session, self._state.error = session, None
            while not self._stop.is_set():
                if not session.step():
                    # Let records in flight finish first. Otherwise the next session would handle them again.
                    session.loop.stop()
                    return
                self._signals.keep()
                if self._state.ended is not None and self._clock.monotonic() - began > BACKOFF_MAX_S:
                    self._state.ended = None
        except Exception as error:
            record_end(self._state, error, self._worker.watch.record, self._clock.wall())
            raise
        finally:
            # An error during the close must neither hide the original error nor keep the process from ending.
            self._state.session = None
            self._worker.watch.record = None
            try:
                session.close(CLOSE_TIMEOUT_S)
            except Exception:
                LOG.exception("closing the session failed; uncommitted records are read again")
            if self._stop.is_set():
                self._end_calls()

    def _end_calls(self) -> None:
        """Cancel the calls that still run after the drain. End the process if they do not stop."""
        executor = self._worker.executor
        if executor is None or not executor.calls():
            return
        executor.cancel()
        left = executor.calls()
        if left and not self._gives_up:
            end_process(NOT_DRAINED, about(left[0].records[0]))


class SessionBackoff:
    """Computes the wait before the next session from the error that ended the previous session. Pure."""

    def __init__(self) -> None:
        self._usual = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S, lambda: 1.0)
        self._fenced = Backoff(FENCED_FIRST_S, FENCED_MAX_S, lambda: 1.0)

    def after(self, error: Exception, lived_s: float) -> float:
        """Return the seconds to wait after a session that ended with `error` after `lived_s` seconds. A session longer
        than the longest wait resets the back-off."""
        fenced = isinstance(error, FencedInstance)
        backoff = self._fenced if fenced else self._usual
        if lived_s > (FENCED_MAX_S if fenced else BACKOFF_MAX_S):
            backoff.reset()
        return backoff.next()
