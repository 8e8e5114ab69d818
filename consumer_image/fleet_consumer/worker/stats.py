"""A worker's counters. They are plain numbers, and most of them are updated per batch, not per record.

Only the consume loop's thread changes the counters. The metrics page reads them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.skips import RECORDS_MAX, PassedBy, Place
from fleet_consumer.handlers.executor import BusyTime

HANDLING_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Bucket bounds for the durations of handler calls in seconds. The default timeout of a call is 60 s. All workers have
the same bounds, so their buckets can be added."""
LATENESS_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bucket bounds for the lateness of retried records in seconds."""


class Histogram:
    """Counts of values per bucket. As in Prometheus, a value belongs to the first bucket with `value <= bound`."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True)
class Stats:
    """Totals since the worker started. Times are in seconds.

    The retry counters change only for records that failed or came from a managed topic, not for a record that succeeds
    on its first delivery.
    """

    done: int = 0
    failed: int = 0
    dropped: int = 0
    retried: int = 0
    """Records whose write to a retry topic was acknowledged."""
    produced: int = 0
    batches: int = 0
    poll_wait_seconds: float = 0.0
    ack_wait_seconds: float = 0.0
    commits: int = 0
    commit_failures: int = 0
    rebalances: int = 0
    lost_partitions: int = 0
    timeouts: int = 0
    abandoned: int = 0
    suppressed: int = 0
    """Duplicate copies of a retry publish that were skipped."""
    damaged_headers: int = 0
    """Deliveries with invalid or incomplete `kr-` headers, which were clamped or replaced."""
    unknown_policies: int = 0
    """Failed deliveries with an unknown policy revision. The current revision was applied instead."""
    retry_publishes: Counter[str] = field(default_factory=Counter)
    """Records published to retry topics, by the canonical delay of their topic."""
    failures: Counter[str] = field(default_factory=Counter)
    """Records sent to the failed topic, by the value of the header `kr-reason`."""
    error_classes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Records sent to the failed topic, by reason and error class. Bounded, as applications choose class names."""
    unreadable_offsets: int = 0
    """Offsets of unreadable data that were skipped at a user's request."""
    skipped: dict[Place, PassedBy] = field(default_factory=dict)
    """The last records and unreadable offsets that were skipped at a user's request."""
    handling: Histogram = field(default_factory=lambda: Histogram(HANDLING_BOUNDS_S))
    """Durations of handler calls in seconds."""
    lateness: Histogram = field(default_factory=lambda: Histogram(LATENESS_BOUNDS_S))
    """Seconds from the due time of a retried record to its admission for the handler."""
    busy: BusyTime = field(default_factory=BusyTime)
    """Time in which the loop's thread handled records. Executors measure their own busy time."""

    @property
    def handled(self) -> int:
        """Number of finished records, with any outcome. Any thread may read it."""
        return self.done + self.failed + self.dropped + self.retried

    def count(self, result: str) -> None:
        """Count one record with `result` (DONE, FAILED, DROPPED or RETRIED)."""
        setattr(self, result, getattr(self, result) + 1)

    def gave_up(self, reason: str, error_class: str = "") -> None:
        """Count a record sent to the failed topic, by reason and error class."""
        self.failures[reason] += 1
        kind = reason, error_class[:ERROR_CLASS_CHARACTERS_MAX]
        if kind not in self.error_classes and len(self.error_classes) >= ERROR_CLASSES_MAX:
            kind = reason, OTHER_CLASSES
        self.error_classes[kind] += 1

    def passed_by(self, place: Place, passed: PassedBy) -> None:
        """Count a record sent to the failed topic, or unreadable data skipped, at a user's request."""
        kept = {each: other for each, other in self.skipped.items() if each != place}
        while len(kept) >= RECORDS_MAX:
            del kept[next(iter(kept))]
        self.unreadable_offsets += 0 if passed.last_offset is None else passed.last_offset + 1 - place.offset
        self.skipped = {**kept, place: passed}


ERROR_CLASSES_MAX: Final = 100
ERROR_CLASS_CHARACTERS_MAX: Final = 128
OTHER_CLASSES: Final = "…"
"""Class name for all error classes after the first `ERROR_CLASSES_MAX`."""

# Outcomes of records. They are the names of the fields of `Stats` that count them.
DONE = "done"
FAILED = "failed"
DROPPED = "dropped"
RETRIED = "retried"
