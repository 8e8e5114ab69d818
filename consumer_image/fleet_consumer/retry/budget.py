"""The circuit breaker of a worker: it saves attempts while a dependency of the handler is down.

The breaker opens when the share of retriable failures in the window exceeds the policy's limit, or after many failures
in a row. On fast topics, the share alone would react too slowly: at 1,000 records/s, half a minute of outage affects
30,000 records. After the cooldown, single records are tried, and a few successes in a row close the breaker. Records
that can never succeed say nothing about the dependency, so their failures are not counted.

No I/O and no clock: callers pass times in monotonic seconds. Not thread-safe.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet_consumer.contract.policies import Budget

PROBES: Final = 3
"""Number of successes in a row that close the breaker."""
IN_A_ROW: Final = 100
"""Number of failures in a row that open the breaker, or the policy's `min_records` if that is larger. With random
failures of 40 % of the records, this many failures in a row practically never occur."""
PROBES_IN_VAIN: Final = 3
"""Number of failed probes after which the probed record moves on to a retry topic. A probe is a try of a single record
while the breaker is half open. Without this limit, a record that never succeeds could keep the breaker open, because
its failures look like an outage."""


class BreakerState(StrEnum):
    """State of a breaker. In `HalfOpen` one record at a time is tried."""

    CLOSED = "Closed"
    OPEN = "Open"
    HALF_OPEN = "HalfOpen"


@dataclass(slots=True, eq=False)
class Breaker:
    """Window and state of one worker's breaker. `budget` has the policy's limits; it may be replaced at any time, after
    an edit of the policy.

    `since` is the time of the last state change. `until` is the end of an open breaker's cooldown, None in other
    states. `makes_way` is true if the last failed record moves on to a retry topic although the breaker is not closed.
    """

    budget: Budget
    since: float
    state: BreakerState = BreakerState.CLOSED
    until: float | None = None
    makes_way: bool = False
    _probed: int = 0
    _in_vain: int = 0
    _in_a_row: int = 0
    # (second, successes, failures) for each second with a result, the oldest first.
    _seconds: deque[list[int]] = field(default_factory=deque)
    _successes: int = 0
    _failures: int = 0

    def state_at(self, now: float) -> BreakerState:
        """Return the state at `now`. An open breaker becomes half open after its cooldown."""
        if self.state is BreakerState.OPEN and self.until is not None and now >= self.until:
            self._enter(BreakerState.HALF_OPEN, now)
        return self.state

    def half_open(self, now: float) -> None:
        """Become half open, so that only single records are tried. Called when other workers report an outage."""
        if self.state is not BreakerState.HALF_OPEN:
            self._enter(BreakerState.HALF_OPEN, now)

    def succeeded(self, now: float, count: int = 1) -> BreakerState:
        """Count successes. An open breaker ignores successes, because their calls began before it opened."""
        if self.state_at(now) is BreakerState.HALF_OPEN:
            self._probed += count
            if self._probed >= PROBES:
                self._enter(BreakerState.CLOSED, now)
        elif self.state is BreakerState.CLOSED:
            self._count(now, count, 0)
            self._in_a_row = 0
        return self.state

    def failed(self, now: float) -> BreakerState:
        """Count a retriable failure, and return the breaker's state. The failure uses up one of the record's attempts
        only if the returned state is `Closed` or `makes_way` is true."""
        self.makes_way = False
        if self.state_at(now) is BreakerState.HALF_OPEN:
            self._in_vain = (self._in_vain + 1) % PROBES_IN_VAIN
            self.makes_way = self._in_vain == 0
            self._enter(BreakerState.OPEN, now)
        elif self.state is BreakerState.CLOSED:
            self._count(now, 0, 1)
            self._in_a_row += 1
            total = self._successes + self._failures
            enough = total >= self.budget.min_records
            too_many = enough and self._failures * 100 > self.budget.max_failure_percent * total
            if too_many or self._in_a_row >= max(IN_A_ROW, self.budget.min_records):
                self._enter(BreakerState.OPEN, now)
        return self.state

    def failure_percent(self, now: float) -> int:
        """Return the share of failures in the window in percent, rounded down; 0 without results."""
        self._drop_old(now)
        total = self._successes + self._failures
        return self._failures * 100 // total if total else 0

    def _enter(self, state: BreakerState, now: float) -> None:
        self.state, self.since, self._probed = state, now, 0
        self.until = now + self.budget.cooldown_s if state is BreakerState.OPEN else None
        if state is BreakerState.CLOSED:
            # Otherwise earlier failures would reopen the breaker immediately.
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
