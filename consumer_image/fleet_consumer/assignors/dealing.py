"""Round-robin dealing of partitions: topics by name, partitions by number, to members in turn.

Neighbouring partitions go to different members, so that a busy topic loads all of them. Shares are cut with slices,
with no step per partition, as there may be a million.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cards:
    """Partitions in the order of dealing, as two columns."""

    topics: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, topic: str, numbers: Sequence[int]) -> None:
        self.topics.extend([topic] * len(numbers))
        self.numbers.extend(numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def deal(cards: Cards, tables: Iterable[Sequence[tuple[int, int]]]) -> Iterator[tuple[int, Cards]]:
    """Deal all cards, one table after the other, to (member, number of cards needed).

    At a table cards go round one by one; a member with enough drops out. The needs add up to the number of cards.
    Yields members with their hands, in the order dealt.
    """
    hands: dict[int, Cards] = {}
    at = 0
    for table in tables:
        rounds = 0
        while seated := [(member, need) for member, need in table if need > rounds]:
            more = min(need for _, need in seated) - rounds
            end = at + more * len(seated)
            for seat, (member, _) in enumerate(seated, at):
                hand = hands.setdefault(member, Cards())
                hand.topics += cards.topics[seat : end : len(seated)]
                hand.numbers += cards.numbers[seat : end : len(seated)]
            at, rounds = end, rounds + more
    yield from hands.items()


def put(hand: Cards, share: dict[str, list[int]]) -> None:
    """Add a hand to a member's share, numbers in order within each topic."""
    fresh = dict.fromkeys(hand.topics)
    if len(fresh) == len(hand) and share.keys().isdisjoint(fresh):
        share.update(zip(hand.topics, map(list, zip(hand.numbers, strict=True)), strict=True))
        return
    for topic, number in zip(hand.topics, hand.numbers, strict=True):
        share.setdefault(topic, []).append(number)
    for topic in fresh:
        share[topic].sort()
