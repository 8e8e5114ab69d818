"""How long to wait before trying again.

Pure: the random number is an argument, so that a test can walk the whole curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JITTER_FRACTION: Final = 0.5
"""Up to this part of a delay is taken off at random, so that what failed together does not come back together."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays between `initial_seconds` and `max_seconds`."""

    initial_seconds: float = 0.5
    factor: float = 2.0
    max_seconds: float = 60.0

    def delay(self, failures: int, chance: float) -> float:
        """The seconds to wait after the n-th failure in a row (1 is the first), given `chance` in [0, 1)."""
        if failures < 1:
            raise ValueError(f"a delay follows a failure, got failures={failures}")
        if not 0.0 <= chance < 1.0:
            raise ValueError(f"chance must be in [0, 1), got {chance}")
        # Beyond this exponent the maximum has long been reached; the bound keeps the power finite.
        grown = self.initial_seconds * self.factor ** min(failures - 1, 64)
        return min(grown, self.max_seconds) * (1.0 - JITTER_FRACTION * chance)
