"""The best possible sticky plan, by algorithms that are independent of the product's.

`cheapest_flow` places each partition along a shortest augmenting path; `cheapest_by_trying` tries all plans. Both
return the best (sorted counts, partitions far from their member, partitions moved).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

Partition = tuple[str, int]
FAR = 1_000
UNEVEN = 1_000_000


@dataclass(frozen=True)
class Question:
    """`may`: the members that may have each partition; `owner`: its previous one; `far`: pairs of different racks."""

    may: Mapping[Partition, tuple[str, ...]]
    owner: Mapping[Partition, str]
    far: frozenset[tuple[Partition, str]]
    members: tuple[str, ...]

    def cost(self, partition: Partition, member: str) -> int:
        moved = partition in self.owner and self.owner[partition] != member
        return moved + FAR * ((partition, member) in self.far)

    def value(self, plan: Mapping[Partition, str]) -> tuple[list[int], int, int]:
        """The compared value: sorted counts (the fuller members first), far partitions, moved partitions."""
        counts = sorted(([*plan.values()].count(member) for member in self.members), reverse=True)
        far, moved = divmod(sum(self.cost(partition, member) for partition, member in plan.items()), FAR)
        return counts, far, moved


def cheapest_by_trying(question: Question) -> tuple[list[int], int, int]:
    """The best value of all plans."""

    def plans() -> Iterator[dict[Partition, str]]:
        for choice in product(*question.may.values()):
            yield dict(zip(question.may, choice, strict=True))

    return min(question.value(plan) for plan in plans())


def cheapest_flow(question: Question) -> tuple[list[int], int, int]:
    """The value of a cheapest flow: the n-th partition of a member costs n times more than any distance or move."""
    plan: dict[Partition, str] = {}
    for partition in question.may:
        _augment(question, plan, partition)
    return question.value(plan)


def _augment(question: Question, plan: dict[Partition, str], start: Partition) -> None:
    """Place one more partition along the shortest path of displacements (Bellman and Ford, until nothing changes)."""
    reach: dict[str, tuple[int, Partition]] = {
        member: (question.cost(start, member), start) for member in question.may[start]
    }
    changed = True
    while changed:
        changed = False
        for partition, holder in plan.items():
            if holder not in reach:
                continue
            freed = reach[holder][0] - question.cost(partition, holder)
            for member in question.may[partition]:
                cost = freed + question.cost(partition, member)
                if member != holder and (member not in reach or cost < reach[member][0]):
                    reach[member] = (cost, partition)
                    changed = True
    counts = dict.fromkeys(question.members, 0)
    for holder in plan.values():
        counts[holder] += 1
    member = min(reach, key=lambda member: reach[member][0] + UNEVEN * counts[member])
    while True:
        partition = reach[member][1]
        before = plan.get(partition)
        plan[partition] = member
        if partition == start:
            return
        assert before is not None
        member = before
