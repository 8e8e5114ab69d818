"""Call slots with the records of running calls, as the task's process reads them."""

from __future__ import annotations

from tempfile import TemporaryFile

import pytest

from fleet_consumer.backfill.call_slots import CallSlots
from fleet_consumer.record import Record


@pytest.mark.parametrize("offsets", [[7], [7, 8, 9], [7, 9], [7, 10**6, 10**15], [7, 9, 11, 10**15]])
def test_records_of_a_call_are_named_one_by_one_whatever_is_missing_between_them(offsets: list[int]) -> None:
    """A batch of a compacted topic may have few of the offsets in its range, and all of these may not fit in memory."""
    with TemporaryFile() as file:
        ours, theirs = CallSlots(file.fileno(), 3, 4), CallSlots(file.fileno(), 3, 4)
        for slot in (2, 1):
            ours.hold([Record("t", 5, offset, 0, None, b"") for offset in offsets], slot)
        held = [(slot, each.partition, list(each.offsets)) for slot, each in theirs.active_calls().items()]
        assert held == [(slot, 5, offsets) for slot in (1, 2)]
        ours.hold([Record("t", 5, offset, 0, None, b"") for offset in (1, 2)], 1)
        ours.release(2)
        assert [(slot, list(each.offsets)) for slot, each in theirs.active_calls().items()] == [(1, [1, 2])]


def test_caller_of_single_records_writes_only_the_offset() -> None:
    with TemporaryFile() as file:
        ours, theirs = CallSlots(file.fileno(), 1, 500), CallSlots(file.fileno(), 1, 500)
        ours.hold([Record("t", 5, 7, 0, None, b"")])
        ours.cells[CallSlots.OFFSET] = 10**15
        assert [list(each.offsets) for each in theirs.active_calls().values()] == [[10**15]]
