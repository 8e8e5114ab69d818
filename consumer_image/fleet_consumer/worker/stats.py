"""A worker's counters. Plain numbers, moved once for each batch, not once for each record.

Written by the consume loop's thread only; read by the metrics page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.skips import RECORDS_MAX, PassedBy, Place
from fleet_consumer.handlers.executor import BusyTime

HANDLING_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper bounds of the buckets of handler calls: the default time-out is 60 s. Equal for all, so that they add up."""
LATENESS_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets in which retried records are counted by how late they were handed out."""


class Histogram:
    """Counts of values in buckets, as Prometheus knows them: a value belongs to the first bound not below it."""

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
    """Totals since the worker started; times in seconds.

    What is counted about retries is counted on the way of records that failed or that come from a managed topic; a
    record that succeeds on its first delivery touches none of it.
    """

    done: int = 0
    failed: int = 0
    dropped: int = 0
    retried: int = 0
    """Records that went on to a retry topic, once that was acknowledged."""
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
    """Copies of a hop that were passed over."""
    damaged_headers: int = 0
    """Deliveries whose `kr-` headers were not ours, or not all of them, and were clamped or replaced."""
    unknown_policies: int = 0
    """Failed deliveries that named a policy revision that is unknown; they followed the current one."""
    hops: dict[str, int] = field(default_factory=dict)
    """Hops written, by the canonical delay of their topic."""
    failures: dict[str, int] = field(default_factory=dict)
    """Records sent to the failed topic, by the value of their `kr-reason`."""
    error_classes: dict[tuple[str, str], int] = field(default_factory=dict)
    """The same by reason and class of the error. Applications name their errors, so only so many are kept apart."""
    unreadable_offsets: int = 0
    """Offsets of unreadable data that were passed by on request."""
    skipped: dict[Place, PassedBy] = field(default_factory=dict)
    """The last records, and data that could not be read, that were passed by on request."""
    handling: Histogram = field(default_factory=lambda: Histogram(HANDLING_BOUNDS_S))
    """Seconds that calls of the handler took."""
    lateness: Histogram = field(default_factory=lambda: Histogram(LATENESS_BOUNDS_S))
    """Seconds from when a retried record was due to when it was handed to the handler."""
    busy: BusyTime = field(default_factory=BusyTime)
    """Time for which runs of records were handled on the loop's own thread. Executors keep their own."""

    @property
    def handled(self) -> int:
        """Records whose handling ended, whatever became of them. Any thread."""
        return self.done + self.failed + self.dropped + self.retried

    def count(self, result: str) -> None:
        """One record more came to `result` (DONE, FAILED, DROPPED or RETRIED)."""
        if result == DONE:
            self.done += 1
        elif result == FAILED:
            self.failed += 1
        elif result == RETRIED:
            self.retried += 1
        else:
            self.dropped += 1

    def hopped(self, delay: str) -> None:
        """A record was sent to the retry topic of this canonical delay."""
        self.hops[delay] = self.hops.get(delay, 0) + 1

    def gave_up(self, reason: str, error_class: str = "") -> None:
        """A record was sent to the failed topic for this reason, after an error of this class."""
        self.failures[reason] = self.failures.get(reason, 0) + 1
        kind = reason, error_class[:ERROR_CLASS_CHARACTERS_MAX]
        if kind not in self.error_classes and len(self.error_classes) >= ERROR_CLASSES_MAX:
            kind = reason, OTHER_CLASSES
        self.error_classes[kind] = self.error_classes.get(kind, 0) + 1

    def passed_by(self, place: Place, passed: PassedBy) -> None:
        """The record at this place was sent to the failed topic on request, or what could not be read was passed by."""
        kept = {each: other for each, other in self.skipped.items() if each != place}
        while len(kept) >= RECORDS_MAX:
            del kept[next(iter(kept))]
        self.unreadable_offsets += 0 if passed.last_offset is None else passed.last_offset + 1 - place.offset
        self.skipped = {**kept, place: passed}


ERROR_CLASSES_MAX: Final = 100
ERROR_CLASS_CHARACTERS_MAX: Final = 128
OTHER_CLASSES: Final = "…"
"""Stands for all classes beyond the first hundred."""

DONE = "done"
FAILED = "failed"
DROPPED = "dropped"
RETRIED = "retried"
