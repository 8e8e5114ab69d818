"""Records in hand, in memory that a handler's process shares with its task: what a death leaves behind.

A process that dies says nothing. So it notes each record before the handler has it, which costs one store; its task
reads the notes when the process is gone, or when they stand still for too long.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Final, NamedTuple

from fleet_consumer.record import Record

CELLS: Final = 4
"""Numbers of a slot: 1 while it is used, and partition, first and last offset."""
BYTES: Final = 8


class InHand(NamedTuple):
    """The records of one call."""

    partition: int
    first: int
    last: int


class Marks:
    """Slots for so many calls, over a file that both processes map. One process writes."""

    OFFSET: Final = 2
    """The cell of the first offset in the memory that `begin` returns."""

    def __init__(self, file: int, slots: int) -> None:
        self._slots = slots
        self._cells = memoryview(mmap.mmap(file, size_of(slots))).cast("q")

    def begin(self, partition: int, first: int = -1, last: int = -1) -> memoryview[int]:
        """Note a call in the first slot; returns the memory in which each further record of it is noted by its offset,
        where no `last` is given."""
        cells = self._cells
        cells[1], cells[2], cells[3] = partition, first, last
        cells[0] = 1
        return cells

    def end(self) -> None:
        """The call of the first slot is over."""
        self._cells[0] = 0

    def hold(self, slot: int, records: Sequence[Record]) -> None:
        """Note the call of a slot."""
        at = CELLS * slot
        self._cells[at + 1], self._cells[at + 2] = records[0].partition, records[0].offset
        self._cells[at + 3] = records[-1].offset
        self._cells[at] = 1

    def release(self, slot: int) -> None:
        """The call of this slot is over."""
        self._cells[CELLS * slot] = 0

    def read(self) -> dict[int, InHand]:
        """The calls under way, by slot; for the other process."""
        cells = self._cells
        return {
            slot: InHand(cells[at + 1], cells[at + 2], max(cells[at + 2], cells[at + 3]))
            for slot in range(self._slots)
            if cells[at := CELLS * slot] == 1 and cells[at + 2] >= 0
        }

    def clear(self) -> None:
        """Forget all calls, for the next process."""
        for slot in range(self._slots):
            self.release(slot)


def size_of(slots: int) -> int:
    """The bytes of the file."""
    return CELLS * BYTES * slots
