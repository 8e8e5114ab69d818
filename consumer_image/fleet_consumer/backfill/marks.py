"""Records in hand, in memory that a handler's process shares with its task: what a death leaves behind.

A process that dies says nothing. So it notes each record before the handler has it, which costs one store; its task
reads the notes when the process is gone, or when they stand still for too long.
"""

from __future__ import annotations

import mmap
import os
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
    """Slots for so many calls, over a file that both processes map, and that gets its size here. One process writes.

    `cells` is the memory: a caller of one record at a time notes the next one of a call in slot 0 by its offset alone,
    at `OFFSET`.
    """

    OFFSET: Final = 2

    def __init__(self, file: int, slots: int) -> None:
        self._slots = slots
        size = CELLS * BYTES * slots
        os.ftruncate(file, size)
        self.cells = memoryview(mmap.mmap(file, size)).cast("q")

    def hold(self, records: Sequence[Record], slot: int = 0) -> None:
        """Note the call of a slot."""
        at = CELLS * slot
        self.cells[at + 1], self.cells[at + 2] = records[0].partition, records[0].offset
        self.cells[at + 3] = records[-1].offset
        self.cells[at] = 1

    def release(self, slot: int = 0) -> None:
        """The call of this slot is over."""
        self.cells[CELLS * slot] = 0

    def read(self) -> dict[int, InHand]:
        """The calls under way, by slot; for the other process."""
        cells = self.cells
        return {
            slot: InHand(cells[at + 1], cells[at + 2], max(cells[at + 2], cells[at + 3]))
            for slot in range(self._slots)
            if cells[at := CELLS * slot] == 1
        }
