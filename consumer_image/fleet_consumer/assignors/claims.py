"""Members' claims to partitions they owned, validated against the current cluster.

Sticky plans start from here. A claim may name a deleted or unsubscribed topic, a partition that no longer exists, or
one that other members claim too: members that missed a rebalance still claim what they had. Nothing is planned here;
partitions without an owner are only listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member claims, and the generation that assigned them (-1: unknown)."""

    owned: Mapping[str, Sequence[int]]
    generation: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """The valid claims.

    `kept` has one entry for each member: partition numbers by topic. `free` are the partitions without an owner, by
    topic, in order. `contested` are the free ones that somebody still claims: two members of the same generation, or
    one that unsubscribed. A new owner must not receive them before all claimants have revoked them (KIP-429).
    """

    kept: list[dict[str, Sequence[int]]]
    free: dict[str, list[int]]
    contested: dict[str, set[int]]


def settle(counts: Mapping[str, int], wanted: Sequence[frozenset[str]], claims: Sequence[Claim]) -> Holdings:
    """Validate the claims of all members; `counts` are the existing topics that somebody subscribes to.

    The claim of the highest generation wins; claims of equal generation cancel each other, as the true owner is unknown
    (rules of Kafka's `AbstractStickyAssignor`).
    """
    claimed: dict[str, list[int]] = {topic: [] for topic in counts}
    given_up: set[str] = set()
    contested: dict[str, set[int]] = {}
    kept: list[dict[str, Sequence[int]]] = []
    for topics, claim in zip(wanted, claims, strict=True):
        owned = dict(claim.owned) if all(claim.owned.values()) else {t: some for t, some in claim.owned.items() if some}
        if not owned.keys() <= topics:
            given_up |= owned.keys() - topics
            owned = {topic: numbers for topic, numbers in owned.items() if topic in topics}
        kept.append(owned)
        for topic, numbers in owned.items():
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
    """Cut the claims to one topic down to the valid ones; returns the partitions kept and the contested ones.

    A member that unsubscribed keeps nothing of the topic, but its claim counts: it may be the true one.
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
    for owned in kept:
        owned.pop(topic, None)
    standing: dict[int, list[int]] = {}
    for number, (_, member) in best.items():
        if number not in contested:
            standing.setdefault(member, []).append(number)
    for member, numbers in standing.items():
        kept[member][topic] = numbers
    return frozenset(number for numbers in standing.values() for number in numbers), contested
