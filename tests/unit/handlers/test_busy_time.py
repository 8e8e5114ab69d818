"""A worker's busy time: what its handlers took, also what they still take, and nothing that is spent on Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.executor import BusyTime, LoopExecutor, ThreadExecutor
from fleet_consumer.handlers.performing import Outputs, Performer, Result
from fleet_consumer.record import Produce, Record
from fleet_consumer.worker.breaker.pacing import Pace
from tests.support.clock import StillClock
from tests.support.waiting import eventually
from tests.unit.retry.policies import policies
from tests.unit.worker.scripted import P0, P1, Bench, values


def test_calls_side_by_side_count_each_and_up_to_the_present() -> None:
    busy = BusyTime()
    assert busy.until(100.0) == 0.0
    busy.call_began(100.0)
    assert busy.until(190.0) == 90.0
    busy.call_began(200.0)
    assert busy.until(201.0) == 102.0
    busy.end(202.0)
    busy.end(210.0)
    assert busy.until(300.0) == 102.0 + 2.0 + 8.0


def test_sum_does_not_fall_when_calls_begin_and_end_behind_the_readers_back() -> None:
    busy = BusyTime()
    busy.call_began(1.0)
    before = busy.until(2.0)
    busy.end(2.5)
    busy.call_began(2.5)
    assert before <= busy.until(2.2) <= busy.until(2.6)


BUDGET = {"maxFailurePercent": 1, "windowSeconds": 60, "minRecords": 1, "action": "Pause", "cooldownSeconds": 30}


class Inline:
    """A loop that handles records itself, by a handler that takes as long as a test says."""

    def __init__(self, *, per_record_s: float = 0.0, logs: int = 10, answer: Any = None, **settings: Any) -> None:
        self.per_record_s = per_record_s
        self.answer = answer
        self.before_end: Callable[[], object] = lambda: None
        self.bench = Bench(self._handle, {P0: values(logs), P1: values(logs)}, **settings)

    def _handle(self, record: Record) -> Any:
        self.bench.clock.now += self.per_record_s
        self.before_end()
        return self.answer

    @property
    def busy(self) -> float:
        return self.bench.stats.busy.until(self.bench.clock.monotonic())


def test_inline_worker_is_busy_while_it_handles_and_not_while_it_polls() -> None:
    inline = Inline(per_record_s=0.25)
    inline.bench.steps(1)
    assert (inline.busy, inline.bench.stats.handled) == (5.0, 20)
    before = inline.bench.clock.now
    inline.bench.steps(50)
    assert inline.bench.clock.now - before > 20, "the loop has waited for records"
    assert inline.busy == 5.0


def test_inline_record_shows_while_it_is_in_hand() -> None:
    inline, seen = Inline(per_record_s=90.0, logs=1), []
    inline.before_end = lambda: seen.append(inline.busy)
    inline.bench.steps(1)
    assert seen == [90.0, 180.0]


def test_wait_for_acknowledgements_is_not_busy() -> None:
    inline = Inline(per_record_s=0.5, logs=2, answer=Produce("out", b"x"))
    inline.bench.producer.silent = True
    inline.bench.steps(20)
    assert inline.bench.stats.ack_wait_seconds > 0.1
    assert inline.busy == 2.0


def test_poll_in_the_middle_of_a_batch_is_not_busy() -> None:
    """The session is unconfirmed for a while: the loop waits, with the rest of the batch in hand."""
    inline = Inline(per_record_s=1.0, logs=3)
    bench = inline.bench

    def remind() -> None:
        bench.watch.due = True
        bench.consumer.session = False
        bench.consumer.script[:] = [lambda: None] * 9 + [lambda: setattr(bench.consumer, "session", True)]

    inline.before_end = remind
    bench.steps(1)
    assert bench.clock.now > StillClock().now + 6 + 6 * 4
    assert (inline.busy, bench.stats.handled) == (6.0, 6)


def test_long_batch_counts_what_is_handled_about_once_a_second() -> None:
    inline, seen = Inline(logs=6), []

    def remind() -> None:
        seen.append(inline.bench.stats.handled)
        inline.bench.watch.due = len(seen) % 2 == 0

    inline.before_end = remind
    inline.bench.steps(1)
    assert seen == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert inline.bench.stats.handled == 12


def test_failures_in_a_batch_with_looks_around_count_once() -> None:
    inline = Inline(logs=6)

    def fail() -> None:
        inline.bench.watch.due = True
        raise ValueError("no")

    inline.before_end = fail
    inline.bench.steps(3)
    assert (inline.bench.stats.done, inline.bench.stats.failed) == (0, 12)


def test_session_that_ends_in_a_batch_leaves_nothing_busy() -> None:
    inline = Inline(per_record_s=1.0)

    def fail() -> None:
        inline.bench.watch.due = True
        inline.bench.consumer.script.append(lambda: 1 / 0)

    inline.before_end = fail
    with pytest.raises(ZeroDivisionError):
        inline.bench.steps(2)
    inline.bench.clock.now += 300
    assert inline.busy == 1.0


def test_open_breaker_is_not_busy() -> None:
    found = policies("5s", budget=BUDGET)
    inline = Inline(per_record_s=0.5, logs=500, policies=lambda: found)

    def fail() -> None:
        raise ValueError("no")

    inline.before_end = fail
    inline.bench.steps(2)
    busy, before = inline.busy, inline.bench.clock.now
    inline.bench.steps(10)
    assert inline.bench.loop.pace is Pace.STOP
    assert (inline.busy, inline.bench.clock.now > before) == (busy, True)


class Piece:
    """A job of one record."""

    unwanted = False

    def __init__(self) -> None:
        self.records = [Record("t", 0, 0, 0, None, None)]
        self.seconds = 0.0
        self.ended = threading.Event()

    def done(self, results: Sequence[Result], seconds: float) -> None:
        self.seconds = seconds
        self.ended.set()


def performer(call: Any) -> Performer:
    return Performer(call, batch=False, decode_key=None, decode_value=None, outputs=Outputs(), timeout_s=None)


def test_threads_are_busy_by_their_share_of_the_slots() -> None:
    clock, release = StillClock(), threading.Event()
    executor = ThreadExecutor(performer(lambda record: release.wait(30) and None), 4, clock)
    executor.start()
    pieces = [Piece() for _ in range(3)]
    try:
        for piece in pieces:
            executor.give(piece)
        eventually(lambda: len(executor.calls()) == 3, timeout_s=30, what="three calls")
        clock.now += 90
        eventually(lambda: executor.work.busy_seconds == 3 * 90 / 4, timeout_s=30, what="three of four slots busy")
        assert executor.work.slots == 4
    finally:
        release.set()
    assert all(piece.ended.wait(30) for piece in pieces)
    clock.now += 1000
    assert executor.work.busy_seconds == 3 * 90 / 4
    executor.close()


def test_calls_of_an_event_loop_each_occupy_a_slot() -> None:
    clock, release, begun = StillClock(), threading.Event(), list[Record]()

    async def handle(record: Record) -> None:
        begun.append(record)
        await asyncio.to_thread(release.wait, 30)

    executor = LoopExecutor(performer(handle), 8, clock)
    executor.start()
    pieces = [Piece() for _ in range(2)]
    try:
        for piece in pieces:
            executor.give(piece)
        eventually(lambda: len(begun) == 2, timeout_s=30, what="two calls under way")
        clock.now += 60
        assert executor.work.busy_seconds == 2 * 60 / 8
    finally:
        release.set()
    assert all(piece.ended.wait(30) for piece in pieces)
    clock.now += 1000
    assert executor.work.busy_seconds == 2 * 60 / 8
    executor.close()


def test_cancelled_call_that_does_not_end_keeps_its_slot_busy() -> None:
    clock, release, began = SystemClock(), threading.Event(), threading.Event()

    async def handle(record: Record) -> None:
        began.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue

    executor = LoopExecutor(performer(handle), 2, clock)
    executor.start()
    executor.give(Piece())
    assert began.wait(30)
    executor.cancel()
    before = executor.work.busy_seconds
    eventually(lambda: executor.work.busy_seconds > before, timeout_s=30, what="the call to count on")
    release.set()
    eventually(lambda: executor.calls() == [], timeout_s=30, what="the end of the call")
    after = executor.work.busy_seconds
    assert executor.work.busy_seconds == after
    executor.close()
