"""Planning by weight: balances the members' loads with few partition moves. A member's load is the sum of the weights
of its partitions.

Partitions and members are numbered from 0. Weights are integers, so that sums and ties are the same on every leader.

Two values describe a balanced plan:

- The fair share is the mean load per member. Partitions heavier than the fair share are excluded from the mean, and so
  is one member for each of them.
- The bound is the fair share or the weight of the heaviest partition, whichever is greater. In every plan, some
  member's load is at least the bound.

A member whose load is above 115 % of the bound gives up partitions until its load is at most 105 % of the bound. A
member whose load is below 50 % of the fair share, such as a new member, takes partitions until its load is 95 % of the
fair share.

Small differences move no partitions, for two reasons. The limits that start and end moves are far apart. And moves are
made only if they improve the worst load among the members involved by at least a tenth.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

HUNDRED: Final = 100
HIGH, INNER_HIGH, INNER_LOW, LOW = 115, 105, 95, 50
"""Load limits in percent. `HIGH` and `INNER_HIGH` are relative to the bound, `INNER_LOW` and `LOW` to the fair
share."""
MEANINGFUL: Final = 10
"""Minimum improvement of a load, in percent, that justifies moving partitions."""
PARTNERS: Final = 8
"""A move has one overloaded or underloaded member and a partner. This is the maximum number of partners to compare for
one move."""
SWAP_PARTNERS: Final = 3
"""Maximum number of partners to compare for one swap. Lower than `PARTNERS`, because each partner allows many swaps."""
PASSES: Final = 10
NOBODY: Final = -1


class Step(NamedTuple):
    """Partition `given` moves from `giver` to `taker`; partition `back`, if any, moves from `taker` to `giver`. `gain`
    is the weight by which the taker's load rises."""

    giver: int
    taker: int
    given: int
    back: int | None
    gain: int


@dataclass(slots=True)
class Loads:
    """A plan in progress. Partitions of one kind may go to the same members, which are listed in `takers[kind]`."""

    weights: Sequence[int]
    kinds: Sequence[int]
    takers: Sequence[Sequence[int]]
    owner: list[int]
    members: int
    load: list[int] = field(init=False)
    # The partitions of each member, keyed by kind, as sorted pairs (weight, partition).
    stock: list[dict[int, list[tuple[int, int]]]] = field(init=False)
    # All members, as sorted pairs (load, member).
    order: list[tuple[int, int]] = field(init=False)
    fair: int = field(init=False)
    high: int = field(init=False)
    inner_high: int = field(init=False)
    inner_low: int = field(init=False)
    low: int = field(init=False)
    _may: list[frozenset[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.load = [0] * self.members
        self.stock = [{} for _ in range(self.members)]
        self._may = [frozenset(members) for members in self.takers]
        for partition, member in enumerate(self.owner):
            if member != NOBODY:
                self.load[member] += self.weights[partition]
                self.stock[member].setdefault(self.kinds[partition], []).append((self.weights[partition], partition))
        for stock in self.stock:
            for entries in stock.values():
                entries.sort()
        self.order = sorted((load, member) for member, load in enumerate(self.load))
        self.fair = fair_share(self.weights, self.members)
        bound = max(self.fair, max(self.weights))
        self.high, self.inner_high = bound * HIGH // HUNDRED, bound * INNER_HIGH // HUNDRED
        self.inner_low, self.low = self.fair * INNER_LOW // HUNDRED, self.fair * LOW // HUNDRED

    def give(self, partition: int, member: int) -> None:
        """Move a partition from its owner, if any, to `member`; `NOBODY` leaves the partition without an owner."""
        before, entry = self.owner[partition], (self.weights[partition], partition)
        kind = self.kinds[partition]
        if before != NOBODY:
            entries = self.stock[before][kind]
            del entries[bisect_left(entries, entry)]
            self._add(before, -entry[0])
        self.owner[partition] = member
        if member != NOBODY:
            insort(self.stock[member].setdefault(kind, []), entry)
            self._add(member, entry[0])

    def _add(self, member: int, weight: int) -> None:
        del self.order[bisect_left(self.order, (self.load[member], member))]
        self.load[member] += weight
        insort(self.order, (self.load[member], member))

    def may(self, member: int, kind: int) -> bool:
        return member in self._may[kind]


def fair_share(weights: Sequence[int], members: int) -> int:
    total, left = sum(weights), members
    for weight in sorted(weights, reverse=True):
        if left == 0 or weight * left <= total:
            break
        total, left = total - weight, left - 1
    return total // left if left else 0


def place(loads: Loads, partitions: Iterable[int]) -> None:
    """Assign unowned partitions, the heaviest first, each to the member with the lowest load at that moment."""
    heaps: dict[int, list[tuple[int, int]]] = {}
    for partition in sorted(partitions, key=lambda each: (-loads.weights[each], each)):
        kind = loads.kinds[partition]
        if kind not in heaps:
            heaps[kind] = [(loads.load[member], member) for member in loads.takers[kind]]
            heapq.heapify(heaps[kind])
        heap = heaps[kind]
        # Loads only grow here, so an outdated entry is too small; it is updated when it reaches the top of the heap.
        while heap[0][0] != loads.load[heap[0][1]]:
            heapq.heapreplace(heap, (loads.load[heap[0][1]], heap[0][1]))
        member = heap[0][1]
        loads.give(partition, member)
        heapq.heapreplace(heap, (loads.load[member], member))


def level(loads: Loads) -> bool:
    """Move partitions until no move is worthwhile, in at most `PASSES` passes. Returns True if any partition moved."""
    moved = False
    for _ in range(PASSES):
        full = [member for member in range(loads.members) if loads.load[member] > loads.high]
        changed = [_relieve(loads, member) for member in sorted(full, key=lambda each: (-loads.load[each], each))]
        idle = [member for member in range(loads.members) if loads.load[member] < loads.low]
        changed += [_fill(loads, member) for member in sorted(idle, key=lambda each: (loads.load[each], each))]
        if not any(changed):
            break
        moved = True
    return moved


def _relieve(loads: Loads, giver: int) -> bool:
    """Reduce the load of `giver`. Returns False, without moves, if the improvement is too small."""
    before, limit, steps = loads.load[giver], loads.inner_high, list[Step]()
    while loads.load[giver] > limit and (step := _best_step(loads, giver, relieved=True)):
        steps.append(_carry_out(loads, step))
    touched = {giver, *(step.taker for step in steps)}
    peak = max(loads.load[member] for member in touched)
    if before - peak < max(1, before * MEANINGFUL // HUNDRED):
        _undo(loads, steps)
        return False
    bound = max(peak, limit)
    for step in steps:
        if loads.load[giver] + step.gain <= bound and _stands(loads, step):
            _undo(loads, [step])
    return True


def _fill(loads: Loads, taker: int) -> bool:
    """Raise the load of `taker`. Returns False, without moves, if the improvement is too small."""
    before, limit, steps = loads.load[taker], loads.inner_low, list[Step]()
    while loads.load[taker] < limit and (step := _best_step(loads, taker, relieved=False)):
        steps.append(_carry_out(loads, step))
    touched = {taker, *(step.giver for step in steps)}
    least = min(loads.load[member] for member in touched)
    if least - before < max(1, loads.fair * MEANINGFUL // HUNDRED):
        _undo(loads, steps)
        return False
    bound = min(least, limit)
    for step in steps:
        if loads.load[taker] - step.gain >= bound and _stands(loads, step):
            _undo(loads, [step])
    return True


def _carry_out(loads: Loads, step: Step) -> Step:
    loads.give(step.given, step.taker)
    if step.back is not None:
        loads.give(step.back, step.giver)
    return step


def _stands(loads: Loads, step: Step) -> bool:
    """True if both members still own the partitions that this step gave them, so that the step can be undone."""
    return loads.owner[step.given] == step.taker and (step.back is None or loads.owner[step.back] == step.giver)


def _undo(loads: Loads, steps: Sequence[Step]) -> None:
    for step in reversed(steps):
        loads.give(step.given, step.giver)
        if step.back is not None:
            loads.give(step.back, step.taker)


Pair = tuple[int, int, int]
"""Giver, taker, and the kind of partition to give."""


def _best_step(loads: Loads, member: int, *, relieved: bool) -> Step | None:
    """Return the step that changes the load of `member` best. Returns None if no step brings the member's load and its
    partner's load closer together.

    With `relieved`, the member gives partitions, otherwise it takes them. A step is a move of one partition, or a swap
    of two. Swaps are tried in two cases: no move helps, or the best move covers at least half of the need and still
    leaves a load outside its limit. If the best move covers less than half, it is made without trying swaps, because
    further moves can follow.
    """
    high, low, load = loads.inner_high, loads.inner_low, loads.load
    need = load[member] - high if relieved else low - load[member]

    def score(step: Step) -> tuple[int, int, int, bool, int, int, int]:
        giver, taker = load[step.giver] - step.gain, load[step.taker] + step.gain
        # Sort key. First: by how much both loads together exceed (or fall below) their limits. Second: how much of this
        # is due to the partner's load.
        if relieved:
            at_partner = max(0, taker - high)
            return max(0, giver - high) + at_partner, at_partner, max(giver, taker, high), *_cost(step, step.taker)
        at_partner = max(0, low - giver)
        return at_partner + max(0, low - taker), at_partner, -min(giver, taker, low), *_cost(step, step.giver)

    moves, partners = list[Step](), list[Pair]()
    helpful = 0
    for pair in _pairs(loads, member, relieved=relieved):
        found = list(_moves(loads, *pair))
        moves += found
        helpful += bool(found)
        if len(partners) < SWAP_PARTNERS:
            partners.append(pair)
        if helpful >= PARTNERS:
            break
    best = min(moves, key=score, default=None)
    if best is not None and (score(best)[0] == 0 or best.gain * 2 < need):
        return best
    swaps = min((step for pair in partners for step in _swaps(loads, *pair)), key=score, default=None)
    return min((step for step in (best, swaps) if step is not None), key=score, default=None)


def _cost(step: Step, partner: int) -> tuple[bool, int, int, int]:
    """Return a sort key for equally good steps: fewer partitions first, then the smaller gain, then the partner's
    number."""
    return step.back is not None, step.gain, partner, step.given


def _pairs(loads: Loads, member: int, *, relieved: bool) -> Iterator[Pair]:
    """Yield pairs of `member` and a possible partner: takers by increasing load, or givers by decreasing load."""
    load, order = loads.load, loads.order
    if relieved:
        kinds = [kind for kind, entries in sorted(loads.stock[member].items()) if entries]
        for _, other in order[: bisect_left(order, (load[member], 0))]:
            yield from ((member, other, kind) for kind in kinds if loads.may(other, kind))
        return
    kinds = [kind for kind in range(len(loads.takers)) if loads.may(member, kind)]
    for _, other in reversed(order[bisect_right(order, (load[member], loads.members)) :]):
        yield from ((other, member, kind) for kind in kinds if loads.stock[other].get(kind))


def _wanted(loads: Loads, giver: int, taker: int) -> tuple[int, ...]:
    """Return gains that would make both loads equal or bring one of them exactly to a limit."""
    high, low = loads.inner_high, loads.inner_low
    a, b = loads.load[giver], loads.load[taker]
    return (a - b) // 2, a - high, high - b, low - b, a - low


def _moves(loads: Loads, giver: int, taker: int, kind: int) -> Iterator[Step]:
    """Yield moves of the partitions with the weights closest to a wanted gain."""
    entries, gap = loads.stock[giver][kind], loads.load[giver] - loads.load[taker]
    if entries[0][0] >= gap:
        return
    for wanted in _wanted(loads, giver, taker):
        at = bisect_left(entries, (wanted, 0))
        for weight, partition in entries[max(0, at - 1) : at + 1]:
            if weight < gap:
                yield Step(giver, taker, partition, None, weight)


def _swaps(loads: Loads, giver: int, taker: int, kind: int) -> Iterator[Step]:
    """Yield swaps. For each distinct weight among the giver's partitions, yields the swaps after which the two loads
    differ least."""
    entries, gap, at = loads.stock[giver][kind], loads.load[giver] - loads.load[taker], 0
    returns = [others for back, others in sorted(loads.stock[taker].items()) if others and loads.may(giver, back)]
    while at < len(entries):
        weight, partition = entries[at]
        for others in returns:
            near = bisect_right(others, (weight - gap // 2, len(loads.weights)))
            for other, back in others[max(0, near - 1) : near + 1]:
                if 0 < weight - other < gap:
                    yield Step(giver, taker, partition, back, weight - other)
        at = bisect_left(entries, (weight + 1, 0))
