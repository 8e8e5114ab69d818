"""The wait of objects for the first look of this process at what they describe.

After a restart each of them would be shown as unknown, and a moment later as before.
"""

from __future__ import annotations

from typing import Final

from fleet_consumer.clock import Clock
from fleet_operator.runtime.cache import Key

FIRST_LOOK_SECONDS: Final = 60.0
"""The longest wait of an object that has a status."""


class FirstLooks:
    """The objects of one kind that wait. Used on the event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: dict[Key, float] = {}  # since when, monotonic seconds

    def awaits(self, key: Key, *, coming: bool) -> bool:
        """True while a look that is `coming` is worth waiting for; one that was made, or never will be, is not."""
        if not coming:
            self.forget(key)
            return False
        now = self._clock.monotonic()
        return now - self._awaited.setdefault(key, now) < FIRST_LOOK_SECONDS

    def forget(self, key: Key) -> None:
        self._awaited.pop(key, None)
