"""Compact mapping from partitions to offsets: one integer for each partition. All samples of a group share the keys.

The operator keeps the offsets of about thirty polls for each of thousands of scaled groups. The offsets of an active
group change with each poll, and a dict for each poll would need one more tuple per partition.
"""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

Partition = tuple[str, int]

SIGNED_64: Final = "q"
"""Type code of `array` for Kafka's offsets."""


class KeptOffsets(Mapping[Partition, int]):
    """Offsets keyed by topic and partition. An instance equals any mapping with the same content."""

    __slots__ = ("_offsets", "_places")

    def __init__(self, offsets: Mapping[Partition, int], like: Mapping[Partition, int] | None) -> None:
        """Copy the offsets. `like`: the previous sample. Usually it has the same partitions, and both samples then
        share the keys."""
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
