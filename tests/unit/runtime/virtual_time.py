"""An event loop whose clock jumps: a test of minutes takes milliseconds and always the same path."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpingSelector(selectors.DefaultSelector):
    """Moves the clock on by the time that a real selector would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "the test waits for something that nothing will ever do"
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop on that clock."""

    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


class VirtualClock:
    """`Clock` on a virtual loop; wall time starts at a round number and moves with it, `skew` seconds ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.skew = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return 1_700_000_000.0 + self._loop.time() + self.skew


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
