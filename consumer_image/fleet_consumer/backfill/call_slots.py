"""Coordinates of the records that are being handled, in memory shared by the handler's process and the task.

A crashed process cannot report. So the process writes each record's coordinates into shared memory before the handler
call, which costs one memory store. The task reads the coordinates after a crash, and to detect a call that hangs.
"""

import mmap
import os
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from fleet_consumer.record import Record

CELLS: Final = 5
"""Number of cells in a slot before the slot's list of offsets.

These cells hold a flag (1 during a call, else 0), the partition, the first and last offset of the call, and the length
of the list. The list is empty if the call has all offsets from the first to the last.
"""
BYTES: Final = 8


class InHand(NamedTuple):
    """The records of one handler call: their partition and their offsets."""

    partition: int
    offsets: Sequence[int]

    def __str__(self) -> str:
        return f"partition {self.partition} offsets {self.offsets[0]} to {self.offsets[-1]}"


class CallSlots:
    """Slots for `slots` concurrent calls of at most `longest` records each, in a file that both processes map. The
    constructor sets the file's size.

    Only the handler's process writes. For speed, a caller that handles single records uses slot 0 and updates only the
    offset, in `cells[OFFSET]`.
    """

    OFFSET: Final = 2

    def __init__(self, file: int, slots: int, longest: int) -> None:
        self._slots, self._longest = slots, longest
        self._size = CELLS + longest
        size = self._size * BYTES * slots
        os.ftruncate(file, size)
        self.cells = memoryview(mmap.mmap(file, size)).cast("q")

    def hold(self, records: Sequence[Record], slot: int = 0) -> None:
        at, cells = self._size * slot, self.cells
        first, last = records[0].offset, records[-1].offset
        cells[at + 1], cells[at + 2], cells[at + 3] = records[0].partition, first, last
        # Compaction and filters leave gaps of any size, so the first and last offset do not determine the others.
        listed = array("q", () if last - first < len(records) else [each.offset for each in records])
        cells[at + 4] = len(listed)
        cells[at + CELLS : at + CELLS + len(listed)] = listed
        cells[at] = 1

    def release(self, slot: int = 0) -> None:
        self.cells[self._size * slot] = 0

    def active_calls(self) -> dict[int, InHand]:
        cells, size = self.cells, self._size
        return {slot: self._held(at) for slot in range(self._slots) if cells[at := size * slot] == 1}

    def _held(self, at: int) -> InHand:
        cells = self.cells
        partition, first, last, listed = cells[at + 1 : at + CELLS]
        if listed:
            return InHand(partition, tuple(cells[at + CELLS : at + CELLS + listed]))
        # A read while `hold` writes may see the first offset of one call and the last of another. So the length of the
        # range is limited.
        return InHand(partition, range(first, min(max(first, last) + 1, first + self._longest)))
