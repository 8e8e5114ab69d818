"""A thread that runs jobs for an event loop's tasks, one after another, and the handover of records to the tasks.

A job may run a callback on the event loop and wait for its end (`wait_for`). While waiting, the thread runs jobs that
are allowed inside callbacks; otherwise a callback that awaits a job would deadlock.
"""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet_consumer.group.errors import ConcurrentUse, ConsumerClosed
from fleet_consumer.record import Gap, Record, Records, Run, TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    run: Callable[[], Any]
    future: asyncio.Future[Any]
    interruptible: bool
    in_callbacks: bool
    last: bool


class OwnerThread:
    """A thread that starts with the first job and ends after the job marked `last`. Belongs to one event loop.

    `interrupt` must make the current interruptible job end soon. If no interruptible job is running, it must do the
    same for the next one.
    """

    def __init__(self, name: str, interrupt: Callable[[], None]) -> None:
        self._name = name
        self._interrupt = interrupt
        self._loop: asyncio.AbstractEventLoop | None = None
        # Guards the jobs and flags below. Waiters are notified of new jobs and finished callbacks.
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._interruptible = False
        self._ended = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "a callback before the first call"
        return self._loop

    def call(
        self, job: Callable[[], T], *, interruptible: bool = False, in_callbacks: bool = True, last: bool = False
    ) -> asyncio.Future[T]:
        """Queue a job. Must be called on the event loop's thread.

        Cancelling the future does not cancel the job. With `in_callbacks`, the job may run while another job waits for
        a callback. Raises ConsumerClosed after the last job, and ConcurrentUse on another event loop.
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
        """Wait for a callback that runs on the event loop. Only a job on this thread may call this."""
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
            return  # The event loop is closed, so no task waits for the result.


class Handover:
    """Records that no task has taken yet, or the error of the last poll. Thread-safe; no method blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[Run] = deque()
        # Offsets without records. If records of the same partition wait, the gap comes after them. It is taken together
        # with the last of these records, or later.
        self._gaps: dict[TopicPartition, Gap] = {}
        # The number of records that were taken from the first run.
        self._taken = 0
        self._failure: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._runs or self._gaps)

    def put(self, records: Records) -> None:
        with self._lock:
            for run in records.runs:
                self._gaps.pop(run.topic_partition, None)
            self._runs.extend(records.runs)
            self._gaps |= {part: gap.behind(self._gaps.get(part)) for part, gap in records.gaps.items()}

    def fail(self, error: Exception) -> None:
        with self._lock:
            self._failure = error

    def raise_failure(self) -> None:
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def take_records(self, limit: int | None) -> Records:
        """Take at most `limit` records (None: all)."""
        runs: list[Run] = []
        with self._lock:
            room = sum(len(run.records) for run in self._runs) if limit is None else limit
            while room > 0 and self._runs:
                first, start = self._runs[0], self._taken
                piece = first.records[start : start + room]
                room -= len(piece)
                self._advance(len(piece))
                runs.append(first if len(piece) == len(first.records) else Run(first.topic_partition, piece))
            return Records(runs, self._passed())

    def take_one(self) -> Record | None:
        """Take and return the next record, or None if no record is waiting. Gaps are skipped."""
        with self._lock:
            self._passed()
            if not self._runs:
                return None
            record = self._runs[0].records[self._taken]
            self._advance(1)
            return record

    def first_offsets(self) -> dict[TopicPartition, int]:
        with self._lock:
            return self._firsts()

    def drop(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        """Drop the records of these partitions. Returns the first dropped offset of each partition."""
        with self._lock:
            for part in partitions:
                self._gaps.pop(part, None)
            firsts = {part: offset for part, offset in self._firsts().items() if part in partitions}
            if self._runs and self._runs[0].topic_partition in partitions:
                self._taken = 0
            self._runs = deque(run for run in self._runs if run.topic_partition not in partitions)
            return firsts

    def _advance(self, count: int) -> None:
        self._taken += count
        if self._taken == len(self._runs[0].records):
            self._runs.popleft()
            self._taken = 0

    def _passed(self) -> dict[TopicPartition, Gap]:
        """Take and return the gaps of partitions without waiting records."""
        behind = {run.topic_partition for run in self._runs}
        passed = {part: gap for part, gap in self._gaps.items() if part not in behind}
        self._gaps = {part: gap for part, gap in self._gaps.items() if part in behind}
        return passed

    def _firsts(self) -> dict[TopicPartition, int]:
        firsts: dict[TopicPartition, int] = {}
        for number, run in enumerate(self._runs):
            firsts.setdefault(run.topic_partition, run.records[0 if number else self._taken].offset)
        return firsts
