"""Records in hand, in memory that a handler's process shares with its task: what a death leaves behind.

A process that dies says nothing. So it notes each record before the handler has it, which costs one store; its task
reads the notes when the process is gone, or when they stand still for too long.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from fleet_consumer.record import Record

CELLS: Final = 5
"""Numbers of a slot before its offsets: 1 while it is used; partition, first and last offset; the number of offsets
that are listed behind, 0 where none is missing between the first and the last one."""
BYTES: Final = 8


class InHand(NamedTuple):
    """The records of one call."""

    partition: int
    offsets: Sequence[int]

    def __str__(self) -> str:
        return f"partition {self.partition} offsets {self.offsets[0]} to {self.offsets[-1]}"


class Marks:
    """Slots for so many calls of so many records at most, over a file that both processes map, and that gets its size
    here. One process writes.

    `cells` is the memory: a caller of one record at a time notes the next one of a call in slot 0 by its offset alone,
    at `OFFSET`.
    """

    OFFSET: Final = 2

    def __init__(self, file: int, slots: int, longest: int) -> None:
        self._slots, self._longest = slots, longest
        self._size = CELLS + longest
        size = self._size * BYTES * slots
        os.ftruncate(file, size)
        self.cells = memoryview(mmap.mmap(file, size)).cast("q")

    def hold(self, records: Sequence[Record], slot: int = 0) -> None:
        """Note the call of a slot."""
        at, cells = self._size * slot, self.cells
        first, last = records[0].offset, records[-1].offset
        cells[at + 1], cells[at + 2], cells[at + 3] = records[0].partition, first, last
        # Compaction and a filter leave gaps, which may have any size.
        listed = array("q", () if last - first < len(records) else [each.offset for each in records])
        cells[at + 4] = len(listed)
        cells[at + CELLS : at + CELLS + len(listed)] = listed
        cells[at] = 1

    def release(self, slot: int = 0) -> None:
        """The call of this slot is over."""
        self.cells[self._size * slot] = 0

    def read(self) -> dict[int, InHand]:
        """The calls under way, by slot; for the other process."""
        cells, size = self.cells, self._size
        return {slot: self._held(at) for slot in range(self._slots) if cells[at := size * slot] == 1}

    def _held(self, at: int) -> InHand:
        cells = self.cells
        partition, first, last, listed = cells[at + 1 : at + CELLS]
        if listed:
            return InHand(partition, tuple(cells[at + CELLS : at + CELLS + listed]))
        # What is read while a call begins may be of two: no call has more records than this.
        return InHand(partition, range(first, min(max(first, last) + 1, first + self._longest)))
