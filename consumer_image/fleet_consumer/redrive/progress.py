"""Progress and pace of a run: the metadata of its offsets in its own group, rate limit, and turns of the partitions.

An offset is the read position in a partition of the failed topic; its metadata holds the run's end and its counts.
Pure.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from fleet_consumer.contract.redrive_config import COUNTS
from fleet_consumer.record import Record, TopicPartition

VERSION: Final = 1
COUNTED_LATER: Final = frozenset({"movedBefore", "failedAgain"})
"""Counts that earlier versions do not have."""
LOG_COUNTS: Final = {"start": "start", "putBack": "put_back"}
"""Numbers about the log itself, by their names in metadata; earlier versions do not have them."""

BUFFER_BYTES: Final = 16 * 1024 * 1024
"""The approximate limit of the buffer: a fetch of each of 64 partitions."""
RECORD_BYTES: Final = 1_024
"""The approximate overhead of a record: objects for itself, its headers and its place."""


@dataclass(slots=True)
class RedriveProgress:
    """One partition: the run ends before offset `end`, which was the partition's end at the run's first start.

    `start` was the log start then. `put_back` counts the examined records that are in the ledger, whatever the filter.
    """

    end: int
    selected: int = 0
    moved: int = 0
    guarded: int = 0
    moved_before: int = 0
    failed_again: int = 0
    start: int = 0
    put_back: int = 0

    def redriven_to(self, first: int) -> int:
        """A lower bound of "log start plus records put back", now and at any later time.

        `first` is the log start now. Retention may since have removed as many of the counted records as the log start
        has moved, and no more. So at most `end - redriven_to` records of the partition were not put back.
        """
        return max(first, self.start + self.put_back)

    def metadata(self) -> str:
        counts = {name: getattr(self, field) for name, field in (COUNTS | LOG_COUNTS).items()}
        return json.dumps({"v": VERSION, "end": self.end, **counts}, separators=(",", ":"))


def parse_metadata(text: str) -> RedriveProgress | None:
    """Read the metadata of an earlier start; None if it is not ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("v") != VERSION:
        return None
    later = COUNTED_LATER | LOG_COUNTS.keys()
    counts = {field: found.get(name, 0 if name in later else None) for name, field in (COUNTS | LOG_COUNTS).items()}
    if not all(map(_is_count, (found.get("end"), *counts.values()))):
        return None
    return RedriveProgress(found["end"], **counts)  # type: ignore[arg-type]  # checked just above


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class RateLimit:
    """Even spacing of records: at most `per_second` of them, None: no limit.

    Unused time is not made up for, or a pause would end in a burst.
    """

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._free_at = float("-inf")

    def wait_s(self, count: int, now: float) -> float:
        """The seconds to wait, from the monotonic time `now` on, before `count` records may go."""
        if self._per_second is None:
            return 0.0
        at = max(self._free_at, now)
        self._free_at = at + count / self._per_second
        return at - now


class Turns:
    """Round-robin buffer of the partitions' records, so that the load spreads over all retry workers.

    The caller checks `full` before reading on.
    """

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._bytes = 0

    @property
    def full(self) -> bool:
        """True if something should be taken before more is put in."""
        return self._bytes >= self._buffer_bytes

    def put(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        queue = self._queues.setdefault(partition, deque())
        for record in records:
            queue.append(record)
            self._bytes += _size(record)
        if not queue:
            del self._queues[partition]

    def take(self) -> Iterator[tuple[TopicPartition, Record]]:
        """Take all records, one of each partition at a time."""
        while self._queues:
            for partition in list(self._queues):
                queue = self._queues[partition]
                record = queue.popleft()
                self._bytes -= _size(record)
                if not queue:
                    del self._queues[partition]
                yield partition, record


def _size(record: Record) -> int:
    own = len(record.key or b"") + len(record.value or b"")
    # A record may have any number of headers: the first hundred say enough.
    return RECORD_BYTES + own + sum(len(name) + len(value or b"") for name, value in islice(record.headers, 100))
