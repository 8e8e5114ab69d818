"""Counts as even as subscriptions allow: members with less take from others, along chains if necessary.

Member u can give to member v when it has a partition that v may have. If no v can be reached from any u that has two
more, no move along a path helps: the counts are then optimal (Harvey et al., semi-matchings). Members are settled from
the lowest up. When nothing more can reach the lowest, everybody who reaches it is settled with it and never looked at
again, so that all searches together look at each kind a few times, not once for each member.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from fleet_consumer.assignors.spread import Spread

Path = dict[int, tuple[int, int]]
"""For each member found: the kind that it can give, and the member that takes it."""


def steal(spread: Spread) -> None:
    """Move partitions until no chain of moves makes the counts more even."""
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
    """Take from the members with the highest counts what this member may have.

    Returns the members whose counts changed.
    """
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
    """The best kind to move: not owned by the giver, owned by the taker, most of the giver's, in this order."""
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
    """The members that reach `member`, nearest first, and the richest of the nearest that have two more, or None."""
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
    """True if, without a search, no other plan with optimal counts can move less.

    True if the only moves left lower a member's count, and nowhere could such a member rise again in place of one that
    rose. (A sum of convex functions over the optimal counts has no other local minima.)
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
