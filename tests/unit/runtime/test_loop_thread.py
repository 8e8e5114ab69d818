"""Calls from another thread: all of them, in order, with few wake-ups of the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fleet_operator.runtime.loop_thread import Handover

CALLS = 5_000


class Calls:
    """Calls of a function that fails for odd numbers if `picky`, and the wait for the last one."""

    def __init__(self, last: int, *, picky: bool = False) -> None:
        self._last = last
        self._picky = picky
        self._done = asyncio.Event()
        self.made: list[int] = []
        self.errors: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.errors.append(str(context["exception"])))
        self.hand_over = Handover(loop, self._call)

    async def all_made(self) -> list[int]:
        async with asyncio.timeout(60.0):
            await self._done.wait()
        await asyncio.sleep(0)
        return self.made

    def _call(self, number: int) -> None:
        if number == self._last:
            self._done.set()
        if self._picky and number % 2:
            raise ValueError(f"odd: {number}")
        self.made.append(number)


def test_calls_of_another_thread_are_made_in_order_and_none_is_lost() -> None:
    async def main() -> list[int]:
        calls = Calls(CALLS - 1)

        def call() -> None:
            for number in range(CALLS):
                calls.hand_over(number)

        thread = threading.Thread(target=call)
        thread.start()
        made = await calls.all_made()
        thread.join()
        return made

    assert asyncio.run(main()) == list(range(CALLS))


def test_calls_that_come_while_the_loop_is_busy_wake_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        loop, wakes = asyncio.get_running_loop(), list[object]()
        wake = loop.call_soon_threadsafe

        def counted(*args: Any) -> asyncio.Handle:
            wakes.append(args)
            return wake(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        calls = Calls(99)
        for number in range(100):
            calls.hand_over(number)
        assert await calls.all_made() == list(range(100))
        return len(wakes)

    assert asyncio.run(main()) == 1


def test_call_that_fails_keeps_no_other_from_being_made() -> None:
    async def main() -> tuple[list[int], list[str]]:
        calls = Calls(5, picky=True)
        for number in range(6):
            calls.hand_over(number)
        return await calls.all_made(), calls.errors

    assert asyncio.run(main()) == ([0, 2, 4], ["odd: 1", "odd: 3", "odd: 5"])
