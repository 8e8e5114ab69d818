"""Numbers of workers that differ in what the busiest of them has to do.

The busiest of n workers owns ceil(P/n) of P partitions, so every other n than {ceil(P/k)} has the same busiest worker
as a smaller one. The range assignor deals each topic by itself, from the first member on: its busiest worker owns the
sum of each topic's own ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX

RANGE: Final = "range"
CACHED: Final = 1024
"""Shapes of topics that are kept: thousands of groups have few, and each is asked for at every look."""
SLACK: Final = 1e-6
"""Tolerance of sums of rates, relative to the whole."""


@dataclass(frozen=True, slots=True)
class UsefulCounts:
    """The useful numbers of workers, ascending; `loads` are the partitions of the busiest worker at each of them."""

    partitions: int
    counts: tuple[int, ...]
    loads: tuple[int, ...]

    @property
    def most(self) -> int:
        """The most workers that can own a partition; 0 without partitions."""
        return self.counts[-1] if self.counts else 0

    def load(self, count: int) -> int:
        """Partitions of the busiest of `count` workers, which need not be a useful number."""
        known = [load for useful, load in zip(self.counts, self.loads, strict=True) if useful <= count]
        return known[-1] if known else self.partitions

    def carries(self, count: int, raw: float) -> bool:
        """True if the busiest of `count` workers can do its part of a load that takes `raw` whole workers."""
        return raw * self.load(count) <= self.partitions * (1.0 + SLACK) and count > 0

    def snap(self, raw: float) -> int:
        """The smallest useful number that carries a load of `raw` workers, 0 for no load; the largest where none
        does."""
        if raw <= 0.0:
            return 0
        return next((count for count in self.counts if self.carries(count, raw)), self.most)

    def within(self, ceiling: int) -> int:
        """The largest useful number up to a ceiling; 0 without one."""
        return max((count for count in self.counts if count <= ceiling), default=0)

    def above(self, count: int) -> int:
        """The next larger useful number; the largest where there is none."""
        return next((useful for useful in self.counts if useful > count), self.most)


def useful_counts(partition_counts: Mapping[str, int], assignor: str) -> UsefulCounts:
    """The useful numbers for topics with so many partitions each, as the assignor deals them; none is beyond what a
    spec can ask for."""
    sizes = tuple(partition_counts.values())
    return _count(sizes if assignor == RANGE else (sum(sizes),))


@lru_cache(maxsize=CACHED)
def _count(sizes: tuple[int, ...]) -> UsefulCounts:
    counts, loads = list[int](), list[int]()
    for count in range(1, min(max(sizes, default=0), REPLICAS_MAX) + 1):
        load = sum(-(-size // count) for size in sizes)
        if not loads or load < loads[-1]:
            counts.append(count)
            loads.append(load)
    return UsefulCounts(sum(sizes), tuple(counts), tuple(loads))


def most_useful(partition_counts: Mapping[str, int], assignor: str) -> int:
    """The most workers that can own a partition."""
    counts = partition_counts.values()
    return max(counts, default=0) if assignor == RANGE else sum(counts)
