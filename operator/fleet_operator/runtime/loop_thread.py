"""An event loop on a thread of its own, for work that must not wait for the turns of the operator's loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopThread:
    """A daemon thread with an event loop; both end with the process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Have something done on the thread; to cancel the future, which is the caller's loop's, cancels the work."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class Handover(Generic[*Ts]):
    """Calls of a function on a loop, from one other thread, in order.

    To wake another thread's loop takes a system call and the interpreter's lock. Calls that come while the loop is busy
    share one wake-up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[*Ts], None]) -> None:
        self._loop = loop
        self._function = function
        self._waiting: deque[tuple[*Ts]] = deque()

    def __call__(self, *arguments: *Ts) -> None:
        self._waiting.append(arguments)
        if len(self._waiting) == 1:  # what was there before has woken the loop
            self._loop.call_soon_threadsafe(self._make)

    def _make(self) -> None:
        """Make all calls that wait, in one turn: a turn of a busy loop takes long. One that fails stops no other."""
        while self._waiting:
            try:
                self._function(*self._waiting.popleft())
            except Exception as error:
                self._loop.call_exception_handler({"message": "a call from another thread failed", "exception": error})
