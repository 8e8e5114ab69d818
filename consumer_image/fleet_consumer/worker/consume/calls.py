"""Handler calls under way in an executor, and the way of their results back to the loop's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.handlers.performing import Result
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.executor import Executor
from fleet_consumer.worker.consume.pending import Work


class Calls:
    """The calls of one loop. All methods belong to its thread, except `report`."""

    def __init__(self, executor: Executor, consumer: Consumer) -> None:
        self._executor = executor
        self._consumer = consumer
        self._came_back: deque[tuple[Work, Sequence[Result], float]] = deque()
        self._news = threading.Event()
        self._rung = False
        self.out = 0

    @property
    def any_back(self) -> bool:
        """True while results wait to be taken."""
        return bool(self._came_back)

    def limit(self, pace: Pace) -> int:
        """Number of calls that may be under way at once."""
        return {Pace.FULL: self._executor.size, Pace.PROBE: 1, Pace.STOP: 0}[pace]

    def give(self, work: Work) -> None:
        """Have a handler called with this work."""
        self.out += 1
        self._executor.give(work)

    def conclude(self, work: Work, error: Exception) -> None:
        """Fail all of this work with `error` in place of a call; it comes back like any other."""
        self.out += 1
        work.done([Result(error=error)] * len(work.entries), 0.0)

    def report(self, work: Work, results: Sequence[Result], seconds: float) -> None:
        """Take a call's results. Any thread."""
        self._came_back.append((work, results, seconds))
        # Rung once until the loop has looked: it clears the sign first and looks then, so nothing is overlooked.
        if not self._rung:
            self._rung = True
            self._news.set()
            self._consumer.wakeup()

    def take_back(self) -> Iterator[tuple[Work, Sequence[Result], float]]:
        """Work that came back, with its results and how many seconds its call took."""
        self._rung = False
        self._news.clear()
        while self._came_back:
            self.out -= 1
            yield self._came_back.popleft()

    def wait(self, timeout_s: float) -> None:
        """Wait for work to come back, at most `timeout_s`."""
        self._news.wait(timeout_s)
