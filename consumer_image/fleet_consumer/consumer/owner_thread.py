"""A thread that runs jobs for tasks of an event loop, one after the other.

A job may call back into the event loop and wait there (`wait_for`). Meanwhile the thread runs the jobs that are allowed
inside such a callback; otherwise a callback that awaits one would deadlock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet_consumer.group.errors import ConcurrentUse, ConsumerClosed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    run: Callable[[], Any]
    future: asyncio.Future[Any]
    interruptible: bool
    in_callbacks: bool
    last: bool


class OwnerThread:
    """The thread starts with the first call and ends with the one that is `last`. Belongs to one event loop.

    `interrupt` makes an interruptible job that runs now, or the next one, come to its end soon.
    """

    def __init__(self, name: str, interrupt: Callable[[], None]) -> None:
        self._name = name
        self._interrupt = interrupt
        self._loop: asyncio.AbstractEventLoop | None = None
        # Guards the jobs and the end, and is notified when there is a job, or a callback has returned.
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._interruptible = False
        self._ended = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop whose tasks call."""
        assert self._loop is not None, "a callback before the first call"
        return self._loop

    def call(
        self, job: Callable[[], T], *, interruptible: bool = False, in_callbacks: bool = True, last: bool = False
    ) -> asyncio.Future[T]:
        """Queue a job, from the event loop's thread. Raises ConsumerClosed after the last one.

        `in_callbacks`: it may run while another job waits for a callback. Cancelling the future does not cancel the
        job.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        elif self._loop is not loop:
            raise ConcurrentUse("this consumer belongs to another event loop")
        future: asyncio.Future[T] = loop.create_future()
        with self._changed:
            if self._ended:
                raise ConsumerClosed("this consumer is closed")
            self._jobs.append(_Job(job, future, interruptible, in_callbacks and not interruptible, last))
            self._changed.notify_all()
            hurry = self._interruptible
        if hurry:
            self._interrupt()
        return future

    def wait_for(self, callback: concurrent.futures.Future[T]) -> T:
        """The result of something that runs on the event loop; only on this thread, inside a job."""
        callback.add_done_callback(self._notify)
        while True:
            with self._changed:
                job = None
                while not callback.done() and (job := self._next(inside=True)) is None:
                    self._changed.wait()
            if job is None:
                return callback.result()
            self._carry_out(job)

    def _notify(self, _done: object) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (job := self._next(inside=False)) is None:
                    self._changed.wait()
                self._interruptible = job.interruptible
                hurry = job.interruptible and bool(self._jobs)
            if hurry:
                self._interrupt()
            self._carry_out(job)
            with self._changed:
                self._interruptible = False
                if job.last:
                    self._ended = True
                    left, self._jobs = self._jobs, deque()
                    break
        for job in left:
            self._settle(job, None, ConsumerClosed("this consumer is closed"))

    def _next(self, *, inside: bool) -> _Job | None:
        for job in self._jobs:
            if job.in_callbacks or not inside:
                self._jobs.remove(job)
                return job
        return None

    def _carry_out(self, job: _Job) -> None:
        try:
            result = job.run()
        except BaseException as error:
            self._settle(job, None, error)
        else:
            self._settle(job, result, None)

    def _settle(self, job: _Job, result: Any, error: BaseException | None) -> None:
        def settle() -> None:
            if job.future.done():
                return
            if error is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(settle)
        except RuntimeError:
            """The event loop was closed: no task waits for this any more."""
