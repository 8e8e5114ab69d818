"""The breaker of a worker: no attempts are spent while a dependency of its handler is down.

It watches the share of recent records with a retriable failure. Above the policy's limit it opens, and after many
failures in a row: at a thousand records a second half a minute of an outage is 30,000 records, at one a second it is
fewer than prove anything. After the cooldown
single records are tried, and a few successes in a row close it. Records that can never succeed say nothing about the
dependency, so they are not counted.

Pure: times are seconds of a monotonic clock and are passed in. One thread uses it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet_consumer.contract.policies import Budget

PROBES: Final = 3
"""Successes in a row that close the breaker: one may be luck."""
IN_A_ROW: Final = 100
"""Failures without a success between them that open the breaker, or `min_records` if that is more: with four of ten
records bad at random this never happens."""
PROBES_IN_VAIN: Final = 3
"""Failed probes after which a record may be moved on. A probe cannot distinguish an outage from a record that never
succeeds, and the same record may be the first to be tried each time."""


class BreakerState(StrEnum):
    """`HalfOpen`: one record at a time is tried."""

    CLOSED = "Closed"
    OPEN = "Open"
    HALF_OPEN = "HalfOpen"


@dataclass(slots=True, eq=False)
class Breaker:
    """One worker's window and state. `budget` may be replaced at any time, when the policy was edited.

    `since` is when the state began; `until` is the end of an open breaker's cooldown, None in the other states.
    `makes_way`: the record that failed last moves on although the breaker is not closed.
    """

    budget: Budget
    since: float
    state: BreakerState = BreakerState.CLOSED
    until: float | None = None
    makes_way: bool = False
    _probed: int = 0
    _in_vain: int = 0
    _in_a_row: int = 0
    # (second, successes, failures), oldest first: one entry for each second with a result.
    _seconds: deque[list[int]] = field(default_factory=deque)
    _successes: int = 0
    _failures: int = 0

    def look(self, now: float) -> BreakerState:
        """The state at `now`; an open breaker becomes half open after its cooldown."""
        if self.state is BreakerState.OPEN and self.until is not None and now >= self.until:
            self._turn(BreakerState.HALF_OPEN, now)
        return self.state

    def doubt(self, now: float) -> None:
        """Become half open: other workers report an outage."""
        if self.state is not BreakerState.HALF_OPEN:
            self._turn(BreakerState.HALF_OPEN, now)

    def succeeded(self, now: float, count: int = 1) -> BreakerState:
        """Count successes. Late ones of an open breaker began before it opened, and are ignored."""
        if self.look(now) is BreakerState.HALF_OPEN:
            self._probed += count
            if self._probed >= PROBES:
                self._turn(BreakerState.CLOSED, now)
        elif self.state is BreakerState.CLOSED:
            self._count(now, count, 0)
            self._in_a_row = 0
        return self.state

    def failed(self, now: float) -> BreakerState:
        """Count a retriable failure. It uses up an attempt only if the result is `Closed` or the record makes way."""
        self.makes_way = False
        if self.look(now) is BreakerState.HALF_OPEN:
            self._in_vain = (self._in_vain + 1) % PROBES_IN_VAIN
            self.makes_way = self._in_vain == 0
            self._turn(BreakerState.OPEN, now)
        elif self.state is BreakerState.CLOSED:
            self._count(now, 0, 1)
            self._in_a_row += 1
            total = self._successes + self._failures
            enough = total >= self.budget.min_records
            too_many = enough and self._failures * 100 > self.budget.max_failure_percent * total
            if too_many or self._in_a_row >= max(IN_A_ROW, self.budget.min_records):
                self._turn(BreakerState.OPEN, now)
        return self.state

    def failure_percent(self, now: float) -> int:
        """The share of failures in the window in percent, rounded down; 0 without results."""
        self._drop_old(now)
        total = self._successes + self._failures
        return self._failures * 100 // total if total else 0

    def _turn(self, state: BreakerState, now: float) -> None:
        self.state, self.since, self._probed = state, now, 0
        self.until = now + self.budget.cooldown_s if state is BreakerState.OPEN else None
        if state is BreakerState.CLOSED:
            # Earlier failures must not open the breaker again at once.
            self._seconds.clear()
            self._successes = self._failures = self._in_vain = self._in_a_row = 0

    def _count(self, now: float, successes: int, failures: int) -> None:
        self._drop_old(now)
        second = int(now // 1)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
        self._seconds[-1][1] += successes
        self._seconds[-1][2] += failures
        self._successes += successes
        self._failures += failures

    def _drop_old(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - self.budget.window_s:
            _, successes, failures = self._seconds.popleft()
            self._successes -= successes
            self._failures -= failures
