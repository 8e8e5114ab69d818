"""The rule of calling a consumer: one thread at a time, in the process that made it, until it is closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fleet_consumer.consumer.engine import Engine
from fleet_consumer.group import errors


class CallGuard:
    """The entrance of all calls of one consumer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Only its owner can release it, so the state left by an exception in the middle of a call can be mended.
        self.lock = threading.RLock()
        self.thread: int | None = None
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        """True in a fork of the process that made the consumer."""
        return os.getpid() != self._pid

    @contextmanager
    def entered(self, *, closing: bool = False, nested: bool = True) -> Iterator[None]:
        """Be inside a call; one from inside a callback only where `nested` allows it; after the end only `closing`.

        Raises ForkedConsumer, ConcurrentUse, ConsumerClosed, and the fatal error that ended the consumer.
        """
        inside = self.enter(nested=nested)
        try:
            self.check_usable(inside=inside, closing=closing)
            yield
        finally:
            if not inside:
                self.thread = None
                self.lock.release()

    def enter(self, *, nested: bool) -> bool:
        """Become the thread inside; returns whether it was already. The caller must leave as `entered` does."""
        if self.forked:
            raise errors.ForkedConsumer(
                f"group {self._engine.settings.group_id!r}: this consumer was made by process {self._pid}, of which "
                f"this one, {os.getpid()}, is a fork; its threads and connections stayed there: make a new consumer "
                "here"
            )
        me = threading.get_ident()
        inside = self.thread == me
        if inside and not nested:
            raise errors.ConcurrentUse("callbacks may call neither poll, unsubscribe nor close")
        if not inside and not self.lock.acquire(blocking=False):
            raise errors.ConcurrentUse("another thread is inside this consumer; only wakeup may be called meanwhile")
        self.thread = me
        return inside

    def check_usable(self, *, inside: bool, closing: bool = False) -> None:
        """Raise the error that forbids the call; mend what a signal handler's exception left behind in an earlier
        one."""
        if not closing:
            if self.closed and not inside:
                raise errors.ConsumerClosed("this consumer is closed")
            if self._engine.fatal is not None:
                raise self._engine.fatal
        positions = self._engine.positions
        if not inside and positions is not None and positions.unsettled:
            positions.start_over()
