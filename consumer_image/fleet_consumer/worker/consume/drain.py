"""The ordered stop of a loop: finish what is in hand, within a time."""

from __future__ import annotations

from fleet_consumer.worker.consume.parts import LoopParts


class Drain:
    """Begun by any thread, read by the loop's."""

    def __init__(self, parts: LoopParts) -> None:
        self._consumer = parts.consumer
        self._clock = parts.clock
        self._drain_s = parts.settings.drain_s
        self._until: float | None = None
        self.gives_up = False

    def begin(self, within_s: float | None, *, gives_up: bool) -> None:
        """Begin to stop (`Loop.stop`)."""
        self.gives_up = gives_up
        if self._until is None:
            self._until = self._clock.monotonic() + (self._drain_s if within_s is None else within_s)
            self._consumer.wakeup()

    @property
    def begun(self) -> bool:
        return self._until is not None

    @property
    def over(self) -> bool:
        """True once the time of a stop is over; False while none has begun."""
        return self._until is not None and self._clock.monotonic() >= self._until
