"""The state on which sticky plans are computed: the number of partitions of each kind for every member.

A kind is a set of partitions that the planner need not distinguish: the same members may have them, at the same
distance. A million partitions become a handful of numbers; the actual partitions are chosen afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Spread:
    """Counts of partitions by member and kind, both numbered from 0.

    `sizes` counts the partitions of each kind, `takers` lists the members that may have them, in order, `far` those
    without a replica of that kind in their rack. `owned` is each member's previous share by kind, `given` its share in
    this plan; `load` is the sum of the latter.
    """

    sizes: Sequence[int]
    takers: Sequence[Sequence[int]]
    far: Sequence[frozenset[int]]
    owned: Sequence[dict[int, int]]
    given: list[dict[int, int]] = field(init=False)
    load: list[int] = field(init=False)
    kinds_of: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.given = [dict(owned) for owned in self.owned]
        self.load = [sum(owned.values()) for owned in self.owned]
        self.kinds_of = [[] for _ in self.owned]
        for kind, members in enumerate(self.takers):
            for member in members:
                self.kinds_of[member].append(kind)

    def give(self, kind: int, member: int, count: int) -> None:
        """Give `count` more partitions; a negative count takes them away."""
        given = self.given[member]
        given[kind] = given.get(kind, 0) + count
        if not given[kind]:
            del given[kind]
        self.load[member] += count

    def move(self, kind: int, giver: int, taker: int) -> None:
        self.give(kind, giver, -1)
        self.give(kind, taker, 1)

    def surplus(self, kind: int, member: int) -> int:
        """The member's partitions beyond those it owned before; these cost nothing to take away."""
        return self.given[member].get(kind, 0) - self.owned[member].get(kind, 0)


def place(spread: Spread) -> None:
    """Assign the free partitions to the members that may have them and have least, up to a common level.

    Kinds with few takers go first, as they have the least choice, and members near a replica before others.
    """
    handed = [0] * len(spread.sizes)
    for given in spread.given:
        for kind, count in given.items():
            handed[kind] += count

    def choice(kind: int) -> tuple[int, int]:
        return (len(spread.takers[kind]) - len(spread.far[kind]) or len(spread.takers[kind]), kind)

    for kind in sorted(range(len(spread.sizes)), key=choice):
        rest = spread.sizes[kind] - handed[kind]
        if rest:
            near = [member for member in spread.takers[kind] if member not in spread.far[kind]]
            _pour(spread, kind, near or spread.takers[kind], rest)


def _pour(spread: Spread, kind: int, members: Sequence[int], rest: int) -> None:
    """Raise the lowest of `members` evenly until `rest` is used up; the last few go to the first members."""
    ranked = sorted(members, key=spread.load.__getitem__)
    level, below, needed = spread.load[ranked[0]], 0, 0
    for below, member in enumerate(ranked):
        step = (spread.load[member] - level) * below
        if needed + step > rest:
            break
        needed, level = needed + step, spread.load[member]
    else:
        below = len(ranked)
    more, last = divmod(rest - needed, below)
    level += more
    for member in sorted(ranked[:below]):
        count = level - spread.load[member] + (last > 0)
        last -= last > 0
        if count:
            spread.give(kind, member, count)


def even_quotas(total: int, owned: Sequence[int]) -> list[int]:
    """Shares of `total` that differ by at most one, when every member may have every partition.

    The larger shares go to the members that own more than the smaller one, so that as little as possible moves, then to
    the first members.
    """
    base, larger = divmod(total, len(owned))
    quotas = [base] * len(owned)
    full = [member for member, count in enumerate(owned) if count > base]
    others = [member for member, count in enumerate(owned) if count <= base]
    for member in (*full, *others)[:larger]:
        quotas[member] += 1
    return quotas
