"""Offsets that are kept are those that were seen, in less memory."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_operator.planning.kept_offsets import KeptOffsets, Partition

SEEN = {("orders", 0): 2**62, ("orders", 1): 7}


def test_kept_offsets_are_those_that_were_seen_whatever_was_kept_before() -> None:
    first = KeptOffsets(SEEN, None)
    reordered = {key: SEEN[key] for key in reversed(SEEN)}
    before: list[Mapping[Partition, int] | None] = [None, SEEN, first]
    before += [KeptOffsets({("orders", 1): 1}, first), KeptOffsets({}, first)]
    for like in before:
        assert dict(KeptOffsets(SEEN, like)) == SEEN
        assert dict(KeptOffsets(reordered, like)) == SEEN
        assert not KeptOffsets({}, like)
    assert ("orders", 2) not in first
    assert first.get(("orders", 2)) is None
    assert first.keys() & {("orders", 1)} == {("orders", 1)}


def test_partitions_are_kept_once_for_polls_of_the_same_ones() -> None:
    first = KeptOffsets(SEEN, None)
    following = KeptOffsets({key: offset - 1 for key, offset in SEEN.items()}, first)
    assert following[("orders", 1)] == 6
    assert next(iter(following)) is next(iter(first))
