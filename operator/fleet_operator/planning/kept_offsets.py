"""Offsets of partitions that are kept for a while: one number each, and the partitions once for all samples of a group.

A group that moves has other offsets at each look, in a dict of its own with a tuple for each partition. Thousands of
scaled groups keep some thirty looks each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

Partition = tuple[str, int]

SIGNED_64: Final = "q"
"""Kafka's offsets, as `array` calls their type."""


class KeptOffsets(Mapping[Partition, int]):
    """Offsets by topic and partition; equal to any mapping of the same content."""

    __slots__ = ("_offsets", "_places")

    def __init__(self, offsets: Mapping[Partition, int], like: Mapping[Partition, int] | None) -> None:
        """`like` are those of the sample before: of the same partitions most of the time."""
        if not isinstance(like, KeptOffsets) or like._places.keys() != offsets.keys():
            self._places: Mapping[Partition, int] = {key: place for place, key in enumerate(offsets)}
        else:
            self._places = like._places
        self._offsets = array(SIGNED_64, (offsets[key] for key in self._places))

    def __getitem__(self, key: Partition) -> int:
        return self._offsets[self._places[key]]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
