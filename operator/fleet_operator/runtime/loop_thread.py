"""Runs event loops on their own threads, for work that must not wait for the operator's event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopThread:
    """A daemon thread with an event loop. Both run until the process ends."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine on the thread. Returns a future of the caller's loop; cancelling it cancels the coroutine."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class Handover(Generic[*Ts]):
    """Lets one other thread call a function on an event loop, in the order of the calls. Calls that arrive while the
    loop is busy share one wake-up, because each wake-up costs a system call and the GIL."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[*Ts], None]) -> None:
        self._loop = loop
        self._function = function
        self._waiting: deque[tuple[*Ts]] = deque()

    def __call__(self, *arguments: *Ts) -> None:
        self._waiting.append(arguments)
        if len(self._waiting) == 1:  # otherwise an earlier call has already woken the loop
            self._loop.call_soon_threadsafe(self._make)

    def _make(self) -> None:
        """Run all waiting calls in one iteration, because each iteration of a busy loop takes long. Failures are
        logged."""
        while self._waiting:
            try:
                self._function(*self._waiting.popleft())
            except Exception as error:
                self._loop.call_exception_handler({"message": "a call from another thread failed", "exception": error})
