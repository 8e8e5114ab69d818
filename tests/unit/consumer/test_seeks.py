"""Seeks of partitions that have no start yet, and of those that go away."""

from __future__ import annotations

from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.coordinator.starts import Starts
from tests.unit.consumer.lab import ONE, OTHER, Lab


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


def test_lookup_from_before_a_seek_is_void_also_when_the_place_turns_out_to_be_out_of_range() -> None:
    """The committed offset won over what the sought place led to, and the records in between were skipped."""
    lab = Lab()
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    committed = lab.group.last
    lab.positions.seek(ONE, 5)
    lab.lose(ONE)
    committed.end(Starts({ONE: Start(100), OTHER: Start(7)}))
    lab.positions.take_starts()
    assert (lab.positions.position(ONE), lab.positions.position(OTHER)) == (None, 7)
    lab.found({ONE: 50})
    assert lab.positions.position(ONE) == 50
