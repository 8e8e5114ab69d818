"""The partitions of each worker at another number of workers, as the group's own assignor would deal them.

The busiest of n workers owns ceil(P/n) of P partitions, so every other n than {ceil(P/k)} has the same busiest worker
as a smaller one. The range assignor deals each topic by itself, from the first member on: its busiest worker owns the
sum of each topic's own ceiling. Partitions are unequal, though: whether a number carries a load depends on who owns
what, and a sticky assignor keeps what each one owns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Final

from fleet_consumer.assignors import COOPERATIVE, Assignment, ClusterView, Subscription
from fleet_consumer.assignors.interface import TakesRates
from fleet_consumer.assignors.loading import BUILT_IN
from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX
from fleet_operator.planning.observation import MemberObservation
from fleet_operator.planning.scaling.facts import Partition

RANGE: Final = "range"
ASSUMED: Final = "cooperative-sticky"
"""The assignor that is assumed where the group's own is an application's class: that is not loaded here."""
CACHED: Final = 1024
"""Shapes of topics that are kept: thousands of groups have few, and each is asked for at every decision."""
PLANS_CACHED: Final = 4096
REBALANCES: Final = 2
"""Rebalances after which every partition has its owner."""
SLACK: Final = 1e-6
"""Tolerance of sums of rates, relative to the whole."""
HOT_COST: Final = 2.0 / 3.0
"""Part of a worker that a partition takes which is more than one worker's work: its worker can do little else, and
takes turns between its partitions."""

Owned = tuple[tuple[Partition, ...], ...]
"""The partitions of each worker, by ordinal."""


@dataclass(frozen=True, slots=True)
class UsefulCounts:
    counts: tuple[int, ...]

    @property
    def most(self) -> int:
        """The most workers that can own a partition; 0 without partitions."""
        return self.counts[-1] if self.counts else 0

    def within(self, ceiling: int) -> int:
        """The largest useful number up to a ceiling; 0 without one."""
        return max((count for count in self.counts if count <= ceiling), default=0)

    def above(self, count: int) -> int:
        """The next larger useful number; the largest where there is none."""
        return next((useful for useful in self.counts if useful > count), self.most)

    def below(self, count: int) -> int:
        """The next smaller useful number; 0 where there is none."""
        return max((useful for useful in self.counts if useful < count), default=0)


def useful_counts(partition_counts: Mapping[str, int], assignor: str) -> UsefulCounts:
    """The useful numbers for topics with so many partitions each, as the assignor deals them; none is beyond what a
    spec can ask for."""
    sizes = tuple(partition_counts.values())
    return _count(sizes if assignor == RANGE else (sum(sizes),))


@lru_cache(maxsize=CACHED)
def _count(sizes: tuple[int, ...]) -> UsefulCounts:
    counts, least = list[int](), 0
    for count in range(1, min(max(sizes, default=0), REPLICAS_MAX) + 1):
        load = sum(-(-size // count) for size in sizes)
        if not counts or load < least:
            counts.append(count)
            least = load
    return UsefulCounts(tuple(counts))


def most_useful(partition_counts: Mapping[str, int], assignor: str) -> int:
    """The most workers that can own a partition."""
    counts = partition_counts.values()
    return max(counts, default=0) if assignor == RANGE else sum(counts)


def owned_by(members: Iterable[MemberObservation]) -> Owned:
    """The partitions of each member, in the order of their ordinals: the last ones leave first."""
    ordered = sorted(members, key=lambda member: (len(member.key), member.key))
    return tuple(
        tuple((topic, number) for topic, numbers in sorted(member.partitions.items()) for number in sorted(numbers))
        for member in ordered
    )


@dataclass(frozen=True, slots=True)
class Dealing:
    """A group's topics with their numbers of partitions, its assignor, and what its workers own now.

    `rates` are those by which an assignor deals that asks for them, records per second in steps.
    """

    topics: tuple[tuple[str, int], ...]
    assignor: str
    owned: Owned
    rates: tuple[tuple[Partition, float], ...] = ()

    def at(self, count: int) -> Owned:
        """The partitions of each of `count` workers; a single one owns all, whatever the assignor."""
        if count == 1:
            return (tuple((topic, number) for topic, partitions in self.topics for number in range(partitions)),)
        return _deal(self, count)


def dealing_of(counts: Mapping[str, int], assignor: str, owned: Owned, rates: Mapping[Partition, float]) -> Dealing:
    """The dealing of a group with these rates; an assignor of an application's own is taken for a sticky one."""
    known = assignor if assignor in BUILT_IN else ASSUMED
    weighs = isinstance(BUILT_IN[known](), TakesRates)
    stepped = tuple((key, _in_steps(rate)) for key, rate in sorted(rates.items())) if weighs else ()
    return Dealing(tuple(sorted(counts.items())), known, owned, stepped)


def _in_steps(rate: float) -> float:
    """A rate in steps of a factor of the square root of two: as long as rates stay in theirs, a plan is known."""
    return 2.0 ** (round(2.0 * math.log2(rate)) / 2.0) if rate > 0.0 else 0.0


@lru_cache(maxsize=PLANS_CACHED)
def _deal(dealing: Dealing, count: int) -> Owned:
    """The plan of the assignor, with one object for each worker, as they have.

    A cooperative one hands on in a second rebalance what was revoked in the first.
    """
    view, rates = ClusterView(dict(dealing.topics)), dict(dealing.rates)
    workers = {f"{place:04}": _Worker(dealing.assignor, rates) for place in range(count)}
    for worker, partitions in zip(workers.values(), dealing.owned, strict=False):
        by_topic = groupby(partitions, key=itemgetter(0))
        worker.take(Assignment({topic: [number for _, number in each] for topic, each in by_topic}))
    for _ in range(REBALANCES):
        subscriptions = {name: worker.subscription(tuple(view.partitions)) for name, worker in workers.items()}
        plan = BUILT_IN[dealing.assignor]().assign(view, subscriptions)
        for name, worker in workers.items():
            worker.take(plan[name])
        if sum(len(worker.partitions) for worker in workers.values()) == sum(view.partitions.values()):
            break
    return tuple(worker.partitions for worker in workers.values())


class _Worker:
    def __init__(self, assignor: str, rates: Mapping[Partition, float]) -> None:
        self._assignor = BUILT_IN[assignor]()
        self._rates = rates
        self._owned: Mapping[str, Sequence[int]] = {}
        self._generation = -1

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple((topic, number) for topic, numbers in sorted(self._owned.items()) for number in numbers)

    def take(self, assignment: Assignment) -> None:
        self._generation += 1
        self._owned = dict(assignment.partitions)
        self._assignor.on_assignment(assignment, self._generation)

    def subscription(self, topics: Sequence[str]) -> Subscription:
        if self._rates and isinstance(self._assignor, TakesRates):
            rates = self._rates
            owned = self._owned.items()
            self._assignor.on_rates({name: {n: rates[name, n] for n in of if (name, n) in rates} for name, of in owned})
        cooperative = self._assignor.protocol is COOPERATIVE
        return Subscription(
            topics,
            user_data=self._assignor.subscription_user_data(topics),
            owned=self._owned if cooperative else {},
            generation=self._generation if cooperative and self._owned else -1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The work that a worker may have, in records per second: `mean` on average, `worst` of the busiest one."""

    mean: float
    worst: float


def least_count(
    dealing: Dealing, counts: Iterable[int], load: Mapping[Partition, float], allowance: Allowance
) -> int | None:
    """The first of these numbers at which each worker can do its part, None where no number carries the load.

    A partition that is more than one worker can do takes that much, and no more: further workers do not help it.
    """
    total = sum(min(each, allowance.worst) for each in load.values())
    for count in counts:
        if total > count * allowance.mean * (1.0 + SLACK):
            continue
        if all(_carries(numbers, load, allowance.worst) for numbers in dealing.at(count)):
            return count
    return None


def _carries(partitions: Iterable[Partition], load: Mapping[Partition, float], most: float) -> bool:
    """True if one worker can do what these partitions take; two that are too much for one have no room in one."""
    total, hot = 0.0, 0
    for key in partitions:
        part = load.get(key, 0.0)
        if part > most * (1.0 + SLACK):
            hot += 1
            part = most * HOT_COST
        total += part
    return hot <= 1 and total <= most * (1.0 + SLACK)
