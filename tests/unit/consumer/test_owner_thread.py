"""Jobs of an event loop's tasks on one thread: in order, interruptible, and open to callbacks that ask for more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from fleet_consumer.consumer.owner_thread import OwnerThread
from fleet_consumer.group.errors import ConcurrentUse, ConsumerClosed


def owner(interrupt: Callable[[], None] = lambda: None) -> OwnerThread:
    return OwnerThread("owner", interrupt)


async def end(thread: OwnerThread) -> None:
    await thread.call(lambda: None, last=True)


async def test_jobs_run_in_order_on_one_thread_that_is_not_the_loops() -> None:
    thread = owner()
    seen: list[tuple[int, int]] = []
    await asyncio.gather(*(thread.call(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(5)))  # type: ignore[misc]
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4]
    assert len({ident for _, ident in seen} - {threading.get_ident()}) == 1
    await end(thread)


async def test_error_of_a_job_reaches_its_caller_and_the_next_runs() -> None:
    thread = owner()
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    assert await thread.call(lambda: 7) == 7
    await end(thread)


async def test_interruptible_job_makes_way_for_any_other() -> None:
    wake = threading.Event()
    thread = owner(wake.set)
    waits = thread.call(lambda: wake.wait(60), interruptible=True)
    assert await thread.call(lambda: "done") == "done"
    assert await waits
    await end(thread)


async def test_interruptible_job_that_begins_with_others_behind_it_is_interrupted_too() -> None:
    wake, go = threading.Event(), threading.Event()
    thread = owner(wake.set)
    thread.call(lambda: go.wait(60))
    thread.call(lambda: wake.wait(60), interruptible=True)
    last = thread.call(lambda: "done")
    assert not wake.is_set()
    go.set()
    assert await last == "done"
    await end(thread)


async def test_callback_may_run_its_own_jobs_while_others_wait() -> None:
    thread = owner()
    order: list[str] = []

    async def callback() -> None:
        closing = thread.call(lambda: order.append("outside"), in_callbacks=False)
        await thread.call(lambda: order.append("inside"))
        assert not closing.done()
        order.append("callback")

    def job() -> None:
        thread.wait_for(asyncio.run_coroutine_threadsafe(callback(), thread.loop))
        order.append("job")

    await thread.call(job)
    await thread.call(lambda: None)
    assert order == ["inside", "callback", "job", "outside"]
    await end(thread)


async def test_jobs_behind_the_last_are_refused() -> None:
    thread, go = owner(), threading.Event()
    last = thread.call(lambda: go.wait(60), last=True)
    behind = thread.call(lambda: None)
    go.set()
    await last
    with pytest.raises(ConsumerClosed):
        await behind
    with pytest.raises(ConsumerClosed):
        await thread.call(lambda: None)


def test_another_event_loop_is_refused() -> None:
    thread = owner()

    async def once() -> None:
        await thread.call(lambda: None)

    asyncio.run(once())
    with pytest.raises(ConcurrentUse, match="another event loop"):
        asyncio.run(once())
