"""The plan of the sticky pair: even first, near replicas second, unchanged third.

Three steps: validate the claims; compute counts on kinds of partitions, where a million partitions are a few numbers;
let each member keep that many of what it owned, and deal out the rest. No step depends on the order in which members
were listed, so every leader makes the same plan.

Partitions of one kind may go to the same members, at the same distance. With equal subscriptions and without racks
there is one kind. One member that differs makes two or three; a kind is as small as a topic only if every member
subscribes to something else.

Partitions are dealt topics by name, partitions by number, to members in turn: neighbouring ones go to different
members, so that a busy topic loads all of them. Shares are cut with slices, with no step per partition, as there may be
a million.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_consumer.assignors.interface import Assignment, ClusterView, Subscription
from fleet_consumer.assignors.plans import NOWHERE, java_key, partition_racks, racks_matter
from fleet_consumer.assignors.spread import Spread, even_quotas, exchange, is_settled, place, steal


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member claims, and the generation that assigned them (-1: unknown).

    It may name a deleted or unsubscribed topic, a partition that no longer exists, or one that other members claim too:
    members that missed a rebalance still claim what they had.
    """

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


@dataclass(frozen=True, slots=True)
class Standing:
    """The group before a plan: members in order, partition counts of the existing topics that somebody subscribes to,
    which of these topics each member wants, and the valid claims."""

    members: list[str]
    counts: dict[str, int]
    wanted: list[frozenset[str]]
    holdings: Holdings


def stand(cluster: ClusterView, subscriptions: Mapping[str, Subscription], claims: Mapping[str, Claim]) -> Standing:
    """Validate topics and claims; the order of members and topics does not depend on how they were listed."""
    members = sorted(subscriptions, key=java_key)
    subscribed = _subscribed(subscriptions[member].topics for member in members)
    counts = {
        topic: count
        for topic in sorted(frozenset[str]().union(*set(subscribed)), key=java_key)
        if (count := cluster.partitions.get(topic, 0)) > 0
    }
    existing = {topics: topics.intersection(counts) for topics in set(subscribed)}
    wanted = [existing[topics] for topics in subscribed]
    return Standing(members, counts, wanted, settle(counts, wanted, [claims[member] for member in members]))


def _subscribed(topics: Iterable[Sequence[str]]) -> list[frozenset[str]]:
    """The members' topics as sets: one set for all that want the same, as nearly all do."""
    sets: dict[tuple[str, ...], frozenset[str]] = {}
    return [sets.setdefault(key, frozenset(key)) if key not in sets else sets[key] for key in map(tuple, topics)]


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


Tally = Mapping[int, int]
"""The number of partitions by kind."""
Needs = list[tuple[int, int]]
"""Members by index, with the number of further partitions they need."""


def plan_sticky(
    cluster: ClusterView, subscriptions: Mapping[str, Subscription], claims: Mapping[str, Claim], *, hand_over: bool
) -> dict[str, Assignment]:
    """Plan everybody's share. Unless `hand_over`, a partition that another member still owns is left out.

    Its owner does not get it either and so revokes it; the next plan assigns it and changes nothing else (KIP-429).
    """
    standing = stand(cluster, subscriptions, claims)
    members, counts, holdings = standing.members, standing.counts, standing.holdings
    kinds = sort_into_kinds(cluster, counts, standing.wanted, [subscriptions[member].rack for member in members])
    owned = [kinds.tally(kept) for kept in holdings.kept]
    given = _spread_out(kinds, owned)
    for index, (had, gets) in enumerate(zip(owned, given, strict=True)):
        surplus = {kind: count - gets.get(kind, 0) for kind, count in had.items() if count > gets.get(kind, 0)}
        if surplus:
            _release(kinds, holdings, index, surplus)
    shares = [dict(zip(kept, map(sorted, kept.values()), strict=True)) for kept in holdings.kept]
    for cards, tables in zip(_cards(kinds, counts, holdings.free), _tables(kinds, owned, given), strict=True):
        for index, hand in deal(cards, tables):
            put(hand if hand_over else _uncontested(hand, holdings.contested), shares[index])
    return {member: Assignment(share) for member, share in zip(members, shares, strict=True)}


def _spread_out(kinds: Kinds, owned: Sequence[Tally]) -> Sequence[Tally]:
    if len(kinds.sizes) == 1 and not kinds.far[0] and len(kinds.takers[0]) == len(owned):
        return [{0: quota} for quota in even_quotas(kinds.sizes[0], [had.get(0, 0) for had in owned])]
    spread = Spread(kinds.sizes, kinds.takers, kinds.far, [dict(had) for had in owned])
    place(spread)
    steal(spread)
    if not is_settled(spread):
        exchange(spread)
    return spread.given


def _tables(kinds: Kinds, owned: Sequence[Tally], given: Sequence[Tally]) -> list[tuple[Needs, Needs]]:
    """The cards each member needs, by kind: first those below the lowest count, up to it, then the rest."""
    floor = min((sum(gets.values()) for gets in given), default=0)
    tables: list[tuple[Needs, Needs]] = [([], []) for _ in kinds.sizes]
    for index, (had, gets) in enumerate(zip(owned, given, strict=True)):
        below = floor - sum(had.values())
        for kind, count in gets.items():
            need = count - had.get(kind, 0)
            if need > 0:
                first = max(0, min(need, below))
                tables[kind][0].append((index, first))
                tables[kind][1].append((index, need - first))
                below -= first
    return tables


def _release(kinds: Kinds, holdings: Holdings, index: int, surplus: Mapping[int, int]) -> None:
    """Take the surplus from a member: its highest numbers, so that the rest of every topic stays together."""
    kept = holdings.kept[index]
    released: dict[str, set[int]] = {}
    for kind, pairs in _owned_by_kind(kinds, kept, surplus).items():
        for number, topic in sorted(pairs)[-surplus[kind] :]:
            released.setdefault(topic, set()).add(number)
    for topic, gone in released.items():
        remaining = [number for number in kept.pop(topic) if number not in gone]
        if remaining:
            kept[topic] = remaining
        holdings.free.setdefault(topic, []).extend(gone)
        holdings.contested.setdefault(topic, set()).update(gone)


def _owned_by_kind(
    kinds: Kinds, kept: Mapping[str, Sequence[int]], wanted: Iterable[int]
) -> dict[int, list[tuple[int, str]]]:
    """A member's partitions of the wanted kinds, as (number, topic)."""
    if len(kinds.sizes) == 1:
        return {0: [(number, topic) for topic, numbers in kept.items() for number in numbers]}
    by_kind: dict[int, list[tuple[int, str]]] = {kind: [] for kind in wanted}
    for topic, numbers in kept.items():
        for kind, some in kinds.split(topic, numbers).items():
            if kind in by_kind:
                by_kind[kind] += [(number, topic) for number in some]
    return by_kind


def _cards(kinds: Kinds, topics: Iterable[str], free: Mapping[str, list[int]]) -> list[Cards]:
    decks = [Cards() for _ in kinds.sizes]
    for topic in topics:
        if topic in free:
            for kind, numbers in kinds.split(topic, sorted(free[topic])).items():
                decks[kind].add(topic, numbers)
    return decks


def _uncontested(hand: Cards, contested: Mapping[str, set[int]]) -> Cards:
    """The hand without the partitions that others must revoke first."""
    if contested.keys().isdisjoint(hand.topics):
        return hand
    remaining = Cards()
    for topic, number in zip(hand.topics, hand.numbers, strict=True):
        if number not in contested.get(topic, ()):
            remaining.add(topic, (number,))
    return remaining
