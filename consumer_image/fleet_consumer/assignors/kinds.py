"""Kinds of partitions: those of one kind may go to the same members, at the same distance.

With equal subscriptions and without racks there is one kind. One member that differs makes two or three; a kind is as
small as a topic only if every member subscribes to something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_consumer.assignors.interface import ClusterView
from fleet_consumer.assignors.racks import NOWHERE, partition_racks, racks_matter


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds of partitions; `of` maps a topic to one kind for all its partitions, or to one for each.

    `sizes` counts each kind's partitions, `takers` are the members (by index) that may have them, `far` those of the
    takers whose rack has no replica.
    """

    of: dict[str, int | list[int]]
    sizes: list[int]
    takers: list[list[int]]
    far: list[frozenset[int]]

    def tally(self, owned: Mapping[str, Sequence[int]]) -> dict[int, int]:
        """The number of partitions of each kind; kinds without any are left out."""
        if len(self.sizes) == 1:
            count = sum(map(len, owned.values()))
            return {0: count} if count else {}
        counts: dict[int, int] = {}
        for topic, numbers in owned.items():
            kind = self.of[topic]
            if isinstance(kind, int):
                counts[kind] = counts.get(kind, 0) + len(numbers)
            else:
                for number in numbers:
                    counts[kind[number]] = counts.get(kind[number], 0) + 1
        return {kind: count for kind, count in counts.items() if count}

    def split(self, topic: str, numbers: Sequence[int]) -> dict[int, Sequence[int]]:
        kind = self.of[topic]
        if isinstance(kind, int):
            return {kind: numbers}
        parts: dict[int, list[int]] = {}
        for number in numbers:
            parts.setdefault(kind[number], []).append(number)
        return dict(parts)


def sort_into_kinds(
    cluster: ClusterView, counts: Mapping[str, int], wanted: Sequence[frozenset[str]], racks: Sequence[str | None]
) -> Kinds:
    """The kinds of all partitions in `counts`; `wanted` and `racks` have one entry for each member."""
    classes: dict[frozenset[str], list[int]] = {}
    for member, topics in enumerate(wanted):
        classes.setdefault(topics, []).append(member)
    audience: dict[str, list[int]] = {topic: [] for topic in counts}
    for number, topics in enumerate(classes):
        for topic in topics:
            audience[topic].append(number)
    where = _racks_that_matter(cluster, counts, racks)
    kinds = Kinds({}, [], [], [])
    known: dict[tuple[tuple[int, ...], frozenset[str]], int] = {}
    by_class = list(classes.values())
    for topic, count in counts.items():
        who = tuple(audience[topic])
        spots = where[topic] if where else [NOWHERE]
        for spot in dict.fromkeys(spots):
            if (who, spot) not in known:
                known[who, spot] = len(known)
                takers = sorted(member for number in who for member in by_class[number])
                kinds.sizes.append(0)
                kinds.takers.append(takers)
                kinds.far.append(_far(takers, racks, spot) if where else frozenset())
        if where:
            each = [known[who, spot] for spot in spots]
            kinds.of[topic] = each
            for kind in each:
                kinds.sizes[kind] += 1
        else:
            kinds.of[topic] = known[who, NOWHERE]
            kinds.sizes[known[who, NOWHERE]] += count
    return kinds


def _racks_that_matter(
    cluster: ClusterView, counts: Mapping[str, int], racks: Sequence[str | None]
) -> dict[str, list[frozenset[str]]]:
    """The racks of every partition; empty if they make no difference."""
    members = {rack for rack in racks if rack}
    if not members or not cluster.racks:
        return {}
    where = {topic: partition_racks(cluster, topic) for topic in counts}
    return where if racks_matter(members, [spot for spots in where.values() for spot in spots]) else {}


def _far(takers: Sequence[int], racks: Sequence[str | None], spot: frozenset[str]) -> frozenset[int]:
    return frozenset(member for member in takers if (rack := racks[member]) and rack not in spot)
