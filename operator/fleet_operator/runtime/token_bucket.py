"""A budget of writes: so many a second, after a burst.

Whoever finds no token reserves the next one and is told when that is there. So those who wait come one after the other,
each at a time of its own: if they were only told when *a* token may be there, all would come for the same one, and all
but one of them in vain. Pure: `now` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """`rate` tokens a second up to `burst`. `take_now` overdraws it by at most `debt_max` tokens."""

    rate: float
    burst: float
    debt_max: float = 0.0
    _level: float = 0.0
    _at: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token; the seconds until it is there, 0.0 when it is there already."""
        self._refill(now)
        self._level -= 1.0
        return max(-self._level / self.rate, 0.0)

    def take_now(self, now: float) -> None:
        """Take a token that does not wait: those who reserve after it wait the longer."""
        self._refill(now)
        if self._level > -self.debt_max:
            self._level = max(self._level - 1.0, -self.debt_max)

    def _refill(self, now: float) -> None:
        if self._at is None:
            self._level = self.burst
        else:
            self._level = min(self.burst, self._level + (now - self._at) * self.rate)
        self._at = now
