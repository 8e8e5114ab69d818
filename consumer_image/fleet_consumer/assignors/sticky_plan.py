"""The plan of the sticky pair: even first, near replicas second, unchanged third.

Three steps: validate the claims; compute counts on kinds of partitions, where a million partitions are a few numbers;
let each member keep that many of what it owned, and deal out the rest. No step depends on the order in which members
were listed, so every leader makes the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleet_consumer.assignors.claims import Claim, Holdings, settle
from fleet_consumer.assignors.dealing import Cards, deal, put
from fleet_consumer.assignors.exchanges import exchange
from fleet_consumer.assignors.interface import Assignment, ClusterView, Subscription
from fleet_consumer.assignors.kinds import Kinds, sort_into_kinds
from fleet_consumer.assignors.ordering import java_key
from fleet_consumer.assignors.spread import Spread, even_quotas, place
from fleet_consumer.assignors.steals import is_settled, steal

Tally = Mapping[int, int]
"""The number of partitions by kind."""
Needs = list[tuple[int, int]]
"""Members by index, with the number of further partitions they need."""


def plan_sticky(
    cluster: ClusterView,
    subscriptions: Mapping[str, Subscription],
    claims: Mapping[str, Claim],
    *,
    hand_over: bool,
) -> dict[str, Assignment]:
    """Plan everybody's share. Unless `hand_over`, a partition that another member still owns is left out.

    Its owner does not get it either and so revokes it; the next plan assigns it and changes nothing else (KIP-429).
    """
    members = sorted(subscriptions, key=java_key)
    subscribed = _subscribed(subscriptions[member].topics for member in members)
    counts = {
        topic: count
        for topic in sorted(frozenset[str]().union(*set(subscribed)), key=java_key)
        if (count := cluster.partitions.get(topic, 0)) > 0
    }
    existing = {topics: topics.intersection(counts) for topics in set(subscribed)}
    wanted = [existing[topics] for topics in subscribed]
    holdings = settle(counts, wanted, [claims[member] for member in members])
    kinds = sort_into_kinds(cluster, counts, wanted, [subscriptions[member].rack for member in members])
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


def _subscribed(topics: Iterable[Sequence[str]]) -> list[frozenset[str]]:
    """The members' topics as sets: one set for all that want the same, as nearly all do."""
    sets: dict[tuple[str, ...], frozenset[str]] = {}
    return [sets.setdefault(key, frozenset(key)) if key not in sets else sets[key] for key in map(tuple, topics)]


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
    """The free partitions of each kind in the order of dealing."""
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
