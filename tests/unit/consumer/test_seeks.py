"""Seeks of partitions without a starting position, and of partitions that are being revoked."""

from __future__ import annotations

from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.coordinator.starts import Starts
from tests.unit.consumer.lab import ONE, OTHER, Lab


def test_seek_in_the_callback_that_takes_a_partition_away_before_it_has_a_start_ends_with_it() -> None:
    """Otherwise it is still read, and its records are handed out, while another member owns it."""
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.positions.stop_delivery([ONE])
    lab.positions.seek(ONE, 5)
    lab.positions.discard_partitions([ONE])
    assert lab.fetch.commands == [("assign", ONE, 5, -1), ("unassign", {ONE})]
    lab.fetch.deliver(ONE, 5, 2)
    assert lab.taken() == []


def test_lookup_from_before_a_seek_is_void_also_when_the_place_turns_out_to_be_out_of_range() -> None:
    """Otherwise the committed offset replaces the result for the sought position and skips the records in between."""
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
