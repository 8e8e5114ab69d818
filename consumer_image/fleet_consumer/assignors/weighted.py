"""`cooperative-weighted`: partitions are dealt by their load, not by their number (KIP-429 as `cooperative-sticky`).

Topics with keys are unequal: one partition may have a quarter of all records. Each member reports the rates of its
partitions in its user data. The leader makes the largest load as small as is useful and moves few partitions for it.
Rates never cause a rebalance: they count whenever there is one.

Where they are unknown for more than half of the partitions, or all the same, or where there are more partitions than
`WEIGHED_MAX`, the plan is that of `cooperative-sticky`. A partition without a rate weighs the mean of the others. An
idle one weighs a twentieth of the mean: it has its costs, too, and a thousand of them should not meet at one member.

Racks count in plans of `cooperative-sticky` only.
"""

from __future__ import annotations

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
from fleet_consumer.assignors.sticky_plan import Claim, Standing, plan_sticky, sort_into_kinds, stand

WEIGHED_MAX: Final = 20_000
"""Partitions that are dealt by weight: more of them would make plans take longer than a few seconds."""
KEEPERS: Final = 3
"""Members that keep the levels of a plan for the next one. A rolling restart takes one at a time, and each plan names
its own."""
IDLE_SHARE: Final = 20
ROUNDS: Final = 10


class CooperativeWeightedAssignor:
    """The largest load is at most about 15 % above the least possible, as far as subscriptions allow (`loads`)."""

    name = "cooperative-weighted"
    version = 1
    protocol: RebalanceProtocol = COOPERATIVE

    def __init__(self) -> None:
        self._rates: Mapping[str, Mapping[int, float]] = {}
        self._kept: Levels = {}

    def on_rates(self, rates: Mapping[str, Mapping[int, float]]) -> None:
        """Keep the rates for the next subscription."""
        self._rates = rates

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """The rates of this member's partitions, and those that it keeps of the last plan."""
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
            standing = stand(cluster, subscriptions, claims)
            levels = known_levels(subscriptions, standing.counts)
            weights = weights_of(standing.counts, levels)
            plan = _plan(standing, weights) if weights else plan_sticky(cluster, subscriptions, claims, hand_over=False)
        if any(levels.values()):
            table = encode_report(Report(kept=levels))
            for keeper in standing.members[:KEEPERS]:
                plan[keeper] = replace(plan[keeper], user_data=table)
        return plan

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._kept = decode_report(assignment.user_data).kept


def known_levels(subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """The levels to plan with, of partitions that exist: what was deleted must not fill the table of the keepers.

    The newest generation counts; a member's own levels only for what it claims to own.
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
    """The weight of each partition, topic by topic; empty where partitions are to be dealt by their number."""
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


def _plan(standing: Standing, weights: list[int]) -> dict[str, Assignment]:
    """Plan everybody's share; a partition that another member still owns is left out."""
    topics, holdings = list(standing.counts), standing.holdings
    first = dict(zip(topics, accumulate(standing.counts.values(), initial=0), strict=False))
    starts = list(first.values())
    had = [NOBODY] * len(weights)
    for member, kept in enumerate(holdings.kept):
        for topic, numbers in kept.items():
            for number in numbers:
                had[first[topic] + number] = member
    has = settle_loads(standing, weights, had)
    shares: list[dict[str, list[int]]] = [{} for _ in standing.members]
    for partition, member in enumerate(has):
        topic = topics[bisect_right(starts, partition) - 1]
        number = partition - first[topic]
        if member == had[partition] or (had[partition] == NOBODY and number not in holdings.contested.get(topic, ())):
            shares[member].setdefault(topic, []).append(number)
    return {member: Assignment(share) for member, share in zip(standing.members, shares, strict=True)}


def settle_loads(standing: Standing, weights: list[int], had: list[int]) -> list[int]:
    """The owner of each partition in the end, by the indices of members.

    What moves has no owner at the next rebalance and is then placed like any other such partition. It must come to the
    member that this plan means, or it would set off further moves. So the plan places it in the same way, and only ends
    when nothing more pays; if that does not happen, nothing moves.
    """
    kinds = sort_into_kinds(
        ClusterView(standing.counts), standing.counts, standing.wanted, [None] * len(standing.members)
    )
    kind_of = [kind for topic, count in standing.counts.items() for kind in _each(kinds.of[topic], count)]
    loads = Loads(weights, kind_of, kinds.takers, had.copy(), len(standing.members))
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
