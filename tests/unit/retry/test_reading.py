"""A commit continues a reading only if a worker made it for its offset; a reading's id reaches every hop of it."""

from __future__ import annotations

import pytest

from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.retry.headers import Reading, carried_on, continued

ID = "0123456789abcdef"


@pytest.mark.parametrize("reading", [Reading(), Reading(ID), Reading(ID, 500)])
def test_a_reading_is_continued_from_its_mark(reading: Reading) -> None:
    assert continued(OffsetAndMetadata(120, -1, reading.mark(120))) == reading
    assert continued(OffsetAndMetadata(120, -1, f"fleet-breaker=open;until=5 {reading.mark(120)}")) == reading


def test_a_bounded_reading_is_over_at_its_end() -> None:
    reading = Reading(ID, 500)
    assert (reading.at(499), reading.at(500)) == (ID, None)
    assert continued(OffsetAndMetadata(500, -1, reading.mark(500))) == Reading()


@pytest.mark.parametrize(
    "committed",
    [
        None,
        OffsetAndMetadata(120),
        OffsetAndMetadata(120, -1, "reset by somebody"),
        OffsetAndMetadata(120, -1, "fleet-reset=0123456789abcdef"),
        OffsetAndMetadata(120, -1, "fleet-breaker=open;until=5"),
        OffsetAndMetadata(120, -1, f"fleet-reading=120;id={ID.upper()}"),
        OffsetAndMetadata(120, -1, "fleet-reading=120;until=5"),
        OffsetAndMetadata(120, -1, f"fleet-reading=120;id={ID};until="),
        OffsetAndMetadata(120, -1, "fleet-reading=" + "1" * 4000),
    ],
)
def test_a_commit_without_our_mark_continues_nothing(committed: OffsetAndMetadata | None) -> None:
    assert continued(committed) is None


def test_an_offset_that_was_moved_with_its_metadata_continues_nothing() -> None:
    assert continued(OffsetAndMetadata(20, -1, Reading(ID).mark(120))) is None


def test_hop_reading_derives_from_record_and_partition() -> None:
    assert carried_on(None, None) is None
    assert carried_on(ID, None) == carried_on(None, ID) == ID
    both = carried_on(ID, "f" * 16)
    assert both == carried_on(ID, "f" * 16)
    assert both not in (ID, "f" * 16, carried_on("f" * 16, ID))
    assert both is not None
    assert continued(OffsetAndMetadata(1, -1, Reading(both).mark(1))) == Reading(both)
