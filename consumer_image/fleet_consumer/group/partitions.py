"""Partitions by topic, as a member owns them and as plans give them: what came, what went, what stays.

Values only; nothing here may know why something moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PartitionsByTopic = Mapping[str, tuple[int, ...]]
"""Partition numbers by topic; a topic without partitions is absent."""


def without(share: PartitionsByTopic, gone: Mapping[str, Sequence[int]]) -> PartitionsByTopic:
    """What of `share` is not in `gone`."""
    left = {}
    for topic, numbers in share.items():
        out = frozenset(gone.get(topic, ()))
        kept = tuple(number for number in numbers if number not in out) if out else numbers
        if kept:
            left[topic] = kept
    return left


def by_topic(partitions: Sequence[tuple[str, int]]) -> PartitionsByTopic:
    """Single partitions as a share."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    return {topic: tuple(found) for topic, found in numbers.items()}
