"""Calls whose partition is gone, or whose session is over: what was not sent yet is not sent any more."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from aiohttp import web

from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.executor import Executor, LoopExecutor, ThreadExecutor
from fleet_consumer.handlers.http import HandlerUnreachable, HttpHandler
from fleet_consumer.handlers.loading import Handler, HandlerContext
from fleet_consumer.handlers.performing import Outputs, Performer, Result
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.consume.pending import Concurrency
from tests.support.waiting import eventually
from tests.unit.worker.manual_executor import ManualExecutor
from tests.unit.worker.scripted import P0, P1, Bench

CONTEXT = HandlerContext(namespace="default", name="shop", group_id="shop", revision="r", worker="shop-0")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def bench(executor: Executor, *, batch: bool = False) -> Bench:
    """A loop with two records of each of two partitions."""
    concurrency = Concurrency.sized(batch=batch, size=executor.size, max_poll_records=10)
    made = Bench(lambda record: None, {P0: [b"0", b"1"], P1: [b"0", b"1"]}, executor=executor, concurrency=concurrency)
    made.consumer.key = lambda value: None
    made.consumer.wakeup = lambda: None

    def time_passes(seconds: float) -> None:
        made.clock.now += seconds

    # A callback that waits for results sleeps on this event, and the clock stands still meanwhile.
    made.loop._rounds._calls._changed = SimpleNamespace(wait=time_passes, set=lambda: None, clear=lambda: None)
    return made


def unwanted(executor: ManualExecutor) -> list[tuple[int, bool]]:
    return [(job.records[0].partition, job.unwanted) for job in executor.jobs]


@pytest.mark.parametrize("how", ["lose", "revoke"])
def test_calls_of_a_partition_that_is_gone_are_unwanted_and_still_counted(how: str) -> None:
    executor = ManualExecutor(lambda record: None, 4)
    made = bench(executor)
    made.steps(1)
    made.consumer.script.append(lambda: getattr(made.consumer, how)(P0))
    made.steps(1)
    assert unwanted(executor) == [(0, True), (0, True), (1, False), (1, False)]
    for _ in range(4):
        executor.finish()
    made.steps(1)
    assert (made.stats.abandoned, made.stats.done, made.loop.in_flight) == (2, 2, 0)


def test_partition_that_comes_back_does_not_make_its_old_calls_wanted() -> None:
    executor = ManualExecutor(lambda record: None, 8)
    made = bench(executor)
    made.steps(1)
    made.consumer.script += [lambda: made.consumer.lose(P0), lambda: made.consumer.assign(P0)]
    made.steps(2)
    assert [job.unwanted for job in executor.jobs if job.records[0].partition == 0] == [True, True, False, False]


def test_calls_of_a_session_that_is_over_are_unwanted_even_if_nothing_was_given_back() -> None:
    executor = ManualExecutor(lambda record: None, 4)
    made = bench(executor)
    made.steps(1)

    def close(timeout_s: float) -> None:
        raise OSError("the consumer broke before its callbacks ran")

    made.consumer.close = close
    with pytest.raises(OSError, match="before its callbacks"):
        made.loop.close(5)
    assert unwanted(executor) == [(0, True), (0, True), (1, True), (1, True)]


class Piece:
    """A job of a few records that nobody may want any more."""

    def __init__(self, *offsets: int, unwanted: bool = False) -> None:
        self.records = [Record("t", 0, offset, 0, None, b"v") for offset in offsets]
        self.unwanted = unwanted
        self.results: Sequence[Result] = ()
        self.ended = threading.Event()

    def done(self, results: Sequence[Result], seconds: float) -> None:
        self.results = results
        self.ended.set()


@pytest.mark.parametrize("make", [LoopExecutor, ThreadExecutor])
def test_job_that_is_unwanted_before_it_begins_never_reaches_its_handler(
    make: type[LoopExecutor] | type[ThreadExecutor],
) -> None:
    seen: list[int] = []

    async def later(record: Record) -> None:
        seen.append(record.offset)

    handle = later if make is LoopExecutor else lambda record: seen.append(record.offset)
    executor = make(performer(handle, batch=False), 1, SystemClock())
    executor.start()
    pieces = [Piece(0, 1, unwanted=True), Piece(2)]
    for piece in pieces:
        executor.give(piece)
        assert piece.ended.wait(30)
    executor.close()
    assert seen == [2]
    assert len(pieces[0].results) == 2


class Sidecar:
    """The handler's container, which comes and goes on one port, and the executor that calls it."""

    def __init__(self, *, batch: bool = False, size: int = 4) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.seen: list[tuple[int, int]] = []
        self.statuses: list[int] = []
        self._runner: web.AppRunner | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        http = HttpHandler(self.port, "/records", batch=batch, timeout_s=5, value_format="Bytes", clock=SystemClock())
        self.handler: Handler = http.handler()
        self.executor = LoopExecutor(performer(self.handler.call, batch=batch), size, SystemClock())

    def come(self) -> None:
        asyncio.run_coroutine_threadsafe(self._come(), self._loop).result(30)

    def go(self) -> None:
        asyncio.run_coroutine_threadsafe(self._go(), self._loop).result(30)

    async def _come(self) -> None:
        application = web.Application()
        application.router.add_post("/records", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _go(self) -> None:
        if self._runner is not None:
            await asyncio.sleep(0.02)  # a probe's connection that was accepted just now is served, and so closed
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        if "X-Kafka-Offset" in request.headers:
            self.seen.append((int(request.headers["X-Kafka-Partition"]), int(request.headers["X-Kafka-Offset"])))
        else:
            self.seen += [(each["partition"], each["offset"]) for each in (await request.json())["records"]]
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)

    def is_missed(self) -> bool:
        return isinstance(self.handler.last_error(), HandlerUnreachable)

    def end(self) -> None:
        self.executor.call(self.handler.teardown, CONTEXT)
        self.executor.close()
        self.go()
        # A connection that was accepted just now sees its end before the loop does.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


def performer(call: Callable[..., object], *, batch: bool) -> Performer:
    return Performer(call, batch=batch, decode_key=None, decode_value=None, outputs=Outputs(), timeout_s=None)


@contextmanager
def sidecar(*, batch: bool = False) -> Iterator[Sidecar]:
    """A handler's container that was up once, for `setup`, and is away now."""
    made = Sidecar(batch=batch)
    made.come()
    made.executor.start()
    made.executor.call(made.handler.setup, CONTEXT)
    made.go()
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("batch", [False, True])
def test_records_given_back_while_the_handler_was_away_are_not_sent_when_it_returns(batch: bool) -> None:
    with sidecar(batch=batch) as made:
        loop = bench(made.executor, batch=batch)
        loop.steps(1)
        eventually(made.is_missed, timeout_s=30, what="the handler to be missed")
        loop.consumer.script.append(lambda: loop.consumer.lose(P0))
        loop.steps(1)
        eventually(lambda: partitions(made.executor) == {1}, timeout_s=30, what="calls of partition 0 to end")
        made.come()
        eventually(lambda: not made.executor.calls(), timeout_s=30, what="the other calls to end")
        loop.steps(1)
        assert sorted(made.seen) == [(1, 0), (1, 1)]
        assert loop.loop.in_flight == 0


def partitions(executor: Executor) -> set[int]:
    return {TopicPartition(call.records[0].topic, call.records[0].partition).partition for call in executor.calls()}


def test_calls_of_one_session_after_the_other_do_not_add_up_while_the_handler_is_away() -> None:
    with sidecar() as made:
        for _ in range(3):
            loop = bench(made.executor)
            loop.steps(1)
            eventually(made.is_missed, timeout_s=30, what="the handler to be missed")
            loop.loop.close(1)
        eventually(lambda: not made.executor.calls(), timeout_s=30, what="all calls to end")
        made.come()
        assert made.seen == []


def test_batch_that_is_unwanted_when_it_failed_is_not_sent_again_record_by_record() -> None:
    with sidecar(batch=True) as made:
        piece = Piece(0, 1, 2)
        made.statuses = [500]
        answer = made._answer

        async def unwanted_meanwhile(request: web.Request) -> web.Response:
            piece.unwanted = True
            return await answer(request)

        made._answer = unwanted_meanwhile  # type: ignore[method-assign]
        made.come()
        made.executor.give(piece)
        assert piece.ended.wait(30)
        assert [len(piece.results), made.seen] == [3, [(0, 0), (0, 1), (0, 2)]]


@pytest.mark.parametrize("make", [LoopExecutor, ThreadExecutor])
def test_records_of_a_failed_batch_are_not_handed_out_one_by_one_once_they_are_unwanted(
    make: type[LoopExecutor] | type[ThreadExecutor],
) -> None:
    seen: list[list[int]] = []
    piece = Piece(0, 1, 2, 3)

    def handle(records: list[Record]) -> None:
        seen.append([record.offset for record in records])
        if len(records) > 1:
            raise ValueError("one of them is bad")
        piece.unwanted = records[0].offset == 1

    async def later(records: list[Record]) -> None:
        handle(records)

    executor = make(performer(later if make is LoopExecutor else handle, batch=True), 1, SystemClock())
    executor.start()
    executor.give(piece)
    assert piece.ended.wait(30)
    executor.close()
    assert seen == [[0, 1, 2, 3], [0], [1]]
    assert len(piece.results) == 4
