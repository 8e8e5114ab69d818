"""Seeks of partitions that have no start yet, and of those that go away."""

from __future__ import annotations

from tests.unit.consumer.lab import ONE, Lab


def test_seek_in_the_callback_that_takes_a_partition_away_before_it_has_a_start_ends_with_it() -> None:
    """It was read on, and its records were handed out, while another member owned it."""
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.positions.stop_delivery([ONE])
    lab.positions.seek(ONE, 5)
    lab.positions.forget([ONE])
    assert lab.fetch.commands == [("assign", ONE, 5, -1), ("unassign", {ONE})]
    lab.fetch.deliver(ONE, 5, 2)
    assert lab.taken() == []
