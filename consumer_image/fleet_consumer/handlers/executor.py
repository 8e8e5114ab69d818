"""Executors run handlers outside of the consume loop: in threads, or in one thread with an event loop.

An executor outlives sessions for two reasons. `setup` may have opened connections in its event loop, and a handler that
is still busy after its session must stay visible. The consume loop submits at most `size` jobs at a time. The consume
loop, not the executor, is responsible for offsets and order.
"""

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
"""Seconds that cancelled calls get to run their `finally` blocks."""


class Work(NamedTuple):
    """Busy time in seconds, averaged over the slots, and the number of slots (concurrent calls). While all slots are in
    use, the busy time grows by one second per second."""

    busy_seconds: float
    slots: int


class BusyTime:
    """Sum of the durations of all calls in seconds, including running calls.

    One thread writes, any thread reads. The state is one tuple, which is replaced as a whole. So a concurrent reader
    counts a call that is just ending exactly once. Times are monotonic seconds.
    """

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # The sum up to a time, the number of calls running since then, and this time.
        self._state = 0.0, 0, 0.0

    def call_began(self, at: float) -> None:
        seconds, calls, since = self._state
        self._state = seconds + calls * (at - since), calls + 1, at

    def end(self, at: float) -> None:
        """Count the end of a call; ignored if no call is running."""
        seconds, calls, since = self._state
        self._state = seconds + calls * (at - since), max(0, calls - 1), at

    def until(self, now: float) -> float:
        """Return the sum at `now`. The sum never decreases if `now` is read before this call."""
        seconds, calls, since = self._state
        return seconds + calls * max(0.0, now - since)


class Job(Protocol):
    """The records of one handler call."""

    @property
    def records(self) -> list[Record]:
        """The records. The handler may modify them."""

    @property
    def unwanted(self) -> bool:
        """True once another worker may have the records; the call must then not begin. Any thread may read this
        property."""

    def done(self, results: Sequence[Result], seconds: float) -> None:
        """Called by the executor after the call, on one of its threads: `results` has one result for each record, and
        the call's duration is in seconds."""


class Executor(ABC):
    """Runs at most `size` jobs at a time, in `threads` threads. A call occupies a slot until it returns. So its
    duration is measured until then, even if its session or its timeout ended earlier."""

    def __init__(self, performer: Performer, size: int, clock: Clock, *, threads: int = 1) -> None:
        self._performer = performer
        self._clock = clock
        self._pid = os.getpid()
        self._busy = [BusyTime() for _ in range(threads)]
        self.size = size

    @property
    def work(self) -> Work:
        """Busy time up to now, and the number of slots. May be called on any thread."""
        now = self._clock.monotonic()
        return Work(sum(each.until(now) for each in self._busy) / self.size, self.size)

    @abstractmethod
    def start(self) -> None:
        """Start the threads."""

    @abstractmethod
    def give(self, job: Job) -> None:
        """Submit a job without blocking."""

    @abstractmethod
    def calls(self) -> list[HandlerCall]:
        """Return the running calls. May be called on any thread."""

    @abstractmethod
    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        """Run `setup` or `teardown`, wait for its end, and raise its error."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the calls that can be cancelled. Their records get no result."""

    @abstractmethod
    def close(self) -> None:
        """Stop the threads, without waiting for hanging jobs."""


def _call_of(job: Job) -> HandlerCall:
    return HandlerCall(job.records, threading.get_ident(), unwanted=lambda: job.unwanted)


class ThreadExecutor(Executor):
    """Executor with threads, for synchronous handlers."""

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
        """Does nothing, because threads cannot be cancelled."""

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self, number: int) -> None:
        busy = self._busy[number]
        while (job := self._jobs.get()) is not None:
            call = _call_of(job)
            began, count = self._clock.monotonic(), len(job.records)
            self._calls[number] = call
            busy.call_began(began)
            CURRENT_CALL.set(call)
            try:
                check_wanted()  # the job may have waited for a hanging call of an earlier session
                results = self._performer.perform(job.records)
                end_forked_child(self._pid)
            except BaseException as error:  # otherwise the thread would die and lose its job
                end_forked_child(self._pid, error)
                results = [Result(error=error)] * count
            CURRENT_CALL.set(None)
            ended = self._clock.monotonic()
            busy.end(ended)
            self._calls.pop(number)
            job.done(results, ended - began)


class LoopExecutor(Executor):
    """Executor with one thread and an event loop, for asynchronous handlers with up to `size` concurrent calls.
    Asynchronous hooks run in the same event loop, so that the handler can use connections that `setup` opened."""

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
        # If a handler blocks the event loop, this daemon thread does not end. The watchdog has already reported the
        # handler.
        self._thread.join(CANCEL_WAIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException:
                # SystemExit in a background task of the application ends `run_forever`.
                LOG.exception("the application's code tried to end the handler's event loop; the event loop continues")
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
        busy.call_began(began)
        CURRENT_CALL.set(call)
        try:
            check_wanted()
            results = await self._performer.perform_async(job.records)
            end_forked_child(self._pid)
        except BaseException as error:
            end_forked_child(self._pid, error)
            # Unless `cancel` ended the call, report its end: its order key is blocked until its results are reported.
            if call.ended:
                raise
            results = [Result(error=error)] * count
        finally:
            ended = self._clock.monotonic()
            busy.end(ended)
            # The call is removed before its results are reported, so that the number of calls is exact when the results
            # arrive.
            del self._calls[call]
        job.done(results, ended - began)
