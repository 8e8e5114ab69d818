"""Selection of failed records: filter, ledger, and the guard against cycles.

Pure. Headers are read as in `retry.headers`: strictly and clamped, never as a target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import blake2b
from typing import Final

from fleet_consumer.contract.redrive_config import Filter
from fleet_consumer.record import Record
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
        """Mark a record as acknowledged by the redrive topic."""
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
