"""Selection of failed records (filter, ledger, guard against cycles); a run's progress and rate limit. No I/O.

`retry.headers` parses the headers. The progress in a partition of the failed topic is an offset, which is committed in
the run's own group. The commit's metadata holds the offset at which the run ends, and the run's counts.
"""

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
from fleet_consumer.retry.headers import (
    ERROR_CLASS,
    ERROR_MESSAGE,
    REASON,
    REDRIVE_SOURCE,
    RetryHistory,
    last_values,
    read,
)
from fleet_consumer.retry.suppression import identity

KEY_BYTES_MAX: Final = 4 * 256
"""Maximum number of bytes of a record's key that the filter searches: 256 characters of at most four bytes each."""


class Decision(Enum):
    MOVE = auto()
    MOVED_BEFORE = auto()
    """Matched, but already moved by an earlier start of this run, which ended before it committed this progress."""
    GUARDED = auto()
    """Matched, but left in the failed topic: it failed again after this run moved it, or was redriven too often."""
    KNOWN = auto()
    """Matched, but already in the ledger: another run moved it, or it is a copy of a moved record."""
    UNMATCHED = auto()


class Ledger:
    """All records in the redrive topic, and the records that this run adds.

    A record's key in the ledger is a 16-byte digest of its origin, number of redrives, key and value. Several copies of
    a record in the failed topic have the same digest. A million records use about 100 MiB. For records of this run, the
    ledger also has the place in the failed topic, which distinguishes a record from its copies.
    """

    def __init__(self, redrive_id: str) -> None:
        self._id = redrive_id
        self._ours: dict[bytes, bytes | None] = {}
        self._others: set[bytes] = set()
        # Records selected by this run but not in the redrive topic: refused, not written yet, or selected in a dry run.
        self._unwritten: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._ours) + len(self._others)

    def record_moved(self, moved: Record, now_ms: int) -> None:
        """Add a record of the redrive topic. Records without a redrive's headers come from other producers and are
        ignored."""
        history = read(moved, now_ms=now_ms)
        if history.redrive_count > 0:
            digest = _digest(replace(history, redrive_count=history.redrive_count - 1), moved)
            if history.redrive_id == self._id:
                self._ours[digest] = last_values(moved.headers).get(REDRIVE_SOURCE)
            else:
                self._others.add(digest)

    def add(self, digest: bytes, record: Record) -> None:
        """Add a record selected by this run, even in a dry run, so that its copies are not selected."""
        if digest not in self:
            self._unwritten.add(digest)
        self._ours[digest] = place(record).encode()

    def written(self, digest: bytes) -> None:
        self._unwritten.discard(digest)

    def __contains__(self, digest: bytes) -> bool:
        """Return True if a record with this digest was moved or selected."""
        return digest in self._ours or digest in self._others

    def holds(self, digest: bytes) -> bool:
        """Return True if the redrive topic has a record with this digest. A selected record may not be written yet."""
        return digest in self and digest not in self._unwritten

    def moved_by_us(self, digest: bytes, record: Record) -> bool:
        """Return True if this run moved `record` itself and not a copy of it."""
        return self._ours.get(digest) == place(record).encode()


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision about a record. `digest` is the record's key in the ledger."""

    record: Record
    decision: Decision
    history: RetryHistory
    digest: bytes


class Selection:
    """Decides about records one by one, in the order of the failed topic."""

    def __init__(self, wanted: Filter, ledger: Ledger, *, redrive_id: str, max_redrives: int) -> None:
        self._wanted = wanted
        self._ledger = ledger
        self._id = redrive_id
        self._max_redrives = max_redrives

    def choose(self, record: Record, now_ms: int) -> Choice:
        history = read(record, now_ms=now_ms)
        digest = _digest(history, record)
        return Choice(record, self._decide(record, history, digest), history, digest)

    def _decide(self, record: Record, history: RetryHistory, digest: bytes) -> Decision:
        if not matches(self._wanted, record):
            return Decision.UNMATCHED
        if history.redrive_id == self._id or history.redrive_count >= self._max_redrives:
            return Decision.GUARDED
        if self._ledger.moved_by_us(digest, record):
            return Decision.MOVED_BEFORE
        return Decision.KNOWN if digest in self._ledger else Decision.MOVE


def place(record: Record) -> str:
    return f"{record.partition}:{record.offset}"


def matches(wanted: Filter, record: Record) -> bool:
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


def _digest(history: RetryHistory, record: Record) -> bytes:
    known = identity(replace(history, attempt=0), record.key, record.value)
    return blake2b(repr(known).encode(), digest_size=16).digest()


VERSION: Final = 1
COUNTED_LATER: Final = frozenset({"movedBefore", "failedAgain"})
"""Names of the counts that are missing in metadata of earlier versions."""
LOG_COUNTS: Final = {"start": "start", "putBack": "put_back"}
"""Names in the metadata, and the attributes of RedriveProgress that they store. They describe the log, and are missing
in metadata of earlier versions."""

BUFFER_BYTES: Final = 16 * 1024 * 1024
"""Approximate limit of the buffer in bytes, enough for one fetch of each of 64 partitions."""
RECORD_BYTES: Final = 1_024
"""Approximate overhead of a record's Python objects in bytes."""


@dataclass(slots=True)
class RedriveProgress:
    """Progress in one partition. `start` and `end` (exclusive) are the first and the end offset that the partition's
    log had when the run was first started.

    `put_back` is the number of examined records that are in the ledger (were moved by any run), including records that
    the filter does not match.
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
        """Return a lower bound of the log start plus the records put back. So at most `end - redriven_to` records of
        the partition were not put back, now and at any later time.

        `first` is the current log start. The result is the larger of `first` and `start + put_back`. The two are not
        added: when the log start advances by one offset, retention may have removed a record that was put back.
        """
        return max(first, self.start + self.put_back)

    def metadata(self) -> str:
        counts = {name: getattr(self, field) for name, field in (COUNTS | LOG_COUNTS).items()}
        return json.dumps({"v": VERSION, "end": self.end, **counts}, separators=(",", ":"))


def parse_metadata(text: str) -> RedriveProgress | None:
    """Return the progress from the metadata of an earlier start; None if a redrive did not write this metadata."""
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
    """Spaces records evenly, with at most `per_second` records per second (None: no limit). No burst follows a
    pause."""

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._free_at = float("-inf")

    def wait_s(self, count: int, now: float) -> float:
        """Return the seconds to wait, from the monotonic time `now`, before the next `count` records may be sent."""
        if self._per_second is None:
            return 0.0
        at = max(self._free_at, now)
        self._free_at = at + count / self._per_second
        return at - now


class RoundRobinBuffer:
    """Buffers records of several partitions, and returns them in turn, one of each partition. This spreads the load
    over all retry workers. The caller drains the buffer when it is `full`."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._bytes >= self._buffer_bytes

    def put(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        queue = self._queues.setdefault(partition, deque())
        for record in records:
            queue.append(record)
            self._bytes += _size(record)
        if not queue:
            del self._queues[partition]

    def drain(self) -> Iterator[tuple[TopicPartition, Record]]:
        """Remove and yield all records, in rounds of one record per partition."""
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
    # The first hundred headers are enough for an estimate.
    return RECORD_BYTES + own + sum(len(name) + len(value or b"") for name, value in islice(record.headers, 100))
