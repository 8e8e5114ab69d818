"""Which failed records a run moves: what its filter takes, less what is in the ledger, less what goes round in circles.

Pure. Everything that headers say is taken as `retry.headers` reads it: strictly and clamped, never as a target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import blake2b
from typing import Final

from fleet_consumer.contract.redrive_config import Filter
from fleet_consumer.record import Headers, Record
from fleet_consumer.retry.headers import ERROR_CLASS, ERROR_MESSAGE, REASON, REDRIVE_SOURCE, Story, last_values, read
from fleet_consumer.retry.suppression import identity

KEY_BYTES_MAX: Final = 4 * 256
"""How much of a key is decoded to be searched: as many bytes as the characters searched can have."""


class Decision(Enum):
    """What a run does with one failed record."""

    MOVE = auto()
    """Selected."""
    MOVED_BEFORE = auto()
    """Selected, and moved already: by this run, before it was stopped and could commit."""
    GUARDED = auto()
    """Wanted by the filter, and left alone: this run has seen it before, or it came back too often."""
    KNOWN = auto()
    """Wanted by the filter, and in the ledger: moved by another run, or a copy of a record that was moved."""
    LEFT = auto()
    """Not what the filter wants."""


class Ledger:
    """What was ever moved, as the redrive topic tells it, and what this run adds.

    A record is known by its origin, how often it was redriven, and a digest of its bytes; so copies in the failed topic
    are known by each other. 16 bytes for each, about 100 MiB for a million. Of what this run moved the place in the
    failed topic is known besides: it tells the record itself from its copies.
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
        """Take in a record of the redrive topic. One without a redrive's headers was written by somebody else."""
        story = read(moved, now_ms=now_ms)
        if story.redrive_count > 0:
            mark = _mark(replace(story, redrive_count=story.redrive_count - 1), moved)
            if story.redrive_id == self._id:
                self._ours[mark] = last_values(moved.headers).get(REDRIVE_SOURCE)
            else:
                self._others.add(mark)

    def add(self, mark: bytes, record: Record) -> None:
        """This run moves `record`, or would if it moved any."""
        if mark not in self:
            self._unwritten.add(mark)
        self._ours[mark] = place(record).encode()

    def written(self, mark: bytes) -> None:
        """The redrive topic has acknowledged the record that this run moved."""
        self._unwritten.discard(mark)

    def __contains__(self, mark: bytes) -> bool:
        """Whether a record with this mark was moved or selected."""
        return mark in self._ours or mark in self._others

    def holds(self, mark: bytes) -> bool:
        """Whether the redrive topic has a record with this mark: it was put back, not only selected."""
        return mark in self and mark not in self._unwritten

    def moved_by_us(self, mark: bytes, record: Record) -> bool:
        """Whether it was `record` itself, in its place, that was moved with this mark, and by this run."""
        return self._ours.get(mark) == place(record).encode()


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision about a record, with the story that it was made on. `mark` is how the ledger knows the record."""

    record: Record
    decision: Decision
    story: Story
    mark: bytes


class Selection:
    """Decides record by record, in the order in which the failed topic is read."""

    def __init__(self, wanted: Filter, ledger: Ledger, *, redrive_id: str, max_redrives: int) -> None:
        self._wanted = wanted
        self._ledger = ledger
        self._id = redrive_id
        self._max_redrives = max_redrives

    def choose(self, record: Record, now_ms: int) -> Choice:
        """What to do with one record of the failed topic."""
        story = read(record, now_ms=now_ms)
        mark = _mark(story, record)
        return Choice(record, self._decide(record, story, mark), story, mark)

    def take(self, choice: Choice) -> None:
        """The record is among those that were selected: copies of it are not, from now on."""
        self._ledger.add(choice.mark, choice.record)

    def _decide(self, record: Record, story: Story, mark: bytes) -> Decision:
        if not matches(self._wanted, record):
            return Decision.LEFT
        if story.redrive_id == self._id or story.redrive_count >= self._max_redrives:
            return Decision.GUARDED
        if self._ledger.moved_by_us(mark, record):
            return Decision.MOVED_BEFORE
        return Decision.KNOWN if mark in self._ledger else Decision.MOVE


def place(record: Record) -> str:
    """Where a record lies in the failed topic."""
    return f"{record.partition}:{record.offset}"


def matches(wanted: Filter, record: Record) -> bool:
    """Whether a filter takes a record of the failed topic."""
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
    if not wanted.reasons and wanted.error is None:
        return True
    told = last_values(record.headers)
    if wanted.reasons and _text(told.get(REASON)) not in wanted.reasons:
        return False
    return wanted.error is None or wanted.error.found_in(error_line(record.headers))


def error_line(headers: Headers) -> str:
    """What `errorRegex` is searched in: the error's class and message, as far as the record still has them."""
    told = last_values(headers)
    return f"{_text(told.get(ERROR_CLASS))}: {_text(told.get(ERROR_MESSAGE))}"


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _mark(story: Story, record: Record) -> bytes:
    known = identity(replace(story, attempt=0), record.key, record.value)
    return blake2b(repr(known).encode(), digest_size=16).digest()
