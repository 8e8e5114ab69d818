"""`cooperative-weighted`: assigns partitions by load, not by count, with the cooperative protocol (KIP-429).

If records have keys, partitions are uneven: one partition may have a quarter of all records. Each member reports the
rates of its partitions in its user data. The leader reduces the largest load with a few moves. Rates never trigger a
rebalance; they take effect in the next rebalance.

The plan is that of `cooperative-sticky` in three cases: more than half of the rates are unknown, all rates are equal,
or there are more than `WEIGHED_MAX` partitions. Plans by load ignore racks. A partition without a known rate gets the
mean weight of the others. An idle partition gets a twentieth of the mean. It has costs, too, and a thousand idle
partitions should not all go to one member.

Decision: docs/decisions/0056-partitions-by-load.md.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from fleet_consumer.assignors.interface import COOPERATIVE, Assignment, ClusterView, RebalanceProtocol, Subscription
from fleet_consumer.assignors.loads import NOBODY, Loads, level, place
from fleet_consumer.assignors.plans import gc_paused, java_key
from fleet_consumer.assignors.reported_rates import (
    WEIGHTS,
    Levels,
    Report,
    decode_report,
    encode_report,
    level_of,
    steady,
)
from fleet_consumer.assignors.sticky_plan import Claim, GroupBefore, group_before, plan_sticky, sort_into_kinds

WEIGHED_MAX: Final = 20_000
"""Maximum number of partitions in a plan by weight; larger plans would take longer than a few seconds."""
KEEPERS: Final = 3
"""Number of members that store the levels of a plan for the next plan. Three are enough, because a rolling restart
stops one member at a time, and each plan chooses its own keepers."""
IDLE_SHARE: Final = 20
ROUNDS: Final = 10


class CooperativeWeightedAssignor:
    """Assigns partitions by load. The load of the busiest member is at most about 15 % above the lowest value that any
    plan could reach, as far as subscriptions allow (see `loads`)."""

    name = "cooperative-weighted"
    version = 1
    protocol: RebalanceProtocol = COOPERATIVE

    def __init__(self) -> None:
        self._rates: Mapping[str, Mapping[int, float]] = {}
        self._kept: Levels = {}

    def on_rates(self, rates: Mapping[str, Mapping[int, float]]) -> None:
        self._rates = rates

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        rates = self._rates
        own = {
            topic: {number: level_of(rate) for number, rate in rates[topic].items()}
            for topic in topics
            if rates.get(topic)
        }
        return encode_report(Report(own, self._kept))

    def assign(self, cluster: ClusterView, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        claims = {member: Claim(joined.owned, joined.generation) for member, joined in subscriptions.items()}
        with gc_paused():
            before = group_before(cluster, subscriptions, claims)
            levels = known_levels(subscriptions, before.counts)
            weights = weights_of(before.counts, levels)
            plan = _plan(before, weights) if weights else plan_sticky(cluster, subscriptions, claims, hand_over=False)
        if any(levels.values()):
            table = encode_report(Report(kept=levels))
            for keeper in before.members[:KEEPERS]:
                plan[keeper] = replace(plan[keeper], user_data=table)
        return plan

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._kept = decode_report(assignment.user_data).kept


def known_levels(subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """Return the levels to plan with. If several members report a partition, the report with the newest generation
    wins. A member's measured levels count only for partitions that it claims.

    Levels of deleted partitions are left out. Otherwise they would take up space in the tables that the keepers store.
    """
    measured: dict[str, dict[int, int]] = {}
    former: dict[str, dict[int, int]] = {}
    for member in sorted(subscriptions, key=lambda each: (subscriptions[each].generation, java_key(each))):
        told = subscriptions[member]
        report = decode_report(told.user_data)
        for topic, numbers in told.owned.items():
            found = report.own.get(topic, {})
            measured.setdefault(topic, {}).update({number: found[number] for number in numbers if number in found})
        for topic, levels in report.kept.items():
            former.setdefault(topic, {}).update(levels)
    return {
        topic: {number: found for number, found in levels.items() if number < counts[topic]}
        for topic, levels in steady(measured, former).items()
        if topic in counts
    }


def weights_of(counts: Mapping[str, int], levels: Levels) -> list[int]:
    """Return the weight of each partition, topic by topic; empty if partitions are to be assigned by count."""
    total = sum(counts.values())
    if not 0 < total <= WEIGHED_MAX:
        return []
    rates = [
        None if (found := levels.get(topic, {}).get(number)) is None else WEIGHTS[found]
        for topic, count in counts.items()
        for number in range(count)
    ]
    known = [rate for rate in rates if rate is not None]
    if len(known) * 2 < total or not any(known):
        return []
    mean = max(1, sum(known) // len(known))
    weights = [mean if rate is None else max(rate, mean // IDLE_SHARE, 1) for rate in rates]
    return weights if len(set(weights)) > 1 else []


def _plan(before: GroupBefore, weights: list[int]) -> dict[str, Assignment]:
    """Plan the shares of all members. Moving partitions stay unassigned until the next rebalance."""
    topics, holdings = list(before.counts), before.holdings
    first = dict(zip(topics, accumulate(before.counts.values(), initial=0), strict=False))
    starts = list(first.values())
    had = [NOBODY] * len(weights)
    for member, kept in enumerate(holdings.kept):
        for topic, numbers in kept.items():
            for number in numbers:
                had[first[topic] + number] = member
    has = settle_loads(before, weights, had)
    shares: list[dict[str, list[int]]] = [{} for _ in before.members]
    for partition, member in enumerate(has):
        topic = topics[bisect_right(starts, partition) - 1]
        number = partition - first[topic]
        if member == had[partition] or (had[partition] == NOBODY and number not in holdings.contested.get(topic, ())):
            shares[member].setdefault(topic, []).append(number)
    return {member: Assignment(share) for member, share in zip(before.members, shares, strict=True)}


def settle_loads(before: GroupBefore, weights: list[int], had: list[int]) -> list[int]:
    """Return the final owner of each partition, as the index of a member.

    A partition that moves needs two rebalances. In the first, its owner revokes it. In the second, it has no owner, and
    is placed like all unowned partitions: the heaviest first, each at the member with the lowest load at that moment.
    It must then reach the owner that this plan intends, otherwise further moves would follow. So this function
    simulates the second rebalance, and changes the plan until no further move is worthwhile. If moves remain after
    `ROUNDS` rounds, no partition moves.
    """
    kinds = sort_into_kinds(ClusterView(before.counts), before.counts, before.wanted, [None] * len(before.members))
    kind_of = [kind for topic, count in before.counts.items() for kind in _each(kinds.of[topic], count)]
    loads = Loads(weights, kind_of, kinds.takers, had.copy(), len(before.members))
    place(loads, [partition for partition, member in enumerate(had) if member == NOBODY])
    untouched = loads.owner.copy()
    for _ in range(ROUNDS):
        if not level(loads):
            return loads.owner
        moved = [each for each, member in enumerate(had) if member not in (NOBODY, loads.owner[each])]
        for partition in moved:
            loads.give(partition, NOBODY)
        place(loads, moved)
    return loads.owner if not level(loads) else untouched


def _each(kind: int | list[int], count: int) -> list[int]:
    return [kind] * count if isinstance(kind, int) else kind
