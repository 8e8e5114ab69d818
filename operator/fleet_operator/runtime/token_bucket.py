"""One budget for all status writes.

Routine news (lag moved a bucket, a member's partitions changed) waits for a token. News a person waits for (a
condition flipped, a new generation was seen) never waits, but runs the bucket into debt, so that routine writes make
room for it. Pure: `now` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """`rate` tokens a second up to `burst`; may be overdrawn by `debt_max` tokens by `take_now`."""

    rate: float
    burst: float
    debt_max: float
    _level: float = 0.0
    _at: float | None = None

    def wait(self, now: float) -> float:
        """Take a token and return 0.0, or return the seconds until one may be there, taking none."""
        self._refill(now)
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self.rate

    def take_now(self, now: float) -> None:
        """Take a token in any case, into debt if need be."""
        self._refill(now)
        self._level = max(self._level - 1.0, -self.debt_max)

    def _refill(self, now: float) -> None:
        if self._at is None:
            self._level = self.burst
        else:
            self._level = min(self.burst, self._level + (now - self._at) * self.rate)
        self._at = now
