"""Executors run handlers outside of the consume loop: threads, or one thread with an event loop.

An executor belongs to the worker's process and outlives sessions, because `setup` may have opened things in its event
loop, and because a handler that is still busy when a session ends has to stay visible. The consume loop gives it no
more jobs at once than it has calls; what comes back goes to the job. Offsets and order are the loop's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

from fleet_consumer.clock import Clock
from fleet_consumer.handlers.call import CURRENT_CALL, HandlerCall, check_wanted, end_forked_child
from fleet_consumer.handlers.performing import Performer, Result
from fleet_consumer.record import Record

LOG = logging.getLogger("fleet_consumer.worker")

CANCEL_WAIT_S: Final = 2.0
"""Time for cancelled calls to end: enough for their `finally`, not for their work."""


class Work(NamedTuple):
    """The time for which a worker was busy, and the number of its slots: the calls that may be under way at once.

    With calls in all slots all the time it is busy for one second in each second.
    """

    busy_seconds: float
    slots: int


class BusyTime:
    """Seconds that calls took, each counted by itself, with those under way up to the present.

    One thread writes, any thread reads. The state is replaced as a whole, so that a reader never misses a call that
    ends just then, nor counts it twice. Times are monotonic seconds.
    """

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # The seconds up to a time, the calls under way since then, and that time.
        self._state = 0.0, 0, 0.0

    def begin(self, at: float) -> None:
        """A call begins."""
        seconds, calls, since = self._state
        self._state = seconds + calls * (at - since), calls + 1, at

    def end(self, at: float) -> None:
        """A call that began is over; without one under way nothing ends."""
        seconds, calls, since = self._state
        self._state = seconds + calls * (at - since), max(0, calls - 1), at

    def until(self, now: float) -> float:
        """The seconds up to now. Read the clock first, and the sum does not fall."""
        seconds, calls, since = self._state
        return seconds + calls * max(0.0, now - since)


class Job(Protocol):
    """Records for one handler call."""

    @property
    def records(self) -> list[Record]:
        """The handler's own: it may change them."""

    @property
    def unwanted(self) -> bool:
        """True once another worker may have the records: what has not begun must not. Any thread."""

    def done(self, results: Sequence[Result], seconds: float) -> None:
        """One result for each record, and how long the call took. Called from the executor's threads."""


class Executor(ABC):
    """Runs at most `size` jobs at once; `give` returns at once.

    `threads` is the number of its threads that call handlers. Each keeps the time of its calls, also of those whose
    session or time-out is over: they occupy their slot until they end.
    """

    def __init__(self, performer: Performer, size: int, clock: Clock, *, threads: int = 1) -> None:
        self._performer = performer
        self._clock = clock
        self._pid = os.getpid()
        self._busy = [BusyTime() for _ in range(threads)]
        self.size = size

    @property
    def work(self) -> Work:
        """The time for which it was busy, up to the present. Any thread."""
        now = self._clock.monotonic()
        return Work(sum(each.until(now) for each in self._busy) / self.size, self.size)

    @abstractmethod
    def start(self) -> None:
        """Start the threads."""

    @abstractmethod
    def give(self, job: Job) -> None:
        """Have a job run as soon as a call is free."""

    @abstractmethod
    def calls(self) -> list[HandlerCall]:
        """The calls under way. Any thread."""

    @abstractmethod
    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        """Run `setup` or `teardown` and wait; raises what it raises."""

    @abstractmethod
    def cancel(self) -> None:
        """End the calls that can be ended from outside; their records have no result."""

    @abstractmethod
    def close(self) -> None:
        """Let the threads end; a job that does not come to its end is left behind."""


def _call_of(job: Job) -> HandlerCall:
    """The call of this job on the thread that asks."""
    return HandlerCall(job.records, threading.get_ident(), unwanted=lambda: job.unwanted)


class ThreadExecutor(Executor):
    """Threads for synchronous handlers."""

    def __init__(self, performer: Performer, size: int, clock: Clock) -> None:
        super().__init__(performer, size, clock, threads=size)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._calls: dict[int, HandlerCall] = {}
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"handler-{number}", daemon=True)
            for number in range(size)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def give(self, job: Job) -> None:
        self._jobs.put(job)

    def calls(self) -> list[HandlerCall]:
        return list(self._calls.copy().values())

    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        hook(*arguments)

    def cancel(self) -> None:
        """Threads cannot be stopped from outside."""

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self, number: int) -> None:
        busy = self._busy[number]
        while (job := self._jobs.get()) is not None:
            call = _call_of(job)
            began, count = self._clock.monotonic(), len(job.records)
            self._calls[number] = call
            busy.begin(began)
            CURRENT_CALL.set(call)
            try:
                check_wanted()  # it may have waited behind a call that hangs since an earlier session
                results = self._performer.perform(job.records)
                end_forked_child(self._pid)
            except BaseException as error:  # a thread that ends here would take its job with it
                end_forked_child(self._pid, error)
                results = [Result(error=error)] * count
            CURRENT_CALL.set(None)
            ended = self._clock.monotonic()
            busy.end(ended)
            self._calls.pop(number)
            job.done(results, ended - began)


class LoopExecutor(Executor):
    """One thread with an event loop for asynchronous handlers; up to `size` calls are under way at once.

    Asynchronous hooks run in the same event loop, so that what `setup` opens can be used by the handler.
    """

    def __init__(self, performer: Performer, size: int, clock: Clock) -> None:
        super().__init__(performer, size, clock)
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._calls: dict[HandlerCall, asyncio.Task[None]] = {}
        self._thread = threading.Thread(target=self._run, name="handler-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give(self, job: Job) -> None:
        self._loop.call_soon_threadsafe(self._begin, job)

    def calls(self) -> list[HandlerCall]:
        return list(self._calls.copy())

    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        outcome = hook(*arguments)
        if isinstance(outcome, Coroutine):
            asyncio.run_coroutine_threadsafe(outcome, self._loop).result()

    def cancel(self) -> None:
        asked = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
        try:
            asked.result(CANCEL_WAIT_S)
        except TimeoutError:
            LOG.exception("a call blocks the handler's event loop; run blocking code in a thread")

    def close(self) -> None:
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        # A handler that blocks the event loop keeps the thread; it is a daemon, and the watchdog has named it.
        self._thread.join(CANCEL_WAIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException:
                # SystemExit of a background task of the application ends `run_forever`, and with it every later call.
                LOG.exception("the application's code tried to end the handler's event loop, which goes on")
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = list(self._calls.values())
        for call, task in self._calls.items():
            call.ended = True
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_WAIT_S / 2)

    def _begin(self, job: Job) -> None:
        call = _call_of(job)
        self._calls[call] = self._loop.create_task(self._perform(job, call))

    async def _perform(self, job: Job, call: HandlerCall) -> None:
        (busy,) = self._busy
        began, count = self._clock.monotonic(), len(job.records)
        busy.begin(began)
        CURRENT_CALL.set(call)
        try:
            check_wanted()
            results = await self._performer.perform_async(job.records)
            end_forked_child(self._pid)
        except BaseException as error:
            end_forked_child(self._pid, error)
            # Unless `cancel` ended the call, its end must be reported: its order key stands still until then.
            if call.ended:
                raise
            results = [Result(error=error)] * count
        finally:
            ended = self._clock.monotonic()
            busy.end(ended)
            # Removed before the results are reported, so that a count of calls is right from then on.
            del self._calls[call]
        job.done(results, ended - began)
