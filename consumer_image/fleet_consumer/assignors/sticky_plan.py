"""The plan of the sticky assignors. Its priorities are balance, then rack locality, then stickiness.

Planning has three steps: validate the claims; compute how many partitions of each kind each member gets; let each
member keep up to that many of its previous partitions, and deal out the rest. No step depends on the order in which
members are listed, so every leader makes the same plan. Java prefers to return a partition to an owner from an earlier
generation; this plan considers only the latest owner.

All partitions of one kind may go to the same members, at the same distance, so a million partitions become a few
numbers. If all subscriptions are equal and racks do not matter, there is one kind. If one member has a different
subscription, there are two or three kinds. There are as many kinds as topics only if every member subscribes to
different topics.

Partitions are dealt in the order of topic names, then numbers, to members in rotation. Adjacent partitions go to
different members, so that a busy topic loads all members. Shares are built with Python slices, because a loop over a
million partitions would take too long.

Decision: docs/decisions/0006-sticky-plans.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_consumer.assignors.interface import Assignment, ClusterView, Subscription
from fleet_consumer.assignors.plans import NOWHERE, java_key, partition_racks, racks_matter
from fleet_consumer.assignors.spread import Spread, even_quotas, exchange, is_settled, place, steal


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member claims, and the generation that assigned them (-1: unknown).

    A claim may name a deleted or unsubscribed topic or a partition that no longer exists. Several members may claim the
    same partition, because members that missed a rebalance still claim their old partitions.
    """

    owned: Mapping[str, Sequence[int]]
    generation: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """The result of validating the claims.

    - `kept`: each member's validly claimed partition numbers, keyed by topic.
    - `free`: the sorted numbers of partitions without an owner, keyed by topic.
    - `contested`: the free partitions that are still claimed, for example by two members with the same generation, or
      by a member that unsubscribed. All claimants must revoke them before a new owner may receive them (KIP-429).
    """

    kept: list[dict[str, Sequence[int]]]
    free: dict[str, list[int]]
    contested: dict[str, set[int]]


def settle(counts: Mapping[str, int], wanted: Sequence[frozenset[str]], claims: Sequence[Claim]) -> Holdings:
    """Validate the claims of all members. `counts` are the partition counts of existing topics with subscribers.

    The claim with the highest generation wins. Claims with equal generations cancel each other, because the true owner
    is unknown (the rules of Kafka's `AbstractStickyAssignor`).
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
    """Validate the claims to the partitions of one topic, and store the valid claims in `kept`. Returns the numbers of
    the kept and of the contested partitions.

    A member that unsubscribed keeps no partitions of the topic. But its claim contests them, because it may be the true
    owner.
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
    uncontested: dict[int, list[int]] = {}
    for number, (_, member) in best.items():
        if number not in contested:
            uncontested.setdefault(member, []).append(number)
    for member, numbers in uncontested.items():
        kept[member][topic] = numbers
    return frozenset(number for numbers in uncontested.values() for number in numbers), contested


@dataclass(frozen=True, slots=True)
class GroupBefore:
    """The group before a plan: members in order, partition counts of the existing topics with subscribers, each
    member's topics among these, and the valid claims."""

    members: list[str]
    counts: dict[str, int]
    wanted: list[frozenset[str]]
    holdings: Holdings


def group_before(
    cluster: ClusterView, subscriptions: Mapping[str, Subscription], claims: Mapping[str, Claim]
) -> GroupBefore:
    """Validate topics and claims; the result does not depend on the order of members and topics in the arguments."""
    members = sorted(subscriptions, key=java_key)
    subscribed = _subscribed(subscriptions[member].topics for member in members)
    counts = {
        topic: count
        for topic in sorted(frozenset[str]().union(*set(subscribed)), key=java_key)
        if (count := cluster.partitions.get(topic, 0)) > 0
    }
    existing = {topics: topics.intersection(counts) for topics in set(subscribed)}
    wanted = [existing[topics] for topics in subscribed]
    return GroupBefore(members, counts, wanted, settle(counts, wanted, [claims[member] for member in members]))


def _subscribed(topics: Iterable[Sequence[str]]) -> list[frozenset[str]]:
    """Return the members' topics as sets. Members with equal topics, which is the usual case, share one set."""
    sets: dict[tuple[str, ...], frozenset[str]] = {}
    return [sets.setdefault(key, frozenset(key)) if key not in sets else sets[key] for key in map(tuple, topics)]


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds of partitions. `of` maps a topic to the kind of all its partitions, or to a list with the kind of each
    partition. `sizes`, `takers` and `far` are those of `Spread`."""

    of: dict[str, int | list[int]]
    sizes: list[int]
    takers: list[list[int]]
    far: list[frozenset[int]]

    def tally(self, owned: Mapping[str, Sequence[int]]) -> dict[int, int]:
        """Count these partitions by kind; kinds without such partitions are left out."""
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
    """Return the kinds of all partitions in `counts`. `wanted` and `racks` have one entry for each member."""
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
    members = {rack for rack in racks if rack}
    if not members or not cluster.racks:
        return {}
    where = {topic: partition_racks(cluster, topic) for topic in counts}
    return where if racks_matter(members, [spot for spots in where.values() for spot in spots]) else {}


def _far(takers: Sequence[int], racks: Sequence[str | None], spot: frozenset[str]) -> frozenset[int]:
    return frozenset(member for member in takers if (rack := racks[member]) and rack not in spot)


@dataclass(slots=True)
class Cards:
    """Partitions in the order in which they are dealt, as two columns."""

    topics: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, topic: str, numbers: Sequence[int]) -> None:
        self.topics.extend([topic] * len(numbers))
        self.numbers.extend(numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def deal(cards: Cards, tables: Iterable[Sequence[tuple[int, int]]]) -> Iterator[tuple[int, Cards]]:
    """Deal all cards (partitions) to members, one table after the other. A table is a list of pairs: a member and the
    number of cards it needs.

    At a table, each member gets one card per round until it has enough. The needs must add up to the number of cards.
    Yields each member with its cards in dealing order.
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
    """Add a hand (the cards dealt to a member) to the member's share; sorts the partition numbers of each topic."""
    fresh = dict.fromkeys(hand.topics)
    if len(fresh) == len(hand) and share.keys().isdisjoint(fresh):
        share.update(zip(hand.topics, map(list, zip(hand.numbers, strict=True)), strict=True))
        return
    for topic, number in zip(hand.topics, hand.numbers, strict=True):
        share.setdefault(topic, []).append(number)
    for topic in fresh:
        share[topic].sort()


Tally = Mapping[int, int]
"""Number of partitions, keyed by kind."""
Needs = list[tuple[int, int]]
"""Members by index, with the number of partitions they still need."""


def plan_sticky(
    cluster: ClusterView, subscriptions: Mapping[str, Subscription], claims: Mapping[str, Claim], *, hand_over: bool
) -> dict[str, Assignment]:
    """Plan the shares of all members. With `hand_over`, moving partitions are assigned to their new owners in this
    plan. Without it, they stay unassigned until their previous owners have revoked them. The next plan then assigns
    them and changes nothing else (KIP-429)."""
    before = group_before(cluster, subscriptions, claims)
    members, counts, holdings = before.members, before.counts, before.holdings
    kinds = sort_into_kinds(cluster, counts, before.wanted, [subscriptions[member].rack for member in members])
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
    """Return two tables of needed cards for each kind. The first table raises each member to the lowest partition count
    in the plan; the second has the remaining needs."""
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
    """Take surplus partitions from a member, highest numbers first, so that its kept partitions stay contiguous."""
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
    """Return a member's partitions of the wanted kinds, as pairs (number, topic)."""
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
    if contested.keys().isdisjoint(hand.topics):
        return hand
    remaining = Cards()
    for topic, number in zip(hand.topics, hand.numbers, strict=True):
        if number not in contested.get(topic, ()):
            remaining.add(topic, (number,))
    return remaining
