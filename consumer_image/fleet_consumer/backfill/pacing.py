"""Time and rate of one task: how long it takes records, and how fast."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from fleet_consumer.clock import Clock

GROUP_S: Final = 0.25
"""A group of records is as large as is handled in this time, or in what is left."""


class Pacer:
    """Decides before each record whether it is taken now. The first one always is, whatever the time.

    `rate` is in records per second, None without a limit.
    """

    def __init__(
        self,
        seconds: float,
        rate: float | None,
        clock: Clock,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._began = clock.monotonic()
        self._deadline = self._began + seconds
        self._interval = 0.0 if rate is None else 1.0 / rate
        self._next_at = self._began
        self._taken = 0
        self.waited = 0.0

    def may_take(self, records: int = 1) -> bool:
        """True if so many records may be handled now, after a wait if the rate asks for one; False at the end."""
        now = self._clock.monotonic()
        if self._taken and max(now, self._next_at) >= self._deadline:
            return False
        if self._next_at > now:
            self._wait(self._next_at - now)
            self.waited += self._next_at - now
        # Time that was not used is lost: it would come back as a burst.
        self._next_at = max(self._next_at, now) + records * self._interval
        self._taken += records
        return True

    def group(self, most: int) -> int:
        """The number of records to handle together next: from one up, by the speed so far."""
        elapsed = self._clock.monotonic() - self._began
        if not self._taken:
            return 1
        left = max(0.0, self._deadline - self._began - elapsed)
        fit = int(min(GROUP_S, left) * self._taken / elapsed) if elapsed > 0 else most
        if self._interval:
            fit = min(fit, max(1, int(GROUP_S / self._interval)))
        return max(1, min(most, fit, 2 * self._taken))

    def in_time(self) -> bool:
        """True before the end of the time."""
        return self._clock.monotonic() < self._deadline

    @property
    def seconds(self) -> float:
        """The time since the task began to take records."""
        return self._clock.monotonic() - self._began
