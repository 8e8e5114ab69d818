"""Executors of handlers: threads and an event loop run their calls, show them, and can be ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.call import CURRENT_CALL
from fleet_consumer.handlers.executor import Executor, LoopExecutor, ThreadExecutor
from fleet_consumer.handlers.performing import Outputs, Performer, Result
from fleet_consumer.record import Record
from fleet_consumer.retry.failure import TimedOut
from tests.support.waiting import eventually


class Piece:
    """A job of one record that remembers how it ended."""

    def __init__(self, offset: int) -> None:
        self.records = [Record("t", 0, offset, 0, None, None)]
        self.unwanted = False
        self.results: Sequence[Result] | None = None
        self.ended = threading.Event()

    def done(self, results: Sequence[Result], seconds: float) -> None:
        assert seconds >= 0
        self.results = results
        self.ended.set()


def performer(call: Any, timeout_s: float | None = None) -> Performer:
    return Performer(call, batch=False, decode_key=None, decode_value=None, outputs=Outputs(()), timeout_s=timeout_s)


def test_threads_work_side_by_side_and_show_their_records() -> None:
    release, seen = threading.Event(), []

    def handle(record: Record) -> None:
        call = CURRENT_CALL.get()
        assert call is not None
        seen.append(call.records[0] is record)
        release.wait(30)

    executor = ThreadExecutor(performer(handle), 3, SystemClock())
    executor.start()
    pieces = [Piece(n) for n in range(4)]
    for piece in pieces:
        executor.give(piece)
    eventually(lambda: len(executor.calls()) == 3, timeout_s=30, what="three hands to be full")
    assert {call.records[0].offset for call in executor.calls()} == {0, 1, 2}
    assert len({call.thread for call in executor.calls()}) == 3
    release.set()
    assert all(piece.ended.wait(30) for piece in pieces)
    eventually(lambda: executor.calls() == [], timeout_s=30, what="all hands to be empty")
    executor.close()
    assert seen == [True] * 4


def test_event_loop_runs_so_many_calls_at_once_as_it_is_given() -> None:
    together = 0
    most = 0

    async def handle(_: Record) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.05)
        together -= 1

    executor = LoopExecutor(performer(handle), 10, SystemClock())
    executor.start()
    pieces = [Piece(n) for n in range(10)]
    for piece in pieces:
        executor.give(piece)
    assert all(piece.ended.wait(30) for piece in pieces)
    assert (most, executor.calls()) == (10, [])
    executor.close()


def test_hooks_run_in_the_handlers_event_loop_and_their_errors_come_back() -> None:
    loops: list[Any] = []

    async def setup(name: str) -> None:
        loops.append((name, asyncio.get_running_loop()))

    async def handle(_: Record) -> None:
        loops.append(("handle", asyncio.get_running_loop()))

    async def fails(name: str) -> None:
        raise ConnectionError(name)

    executor = LoopExecutor(performer(handle), 1, SystemClock())
    executor.start()
    executor.call(setup, "setup")
    piece = Piece(0)
    executor.give(piece)
    assert piece.ended.wait(30)
    executor.call(lambda name: loops.append((name, None)), "plain")
    with pytest.raises(ConnectionError, match="no database"):
        executor.call(fails, "no database")
    executor.close()
    assert [name for name, _ in loops] == ["setup", "handle", "plain"]
    assert loops[0][1] is loops[1][1]


def test_cancelled_calls_end_without_a_result() -> None:
    ended = threading.Event()

    async def handle(_: Record) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    executor = LoopExecutor(performer(handle), 1, SystemClock())
    executor.start()
    piece = Piece(0)
    executor.give(piece)
    eventually(lambda: executor.calls(), timeout_s=30, what="the call to begin")
    executor.cancel()
    assert ended.is_set()
    assert (executor.calls(), piece.results) == ([], None)
    executor.close()


def test_job_ends_though_its_call_left_a_cancellation_behind_and_then_took_too_long() -> None:
    async def handle(_: Record) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    executor = LoopExecutor(performer(handle, timeout_s=0.05), 1, SystemClock())
    executor.start()
    piece = Piece(0)
    executor.give(piece)
    assert piece.ended.wait(30), "its lane would stand still indefinitely"
    assert piece.results is not None
    assert isinstance(piece.results[0].error, TimedOut)
    executor.close()


@pytest.mark.parametrize("make", [LoopExecutor, ThreadExecutor])
def test_job_ends_though_performing_it_breaks(make: type[LoopExecutor] | type[ThreadExecutor]) -> None:
    class Broken(Performer):
        def perform(self, records: Sequence[Record]) -> list[Result]:
            raise AssertionError("a bug of ours")

        async def perform_async(self, records: Sequence[Record]) -> list[Result]:
            raise AssertionError("a bug of ours")

    broken = Broken(
        lambda r: None, batch=False, decode_key=None, decode_value=None, outputs=Outputs(()), timeout_s=None
    )
    executor: Executor = make(broken, 1, SystemClock())
    executor.start()
    for piece in (Piece(0), Piece(1)):
        executor.give(piece)
        assert piece.ended.wait(30)
        assert piece.results is not None
        assert isinstance(piece.results[0].error, AssertionError)
    executor.close()


@pytest.mark.together
def test_call_that_blocks_the_event_loop_stays_visible_and_blocks_no_stop() -> None:
    release = threading.Event()

    async def handle(_: Record) -> None:
        release.wait(60)

    executor: Executor = LoopExecutor(performer(handle), 1, SystemClock())
    executor.start()
    piece = Piece(7)
    executor.give(piece)
    eventually(lambda: executor.calls(), timeout_s=30, what="the call to begin")
    executor.cancel()
    assert [call.records[0].offset for call in executor.calls()] == [7]
    release.set()
    assert piece.ended.wait(30)
    executor.close()


def test_exit_in_a_background_task_of_the_application_does_not_end_the_event_loop() -> None:
    async def call(record: Record) -> None:
        if record.offset == 1:
            asyncio.get_running_loop().call_soon(raise_exit)

    def raise_exit() -> None:
        raise SystemExit(1)

    executor = LoopExecutor(performer(call), 1, SystemClock())
    executor.start()
    try:
        for offset in (1, 2):
            piece = Piece(offset)
            executor.give(piece)
            assert piece.ended.wait(30)
    finally:
        executor.close()
