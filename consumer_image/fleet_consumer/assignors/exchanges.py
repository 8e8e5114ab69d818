"""Minimum-cost exchanges between members: fewer moves and nearer replicas at unchanged counts.

The plan is a flow of partitions to members. Among flows with optimal counts, the best has no cycle of exchanges with
negative cost (Klein): such cycles are found by the Bellman-Ford algorithm and carried out. A partition in the wrong
rack costs more than any number of moves, as Java's sticky assignors prefer racks to stickiness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fleet_consumer.assignors.spread import Spread

FAR_COST: Final = 1 << 32
EFFORT: Final = 10_000_000
"""Limit of the exchanges examined, which takes seconds. The plan reached then is used: its counts are optimal from the
start, only a few moves too many may remain."""


def exchange(spread: Spread) -> None:
    """Carry out exchanges until none would save a move or bring a partition nearer."""
    effort = EFFORT
    arcs = 2 * sum(len(members) for members in spread.takers) + len(spread.load)
    while effort > 0:
        graph = _Graph(spread)
        cycles: list[list[int]] = []
        while not cycles:
            effort -= arcs
            if not graph.relax():
                return
            cycles = list(graph.cycles())
        for cycle in cycles:
            graph.carry_out(cycle)


class _Graph:
    """Nodes: members, then kinds, then one for each count of partitions that members have.

    Member to kind: the member gives one. Kind to member: the member takes one. The node of a count leads from the
    members with that count, one of whom gains one, to those with one more, one of whom loses one.
    """

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._first_kind = len(spread.load)
        self._first_count = self._first_kind + len(spread.sizes)
        by_count: dict[int, list[int]] = {}
        for member, count in enumerate(spread.load):
            by_count.setdefault(count, []).append(member)
        self._steps = [(by_count[count], by_count[count + 1]) for count in by_count if count + 1 in by_count]
        size = self._first_count + len(self._steps)
        self._distance = [0] * size
        self._before = list(range(size))

    def relax(self) -> bool:
        """One round over all exchanges; False: nothing improves, so no cycle is negative."""
        changed = False
        for kind, members in enumerate(self._spread.takers):
            changed |= self._relax_kind(kind, members)
        for node, (lower, upper) in enumerate(self._steps, self._first_count):
            nearest = min(lower, key=self._distance.__getitem__)
            changed |= self._reach(node, self._distance[nearest], nearest)
            for member in upper:
                changed |= self._reach(member, self._distance[node], node)
        return changed

    def _relax_kind(self, kind: int, members: Sequence[int]) -> bool:
        spread, node, far = self._spread, self._first_kind + kind, self._spread.far[kind]
        distance, changed = self._distance, False
        for member in members:
            given = spread.given[member].get(kind, 0)
            if given:
                lost = given <= spread.owned[member].get(kind, 0)
                cost = distance[member] + lost - (FAR_COST if member in far else 0)
                changed |= self._reach(node, cost, member)
        for member in members:
            returned = spread.given[member].get(kind, 0) < spread.owned[member].get(kind, 0)
            cost = distance[node] - returned + (FAR_COST if member in far else 0)
            changed |= self._reach(member, cost, node)
        return changed

    def _reach(self, node: int, distance: int, before: int) -> bool:
        if distance >= self._distance[node]:
            return False
        self._distance[node] = distance
        self._before[node] = before
        return True

    def cycles(self) -> Iterator[list[int]]:
        """The cycles among the predecessors, each starting at its first node: all are negative.

        They share no node, so carrying one out leaves the others valid.
        """
        seen_in = [-1] * len(self._before)
        for start in range(len(self._before)):
            node = start
            while seen_in[node] < 0:
                seen_in[node] = start
                node = self._before[node]
            if seen_in[node] == start and self._before[node] != node:
                seen_in[node] = len(self._before)
                cycle = [node]
                while (node := self._before[node]) != cycle[0]:
                    cycle.append(node)
                yield cycle[::-1]

    def carry_out(self, cycle: Sequence[int]) -> None:
        """Move partitions along a cycle, as many at once as have the same cost; a step in counts is made once."""
        arcs = [*zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
        gifts = [(member, kind - self._first_kind) for member, kind in arcs if self._is_kind(kind)]
        takes = [(member, kind - self._first_kind) for kind, member in arcs if self._is_kind(kind)]
        times = 1
        if max(cycle) < self._first_count:
            times = min([self._spare(*gift) for gift in gifts] + [self._lacking(*take) for take in takes])
        for member, kind in gifts:
            self._spread.give(kind, member, -times)
        for member, kind in takes:
            self._spread.give(kind, member, times)

    def _is_kind(self, node: int) -> bool:
        return self._first_kind <= node < self._first_count

    def _spare(self, member: int, kind: int) -> int:
        surplus = self._spread.surplus(kind, member)
        return surplus if surplus > 0 else self._spread.given[member][kind]

    def _lacking(self, member: int, kind: int) -> int:
        surplus = self._spread.surplus(kind, member)
        return -surplus if surplus < 0 else self._spread.sizes[kind]
