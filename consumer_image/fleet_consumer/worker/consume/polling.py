"""Polling a consumer: an error is logged, shown for a while and followed by a pause."""

from __future__ import annotations

import logging
from typing import Final

from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.record import Records
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

POLL_TIMEOUT_S: Final = 0.5
"""Longest wait of a poll for records: bounds the delay of commits and holds on a quiet topic."""

ERROR_PAUSE_S: Final = 1.0
"""Pause after a poll that raised: a cause that stays must not become a hot loop."""

ERROR_SHOWN_S: Final = 15.0
"""An error that is not repeated for so long counts as resolved. Lasting ones are raised every few seconds only."""


class Polling:
    """The polls of one loop."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._error: tuple[ConsumerError, float] | None = None

    @property
    def error(self) -> ConsumerError | None:
        """The current error (`Loop.error`). Any thread."""
        last = self._error
        return last[0] if last is not None and self._parts.clock.monotonic() < last[1] else None

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Records, none after an error. Raises FatalConsumerError."""
        try:
            records = self._parts.consumer.poll(timeout_s, max_records=max_records)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            if str(error) != str(self.error):
                LOG.warning("poll failed", extra=fields(reason=error.reason, error=str(error)))
            self._error = error, self._parts.clock.monotonic() + ERROR_SHOWN_S
            self._parts.pause(ERROR_PAUSE_S)
            return Records([])
        if records:
            self._error = None
        return records

    def keep_alive(self, timeout_s: float) -> None:
        """Poll for the membership's sake: callbacks run, the poll interval starts again, no record comes out."""
        self.poll(timeout_s, max_records=0)
