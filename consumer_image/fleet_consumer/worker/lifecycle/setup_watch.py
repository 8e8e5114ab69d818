"""The handler's `setup` while it runs: how long it has been running, and when that is too long.

It has the limits of every other call of the handler: past `handler.timeoutSeconds` it is reported, and past
`consumer.maxPollIntervalSeconds` the process ends, so that a fresh one can try.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fleet_consumer.clock import Clock


class SetupHangs(Exception):
    """The handler's `setup` does not return."""

    reason = "HandlerSetupHangs"


class SetupWatch:
    """`running` is for the thread that waits for `setup`, `look` for the watchdog. Times are in seconds."""

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

    @property
    def is_running(self) -> bool:
        return self._began is not None
