"""Who may go on with what: members' claims to have held partitions, judged against the cluster as it is now.

Sticky plans start from here. A claim may be about a topic that is gone or no longer subscribed to, a number that no
longer exists, or a partition that others claim too: members that slept through a rebalance still believe in what they
held. Nothing is planned here; what is nobody's is only listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says it held, and in which generation (-1: it does not know)."""

    owned: Mapping[str, Sequence[int]]
    generation: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """The claims that stand.

    `kept` has one entry for each member: partition numbers by topic. `free` are the partitions without an owner, by
    topic, in order. `contested` are those of them that somebody claims all the same: two members with equal right, or
    one that gave up the topic. Whoever gets one must not have it before all claimants have let go (KIP-429).
    """

    kept: list[dict[str, Sequence[int]]]
    free: dict[str, list[int]]
    contested: dict[str, set[int]]


def settle(counts: Mapping[str, int], wanted: Sequence[frozenset[str]], claims: Sequence[Claim]) -> Holdings:
    """Judge the claims of all members; `counts` are the existing topics that somebody wants.

    Of several claims to one partition the one of the highest generation stands; between equals nobody keeps it, as
    neither can know (rules of Kafka's `AbstractStickyAssignor`).
    """
    claimed: dict[str, list[int]] = {topic: [] for topic in counts}
    given_up: set[str] = set()
    contested: dict[str, set[int]] = {}
    kept: list[dict[str, Sequence[int]]] = []
    for topics, claim in zip(wanted, claims, strict=True):
        held = dict(claim.owned) if all(claim.owned.values()) else {t: some for t, some in claim.owned.items() if some}
        if not held.keys() <= topics:
            given_up |= held.keys() - topics
            held = {topic: numbers for topic, numbers in held.items() if topic in topics}
        kept.append(held)
        for topic, numbers in held.items():
            claimed[topic].extend(numbers)
    free = {}
    for topic, count in counts.items():
        numbers, distinct = claimed[topic], frozenset(claimed[topic])
        beyond = distinct and (min(distinct) < 0 or max(distinct) >= count)
        if beyond or len(distinct) != len(numbers) or topic in given_up:
            distinct, contested[topic] = _judge(topic, count, claims, kept)
        if len(distinct) < count:
            free[topic] = [number for number in range(count) if number not in distinct] if distinct else [*range(count)]
    return Holdings(kept, free, {topic: numbers for topic, numbers in contested.items() if numbers})


def _judge(
    topic: str, count: int, claims: Sequence[Claim], kept: Sequence[dict[str, Sequence[int]]]
) -> tuple[frozenset[int], set[int]]:
    """Cut the claims to one topic down to those that stand; returns what is kept now, and what nobody may keep.

    A member that no longer subscribes keeps nothing of the topic, but its claim counts: it may well be the true one.
    """
    best: dict[int, tuple[int, int]] = {}
    contested = set()
    for member, claim in enumerate(claims):
        for number in dict.fromkeys(claim.owned.get(topic, ())):
            if not 0 <= number < count:
                continue
            generation = best[number][0] if number in best else None
            if generation is None or claim.generation > generation:
                best[number] = (claim.generation, member)
                contested.discard(number)
            elif claim.generation == generation:
                contested.add(number)
    contested |= {number for number, (_, member) in best.items() if topic not in kept[member]}
    for held in kept:
        held.pop(topic, None)
    standing: dict[int, list[int]] = {}
    for number, (_, member) in best.items():
        if number not in contested:
            standing.setdefault(member, []).append(number)
    for member, numbers in standing.items():
        kept[member][topic] = numbers
    return frozenset(number for numbers in standing.values() for number in numbers), contested
