"""The errors that keep records from coming, for as long as librdkafka keeps reporting them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fleet_consumer.clock import Clock
from fleet_consumer.group.errors import DataPlaneFailed

ERROR_LASTS_S = 15.0
"""The validity of an error after its last report: librdkafka retries, and reports again, every 10 s at the latest."""
ASK_AGAIN_S = 8.0
"""The delay after which librdkafka is made to report a refused partition again: by itself it reports only once."""


@dataclass(slots=True)
class _Denial:
    """A partition that may not be read, and whether a new report was asked for since."""

    error: DataPlaneFailed
    reported_at: float
    asked: bool = False


class ReadErrors:
    """The current errors of one fetch thread. Written with the turn in hand; `current` may be called by any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The last error and the end of its validity. Set to None by each run of records.
        self.last: tuple[DataPlaneFailed, float] | None = None
        # Replaced as a whole, never changed: any thread looks through it.
        self.denied: Mapping[tuple[str, int], _Denial] = {}

    def current(self) -> DataPlaneFailed | None:
        """The error that keeps records from coming; one not repeated within `ERROR_LASTS_S` counts as resolved.

        librdkafka reports a connection that fails, never one that works again, and on a quiet topic no record shows it
        either. A denied partition is an error whatever comes from others.
        """
        now, last = self._clock.monotonic(), self.last
        if last is not None and now < last[1]:
            return last[0]
        return next((each.error for each in self.denied.values() if now < each.reported_at + ERROR_LASTS_S), None)

    def note(self, error: DataPlaneFailed) -> None:
        """Keep an error, for a while or until records flow."""
        self.last = error, self._clock.monotonic() + ERROR_LASTS_S

    def deny(self, partition: tuple[str, int], error: DataPlaneFailed) -> None:
        """Keep the error of a partition that may not be read."""
        self.denied = {**self.denied, partition: _Denial(error, self._clock.monotonic())}

    def keep(self, assigned: Collection[tuple[str, int]]) -> None:
        """Drop the errors of partitions that are not assigned any more."""
        self.denied = {part: denial for part, denial in self.denied.items() if part in assigned}

    def take_due(self) -> list[tuple[str, int]]:
        """Drop denials that were not repeated, and take the partitions for which a new report is due.

        librdkafka reports a refused fetch only once, until one succeeds or the partition is sought.
        """
        now = self._clock.monotonic()
        self.denied = {part: each for part, each in self.denied.items() if now < each.reported_at + ERROR_LASTS_S}
        due = [part for part, each in self.denied.items() if not each.asked and now >= each.reported_at + ASK_AGAIN_S]
        for part in due:
            self.denied[part].asked = True
        return due
