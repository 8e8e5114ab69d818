"""Notes of records in hand, as the other process reads them."""

from __future__ import annotations

from tempfile import TemporaryFile

import pytest

from fleet_consumer.backfill.marks import Marks
from fleet_consumer.record import Record


@pytest.mark.parametrize("offsets", [[7], [7, 8, 9], [7, 9], [7, 10**6, 10**15], [7, 9, 11, 10**15]])
def test_records_of_a_call_are_named_one_by_one_whatever_is_missing_between_them(offsets: list[int]) -> None:
    """Of a compacted log a batch has few of the offsets between its ends: those may be more than memory can hold."""
    with TemporaryFile() as file:
        ours, theirs = Marks(file.fileno(), 3, 4), Marks(file.fileno(), 3, 4)
        for slot in (2, 1):
            ours.hold([Record("t", 5, offset, 0, None, b"") for offset in offsets], slot)
        held = [(slot, each.partition, list(each.offsets)) for slot, each in theirs.read().items()]
        assert held == [(slot, 5, offsets) for slot in (1, 2)]
        ours.hold([Record("t", 5, offset, 0, None, b"") for offset in (1, 2)], 1)
        ours.release(2)
        assert [(slot, list(each.offsets)) for slot, each in theirs.read().items()] == [(1, [1, 2])]


def test_record_of_a_single_call_is_noted_by_its_offset_alone() -> None:
    with TemporaryFile() as file:
        ours, theirs = Marks(file.fileno(), 1, 500), Marks(file.fileno(), 1, 500)
        ours.hold([Record("t", 5, 7, 0, None, b"")])
        ours.cells[Marks.OFFSET] = 10**15
        assert [list(each.offsets) for each in theirs.read().values()] == [[10**15]]
