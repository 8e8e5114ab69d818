"""Partition counts of sticky plans: how many partitions of each kind each member gets. Balance takes precedence over
distance, and distance over moves.

Distance means whether a member is near a replica of its partition or not. A kind is a set of partitions that the
planner need not distinguish: the same members may own them, at the same distance. So a million partitions become a few
numbers; the actual partitions are chosen afterwards.

`steal` balances counts as far as subscriptions allow: members with fewer partitions take from other members, along
chains if necessary. Member u can give to member v if u has a partition that v may have. The counts are optimal if no
chain leads from one member to another that has at least two partitions fewer (Harvey et al., semi-matchings). Members
are settled in the order of their counts, the lowest first. Suppose no chain leads to the lowest member from a member
with at least two partitions more. Then the lowest member and all members with a chain to it are settled. They are never
visited again. So all searches together visit each kind a few times, not once per member.

`exchange` then reduces distance and moves without changing the balance. The plan is a flow of partitions to members.
Among flows with optimal counts, the cheapest flow has no cycle of exchanges with negative cost (Klein); the
Bellman-Ford algorithm finds such cycles. A partition in the wrong rack costs more than any number of moves, as in
Java's sticky assignors.

Decision: docs/decisions/0006-sticky-plans.md.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(slots=True)
class Spread:
    """Partition counts for each member and kind. Members and kinds are numbered from 0.

    - `sizes`: number of partitions of each kind.
    - `takers`: for each kind, the members that may own its partitions, in order.
    - `far`: for each kind, the takers whose rack has no replica of its partitions.
    - `owned`: for each member, the partitions of each kind that it had before this plan.
    - `given`: for each member, the partitions of each kind that it gets in this plan.
    - `load`: for each member, the sum of `given`.
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
        """Give `count` more partitions of a kind to a member; a negative count takes partitions away."""
        given = self.given[member]
        given[kind] = given.get(kind, 0) + count
        if not given[kind]:
            del given[kind]
        self.load[member] += count

    def move(self, kind: int, giver: int, taker: int) -> None:
        self.give(kind, giver, -1)
        self.give(kind, taker, 1)

    def surplus(self, kind: int, member: int) -> int:
        """Return how many more partitions of this kind the member has than before (negative: fewer). Taking a surplus
        away does not count as a move."""
        return self.given[member].get(kind, 0) - self.owned[member].get(kind, 0)


def place(spread: Spread) -> None:
    """Assign the free partitions to the members with the fewest partitions, up to a common level.

    Kinds with few possible members are assigned first. If any of these members are near a replica, only they get
    partitions of the kind.
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
    """Give `rest` partitions to the members with the lowest counts, evenly; the last few go to the first members."""
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
    """Divide `total` into shares that differ by at most one, for members that may all own every partition. The larger
    shares go first to members that own more than the smaller share, so that the fewest partitions move."""
    base, larger = divmod(total, len(owned))
    quotas = [base] * len(owned)
    full = [member for member, count in enumerate(owned) if count > base]
    others = [member for member, count in enumerate(owned) if count <= base]
    for member in (*full, *others)[:larger]:
        quotas[member] += 1
    return quotas


Path = dict[int, tuple[int, int]]
"""The chains that a search found. Maps each member that it reached to the kind of the partition that this member gives,
and to the member that receives it."""


def steal(spread: Spread) -> None:
    """Move partitions along chains until no chain improves the balance of the counts."""
    load = spread.load
    settled = [False] * len(load)
    queue = [(count, member) for member, count in enumerate(load)]
    heapq.heapify(queue)
    while queue:
        count, member = heapq.heappop(queue)
        if settled[member] or count != load[member]:
            continue
        if count >= max(load) - 1:
            return
        for changed in _take_directly(spread, member, settled):
            heapq.heappush(queue, (load[changed], changed))
        if load[member] > count:
            continue
        reached, richest = _search(spread, member, settled)
        if richest is None:
            for other in reached:
                settled[other] = True
            settled[member] = True
            continue
        giver = richest
        while giver != member:
            kind, taker = reached[giver]
            spread.move(kind, giver, taker)
            giver = taker
        for changed in (member, richest):
            heapq.heappush(queue, (load[changed], changed))


def _take_directly(spread: Spread, member: int, settled: list[bool]) -> set[int]:
    """Give this member partitions from the members with the highest counts. Returns the members whose counts
    changed."""
    load, mine = spread.load, frozenset(spread.kinds_of[member])
    givers = [
        (-load[other], other)
        for other, given in enumerate(spread.given)
        if load[other] >= load[member] + 2 and not settled[other] and not mine.isdisjoint(given)
    ]
    heapq.heapify(givers)
    changed = set()
    while givers and -givers[0][0] >= load[member] + 2:
        giver = givers[0][1]
        changed |= {giver, member}
        spread.move(_cheapest(spread, mine & spread.given[giver].keys(), giver, member), giver, member)
        if mine.isdisjoint(spread.given[giver]):
            heapq.heappop(givers)
        else:
            heapq.heapreplace(givers, (-load[giver], giver))
    return changed


def _cheapest(spread: Spread, kinds: Iterable[int], giver: int, taker: int) -> int:
    """Return the best kind to move from the giver to the taker. Prefers, in this order, a kind

    - of which the giver has more partitions than before;
    - of which a replica is near the taker;
    - of which the taker has fewer partitions than before;
    - of which the giver has the most partitions.
    """
    return min(
        kinds,
        key=lambda kind: (
            spread.surplus(kind, giver) <= 0,
            taker in spread.far[kind],
            spread.surplus(kind, taker) >= 0,
            -spread.given[giver][kind],
            kind,
        ),
    )


def _search(spread: Spread, member: int, settled: list[bool]) -> tuple[Path, int | None]:
    """Search the members from which chains lead to `member`, the shortest chains first. Returns these members and the
    giver: the member from which partitions should move.

    The giver has at least two partitions more than `member`. Among such members with the shortest chain, it has the
    most partitions. The giver is None if no chain leads from such a member.
    """
    load = spread.load
    holders = _holders(spread)
    reached: Path = {}
    asked: set[int] = set()
    layer = [member]
    while layer:
        found = []
        for taker in layer:
            for kind in spread.kinds_of[taker]:
                if kind in asked:
                    continue
                asked.add(kind)
                for giver in holders[kind]:
                    if giver != member and giver not in reached and not settled[giver]:
                        reached[giver] = (kind, taker)
                        found.append(giver)
        richest = max(found, key=lambda giver: (load[giver], -giver), default=None)
        if richest is not None and load[richest] >= load[member] + 2:
            return reached, richest
        layer = found
    return reached, None


def _holders(spread: Spread) -> list[list[int]]:
    holders: list[list[int]] = [[] for _ in spread.sizes]
    for member, given in enumerate(spread.given):
        for kind in given:
            holders[kind].append(member)
    return holders


def is_settled(spread: Spread) -> bool:
    """True if it is certain, without a search, that no other plan with optimal counts is better: none is nearer to
    replicas, and none moves fewer partitions.

    This is certain if three conditions hold:

    - Every member's rack has replicas of all its partitions.
    - Every move is needed to lower the partition count of the member that gives the partition.
    - No member whose count fell could exchange counts with a member whose count rose.

    (A sum of convex functions over the optimal counts has no other local minima.)
    """
    if any(not spread.far[kind].isdisjoint((member,)) for member, given in enumerate(spread.given) for kind in given):
        return False
    lowered: Counter[int] = Counter()
    raised: Counter[int] = Counter()
    for member, (owned, given) in enumerate(zip(spread.owned, spread.given, strict=True)):
        held, load = sum(owned.values()), spread.load[member]
        if sum(max(0, count - given.get(kind, 0)) for kind, count in owned.items()) > max(0, held - load):
            return False
        lowered[load] += held > load
        raised[load] += held < load
    return not any(count and lowered[load - 1] for load, count in raised.items())


FAR_COST: Final = 1 << 32
EFFORT: Final = 10_000_000
"""Maximum number of exchanges to examine. Examining so many takes seconds, and only large groups with hundreds of
different subscriptions and uneven racks need so many. If the limit is reached, the counts are still optimal, and a
later rebalance may reduce moves or distance further."""


def exchange(spread: Spread) -> None:
    """Carry out exchanges until no exchange saves a move or brings a partition nearer, or `EFFORT` is used up."""
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
    """The graph of possible exchanges. Its nodes are the members, the kinds, and one node for each count of partitions
    that members have.

    - An arc from a member to a kind: the member gives a partition of the kind.
    - An arc from a kind to a member: the member takes a partition of the kind.
    - An arc from a member to the node of its count: the member's count rises by one.
    - An arc from the node of a count to a member with one partition more than this count: the member's count falls by
      one.
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
        """Relax all arcs once. Returns False if no distance improves, because then no cycle has a negative cost."""
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
        """Yield the cycles that the predecessors of the nodes form. All cycles have a negative cost. They share no
        node, so carrying out one cycle leaves the others valid."""
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
        """Move partitions along a cycle: as many as can move at the same cost, or one if the cycle changes members'
        counts."""
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
