"""Selection of failed records (filter, ledger, the guard against cycles), and progress and pace of a run. Pure.

Headers are read as in `retry.headers`: strictly and clamped, never as a target. Progress is an offset in a partition of
the failed topic, which the run's own group stores; its metadata holds the run's end and its counts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from fleet_consumer.contract.redrive_config import COUNTS, Filter
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.headers import ERROR_CLASS, ERROR_MESSAGE, REASON, REDRIVE_SOURCE, Story, last_values, read
from fleet_consumer.retry.suppression import identity

KEY_BYTES_MAX: Final = 4 * 256
"""The most bytes of a key that are searched: as many as the characters searched can have."""


class Decision(Enum):
    """The fate of one failed record in a run."""

    MOVE = auto()
    """Selected."""
    MOVED_BEFORE = auto()
    """Selected and already moved: by this run, before it was stopped and could commit."""
    GUARDED = auto()
    """Matched, but left alone: this run has seen it before, or it came back too often."""
    KNOWN = auto()
    """Matched, and in the ledger: moved by another run, or a copy of a moved record."""
    UNMATCHED = auto()
    """Not matched by the filter."""


class Ledger:
    """All records ever moved, from the redrive topic, and those that this run adds.

    A record's mark is a digest of its origin, its number of redrives and its bytes, so that copies in the failed topic
    share it. 16 bytes each, about 100 MiB for a million. For records moved by this run the place in the failed topic is
    kept too: it distinguishes the record from its copies.
    """

    def __init__(self, redrive_id: str) -> None:
        self._id = redrive_id
        self._ours: dict[bytes, bytes | None] = {}
        self._others: set[bytes] = set()
        # Selected by this run, and not in the redrive topic (yet): refused, waiting for its batch, or of a dry run.
        self._unwritten: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._ours) + len(self._others)

    def note(self, moved: Record, now_ms: int) -> None:
        """Add a record of the redrive topic. One without a redrive's headers was written by somebody else."""
        story = read(moved, now_ms=now_ms)
        if story.redrive_count > 0:
            mark = _mark(replace(story, redrive_count=story.redrive_count - 1), moved)
            if story.redrive_id == self._id:
                self._ours[mark] = last_values(moved.headers).get(REDRIVE_SOURCE)
            else:
                self._others.add(mark)

    def add(self, mark: bytes, record: Record) -> None:
        """Add `record`, which this run moves, or would move in a dry run."""
        if mark not in self:
            self._unwritten.add(mark)
        self._ours[mark] = place(record).encode()

    def written(self, mark: bytes) -> None:
        self._unwritten.discard(mark)

    def __contains__(self, mark: bytes) -> bool:
        """True if a record with this mark was moved or selected."""
        return mark in self._ours or mark in self._others

    def holds(self, mark: bytes) -> bool:
        """True if the redrive topic has a record with this mark: it was put back, not only selected."""
        return mark in self and mark not in self._unwritten

    def moved_by_us(self, mark: bytes, record: Record) -> bool:
        """True if this run moved `record` itself, not a copy."""
        return self._ours.get(mark) == place(record).encode()


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision about a record, and its story. `mark` identifies the record in the ledger."""

    record: Record
    decision: Decision
    story: Story
    mark: bytes


class Selection:
    """Decisions record by record, in the order of the failed topic."""

    def __init__(self, wanted: Filter, ledger: Ledger, *, redrive_id: str, max_redrives: int) -> None:
        self._wanted = wanted
        self._ledger = ledger
        self._id = redrive_id
        self._max_redrives = max_redrives

    def choose(self, record: Record, now_ms: int) -> Choice:
        """Decide about one record of the failed topic."""
        story = read(record, now_ms=now_ms)
        mark = _mark(story, record)
        return Choice(record, self._decide(record, story, mark), story, mark)

    def take(self, choice: Choice) -> None:
        """Note a selected record; copies of it are not selected from now on."""
        self._ledger.add(choice.mark, choice.record)

    def _decide(self, record: Record, story: Story, mark: bytes) -> Decision:
        if not matches(self._wanted, record):
            return Decision.UNMATCHED
        if story.redrive_id == self._id or story.redrive_count >= self._max_redrives:
            return Decision.GUARDED
        if self._ledger.moved_by_us(mark, record):
            return Decision.MOVED_BEFORE
        return Decision.KNOWN if mark in self._ledger else Decision.MOVE


def place(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


def matches(wanted: Filter, record: Record) -> bool:
    """True if the filter matches a record of the failed topic."""
    if wanted.places is not None and record.offset not in wanted.places.get(record.partition, ()):
        return False
    if wanted.from_ms is not None and record.timestamp < wanted.from_ms:
        return False
    if wanted.to_ms is not None and record.timestamp >= wanted.to_ms:
        return False
    if wanted.key is not None:
        key = record.key
        if key is None or not wanted.key.found_in(key[:KEY_BYTES_MAX].decode("utf-8", "replace")):
            return False
    if not wanted.reasons and not wanted.error_classes and wanted.error is None:
        return True
    values = last_values(record.headers)
    if wanted.reasons and _text(values.get(REASON)) not in wanted.reasons:
        return False
    error_class = _text(values.get(ERROR_CLASS))
    named = (error_class == name or error_class.endswith(f".{name}") for name in wanted.error_classes)
    if wanted.error_classes and not any(named):
        return False
    error = f"{error_class}: {_text(values.get(ERROR_MESSAGE))}"
    return wanted.error is None or wanted.error.found_in(error)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _mark(story: Story, record: Record) -> bytes:
    known = identity(replace(story, attempt=0), record.key, record.value)
    return blake2b(repr(known).encode(), digest_size=16).digest()


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
