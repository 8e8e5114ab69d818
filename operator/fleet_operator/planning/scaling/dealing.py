"""A dealing shows which partitions each worker would own if the group had a given number of workers. It is computed
with the group's own assignor.

A worker count is useful if it lowers the largest number of partitions that any worker owns. With P partitions and n
workers, this largest number is ceil(P/n). For example, with 10 partitions it is 2 for each of 5 to 9 workers, so 5 is
useful and 6 to 9 are not. The useful counts are then 1, 2, 3, 4, 5 and 10.

The range assignor assigns each topic separately, and starts with the first member. So the first member owns the sum of
ceil(P/n) over all topics.

Partitions differ in their load, so n workers may be enough under one assignment and too few under another. A sticky
assignor keeps the present owners where it can, so its assignment depends on them.
"""

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
"""The operator does not load a team's own assignor class, and assumes this assignor instead."""
CACHED: Final = 1024
"""Maximum number of cache entries. An entry has the useful worker counts for one combination of the topics' partition
counts. Each decision needs the useful counts, and thousands of groups have only a few such combinations."""
PLANS_CACHED: Final = 4096
REBALANCES: Final = 2
"""Maximum number of simulated rebalances. A cooperative assignor needs two until every partition has its owner."""
SLACK: Final = 1e-6
"""Relative tolerance when sums of rates are compared."""
HOT_COST: Final = 2.0 / 3.0
"""Share of a worker's capacity that a hot partition is assumed to use. A hot partition has more work than one worker
can do. But a worker alternates between its partitions and still handles some records of the others."""

Owned = tuple[tuple[Partition, ...], ...]
"""The partitions of each worker, in the order of the workers' ordinals."""


@dataclass(frozen=True, slots=True)
class UsefulCounts:
    counts: tuple[int, ...]

    @property
    def most(self) -> int:
        return self.counts[-1] if self.counts else 0

    def within(self, ceiling: int) -> int:
        return max((count for count in self.counts if count <= ceiling), default=0)

    def above(self, count: int) -> int:
        """Return the next larger useful count, or the largest useful count if none is larger."""
        return next((useful for useful in self.counts if useful > count), self.most)

    def below(self, count: int) -> int:
        return max((useful for useful in self.counts if useful < count), default=0)


def useful_counts(partition_counts: Mapping[str, int], assignor: str) -> UsefulCounts:
    """Useful worker counts for topics with these partition counts. No count exceeds `REPLICAS_MAX`."""
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
    """Return the largest number of workers at which each worker can own a partition."""
    counts = partition_counts.values()
    return max(counts, default=0) if assignor == RANGE else sum(counts)


def owned_by(members: Iterable[MemberObservation]) -> Owned:
    """The partitions of each member. Members are sorted by ordinal, because a shrinking fleet loses the highest
    ordinals first."""
    ordered = sorted(members, key=lambda member: (len(member.key), member.key))
    return tuple(
        tuple((topic, number) for topic, numbers in sorted(member.partitions.items()) for number in sorted(numbers))
        for member in ordered
    )


@dataclass(frozen=True, slots=True)
class Dealing:
    """A group's topics with their partition counts, its assignor, and the partitions that its workers own now. `rates`:
    the partitions' records per second, rounded by `_in_steps`; empty if the assignor does not use rates."""

    topics: tuple[tuple[str, int], ...]
    assignor: str
    owned: Owned
    rates: tuple[tuple[Partition, float], ...] = ()

    def at(self, count: int) -> Owned:
        """The partitions that each of `count` workers would own. A single worker owns all partitions with any
        assignor."""
        if count == 1:
            return (tuple((topic, number) for topic, partitions in self.topics for number in range(partitions)),)
        return _deal(self, count)


def dealing_of(counts: Mapping[str, int], assignor: str, owned: Owned, rates: Mapping[Partition, float]) -> Dealing:
    """Build the dealing of a group. A team's own assignor class is treated as cooperative-sticky."""
    known = assignor if assignor in BUILT_IN else ASSUMED
    weighs = isinstance(BUILT_IN[known](), TakesRates)
    stepped = tuple((key, _in_steps(rate)) for key, rate in sorted(rates.items())) if weighs else ()
    return Dealing(tuple(sorted(counts.items())), known, owned, stepped)


def _in_steps(rate: float) -> float:
    """Round a rate to a power of the square root of two, so that a cached plan stays valid until a rounded rate
    changes."""
    return 2.0 ** (round(2.0 * math.log2(rate)) / 2.0) if rate > 0.0 else 0.0


@lru_cache(maxsize=PLANS_CACHED)
def _deal(dealing: Dealing, count: int) -> Owned:
    """Return the assignor's plan for `count` workers. Each worker has its own assignor object, as in a real group."""
    view, rates = ClusterView(dict(dealing.topics)), dict(dealing.rates)
    workers = {f"{place:04}": _Worker(dealing.assignor, rates) for place in range(count)}
    for worker, partitions in zip(workers.values(), dealing.owned, strict=False):
        by_topic = groupby(partitions, key=itemgetter(0))
        worker.apply_assignment(Assignment({topic: [number for _, number in each] for topic, each in by_topic}))
    for _ in range(REBALANCES):
        subscriptions = {name: worker.subscription(tuple(view.partitions)) for name, worker in workers.items()}
        plan = BUILT_IN[dealing.assignor]().assign(view, subscriptions)
        for name, worker in workers.items():
            worker.apply_assignment(plan[name])
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

    def apply_assignment(self, assignment: Assignment) -> None:
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


def least_count(
    dealing: Dealing, counts: Iterable[int], load: Mapping[Partition, float], *, mean: float, worst: float
) -> int | None:
    """Return the first of the worker `counts` at which no worker is overloaded; None if every count is too small.

    `load`: records per second of each partition. `mean` and `worst`: the most records per second that one worker may
    get, on average over all workers and for any single worker. If a partition has more than `worst`, only `worst` is
    added to the total, because more workers do not help this partition."""
    total = sum(min(each, worst) for each in load.values())
    for count in counts:
        if total > count * mean * (1.0 + SLACK):
            continue
        if all(_carries(numbers, load, worst) for numbers in dealing.at(count)):
            return count
    return None


def _carries(partitions: Iterable[Partition], load: Mapping[Partition, float], most: float) -> bool:
    """True if a worker that handles `most` records per second can own these partitions. One of the partitions may have
    more than `most` (a hot partition). It is counted as `HOT_COST` of the worker's capacity."""
    total, hot = 0.0, 0
    for key in partitions:
        part = load.get(key, 0.0)
        if part > most * (1.0 + SLACK):
            hot += 1
            part = most * HOT_COST
        total += part
    return hot <= 1 and total <= most * (1.0 + SLACK)
