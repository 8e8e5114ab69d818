"""An event loop on a thread of its own, for work that must not wait for the turns of the operator's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A daemon thread with an event loop; both end with the process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Have something done on the thread; to cancel the future, which is the caller's loop's, cancels the work."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
