"""The load of a group as one reading: what is known of it, and the numbers of workers that follow.

In whole workers it is arrival, backlog, and the cost of a rebalance, partition by partition. One partition can use no
more than one worker. So what a hot partition asks for beyond that is left out and named, and a partition that does not
move counts nothing for growth. Both count a whole worker against shrinking.

The busiest of n workers owns ceil(P/n) of P partitions, so every other n than {ceil(P/k)} has the same busiest worker
as a smaller one. The range assignor deals each topic by itself, from the first member on: its busiest worker owns the
sum of each topic's own ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX
from fleet_operator.planning.observation import GroupObservation, GroupTransition, MemberObservation, ProgressSample
from fleet_operator.planning.problem import name_some
from fleet_operator.planning.scaling.capacity import Measurement, has_backlog, measure, percentile
from fleet_operator.planning.scaling.facts import Partition, Rates, ScalingFacts, rates_over, span, window
from fleet_operator.planning.scaling.trail import Trail

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


UTILIZATION: Final = 0.8
"""Share of the capacity that arrival may take; the rest is for bursts. Above it no step is due before the whole is
taken, so that small changes cause none."""
HOT_SHARE: Final = 0.8
HOT_FACTOR: Final = 2.0
"""Share of one worker's capacity at which a partition's own arrival makes it hot, and how many times the average of the
others it is at least: where all have too much, more partitions are missing."""
STUCK_S: Final = 60.0
"""Time without a commit after which a partition with a lag is stuck (Burrow's rule STALL), and its worker is not
busy with others."""
REBALANCE_S: Final = 5.0
"""Duration of a rebalance before one was measured: its two phases wait for a heartbeat of every member each."""
REBALANCE_S_MAX: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load in workers. `growth` is what has to be carried with no reserve, `wanted` with it.

    `floor` counts a worker more for each hot and each stuck partition: the one that owns it can do little besides. No
    fleet shrinks below what carries that. `capped` says that a partition asks for more than one worker can do.
    """

    growth: float
    wanted: float
    floor: float
    hot: tuple[Partition, ...] = ()
    stuck: tuple[Partition, ...] = ()
    capped: bool = False


def demand(
    arrival: Mapping[Partition, float],
    lags: Mapping[Partition, int],
    capacity: float | None,
    *,
    catch_up_s: float,
    acceptable_s: float,
    rebalance_s: float,
    stuck: AbstractSet[Partition],
) -> Demand | None:
    """The load for a worker's capacity, in records per second. Without one it is known only where nothing arrives and
    nothing waits, which takes no workers at all.

    Backlog is what has been waiting for longer than `acceptable_s` by its partition's arrival; it is to be worked off
    within `catch_up_s`, together with what piles up during a rebalance.
    """
    if capacity is None:
        if any(arrival.values()) or any(lags.values()):
            return None
        capacity = 1.0
    growth = wanted = 0.0
    total = sum(arrival.get(key, 0.0) for key in lags)
    hot, capped = list[Partition](), False
    for key, lag in lags.items():
        if key in stuck:
            continue
        rate = arrival.get(key, 0.0)
        backlog = max(0.0, lag - rate * acceptable_s)
        drain = (backlog + rate * rebalance_s) / catch_up_s
        if rate >= HOT_SHARE * capacity and rate * (len(lags) - 1) >= HOT_FACTOR * (total - rate) and len(lags) > 1:
            hot.append(key)
        capped = capped or rate + drain > capacity
        growth += min(rate + backlog / catch_up_s, capacity)
        wanted += min(rate / UTILIZATION + drain, capacity)
    workers = wanted / capacity
    return Demand(
        growth=growth / capacity,
        wanted=workers,
        floor=workers + len(stuck) + len(hot),
        hot=tuple(sorted(hot)),
        stuck=tuple(sorted(stuck)),
        capped=capped,
    )


def find_stuck(
    samples: Sequence[ProgressSample], members: Iterable[MemberObservation], *, commit_interval_s: float
) -> frozenset[Partition]:
    """Partitions that had a lag and no commit for `STUCK_S`, while everything else of their worker was kept up with.

    A worker that cannot keep up lets some of its partitions wait for longer than others: those are load.
    """
    recent = [sample for sample in samples if samples[-1].at - sample.at <= STUCK_S + 1.0]
    rates = rates_over(recent) if span(samples) >= STUCK_S else None
    if rates is None:
        return frozenset()
    moves = any(rate > 0.0 for rate in rates.commits.values())
    found = set[Partition]()
    for member in members if moves else ():
        owned = [(topic, number) for topic, numbers in member.partitions.items() for number in numbers]
        stands = {
            key
            for key in owned
            if rates.commits.get(key) == 0.0
            and all(sample.end_offsets.get(key, 0) > sample.committed.get(key, 0) for sample in recent)
        }
        others = [key for key in owned if key not in stands]
        if stands and not has_backlog(recent, others, rates, commit_interval_s=commit_interval_s):
            found |= stands
    return frozenset(found)


def rebalance_seconds(transitions: Sequence[GroupTransition]) -> float:
    """Duration of the last whole rebalance that was observed, from Stable to Stable."""
    began: float | None = None
    measured = REBALANCE_S
    for earlier, later in pairwise(transitions):
        if earlier.after == "Stable" and later.after != "Stable":
            began = later.at
        if later.after == "Stable" and began is not None and earlier.after != "Stable":
            measured, began = min(later.at - began, REBALANCE_S_MAX), None
        if later.after in ("Empty", "Dead", "Unknown"):
            began = None
    return measured


FAST_S: Final = 10.0
"""Window of the rate that growth follows, once it has stopped rising."""
STEADY_S: Final = 20.0
"""Window over which the load must exceed a fleet before it grows: a burst of a few seconds is backlog, and no rate.
Fewer workers have to be enough for the rate over all samples, too."""
SETTLED_S: Final = 2.0
"""Time after a rebalance from which samples count: the first commits of a new owner come later than its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load as far as it is known: that of all partitions if it is `complete`, the least that it can be otherwise.
    What waits behind a transaction that hangs is unknown.

    - `lags`: of known partitions; `fast`, `slow`: rates over the shortest window and over all samples.
    - `counts`: the useful numbers of workers, `most` the bound of the spec among them.
    - `capacity`: records per second of one worker, None while it was never learnt.
    - `growth`, `steady`: the demand by the shortest window and by the next; None without a capacity.
    - `calm`: the demand by the largest rate of all windows. For it, the rate that workers have proven to handle is a
      capacity, too: they can do no less.
    - `stuck`: partitions without progress.
    - `held_back`: an open transaction keeps records from the group.
    - `safe_to_sleep`: an empty group continues where it was in every partition: by its commit, or from the start of a
      log that has no record.
    """

    lags: Mapping[Partition, int]
    fast: Rates
    slow: Rates
    counts: UsefulCounts
    most: int
    capacity: float | None
    growth: Demand | None
    steady: Demand | None
    calm: Demand | None
    stuck: frozenset[Partition]
    safe_to_sleep: bool
    complete: bool = True
    held_back: bool = False

    @property
    def total_lag(self) -> int:
        return sum(self.lags.values())

    @property
    def arrival(self) -> float:
        """Records per second in all partitions, over all samples."""
        return sum(self.slow.arrival.values())

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing has arrived within the samples."""
        waits = self.total_lag > 0 or self.held_back
        return self.complete and not waits and not any(self.slow.arrival.values())

    @property
    def shown(self) -> Demand | None:
        """The demand that is worth showing: one by a proven rate alone asks for more workers than are needed."""
        return self.calm if self.capacity is not None or self.idle else None

    @property
    def lag_grows(self) -> bool:
        """True if more has arrived within the samples than was handled."""
        arrival, commits = self.slow.arrival, self.slow.commits
        return sum(arrival.get(key, 0.0) - commits.get(key, 0.0) for key in self.lags.keys() - self.stuck) > 0.0

    @property
    def every_rate_known(self) -> bool:
        return self.complete and self.lags.keys() <= self.slow.arrival.keys() & self.fast.arrival.keys()


def read_load(facts: ScalingFacts, trail: Trail) -> tuple[Load | None, Trail]:
    """The load, and the trail with what was learnt from it; None while it is unknown."""
    observed, counts, lag = facts.observed, facts.partition_counts, facts.lag
    if observed is None or counts is None or lag is None or lag.total is None:
        return None, trail.forgotten()
    fast, steady = (rates_over(window(observed.samples, seconds)) for seconds in (FAST_S, STEADY_S))
    slow = rates_over(observed.samples)
    if fast is None or steady is None or slow is None:
        return None, trail.forgotten()
    trail = trail.of_revision(facts.revision, facts.memory.capacity).with_measurement(_measure(facts, observed))
    capacity = _capacity(trail)
    least_capacity = capacity or trail.proven or None
    lags = {key: value for key, value in lag.partitions.items() if value is not None}
    standing = find_stuck(observed.samples, facts.members, commit_interval_s=facts.commit_interval_s)
    stuck = (standing | facts.reported_stuck) & lags.keys()
    useful = useful_counts(counts, facts.assignor)
    ceiling = facts.spec.max_replicas
    demand_of = partial(
        demand,
        lags=lags,
        catch_up_s=float(facts.spec.catch_up_seconds),
        acceptable_s=float(facts.spec.max_lag_seconds or 0),
        rebalance_s=rebalance_seconds(observed.transitions),
        stuck=stuck,
    )
    load = Load(
        lags=lags,
        fast=fast,
        slow=slow,
        counts=useful,
        most=useful.most if ceiling is None else useful.within(ceiling),
        capacity=capacity,
        growth=demand_of(fast.arrival, capacity=capacity),
        steady=demand_of(steady.arrival, capacity=capacity),
        calm=demand_of(_largest(fast.arrival, steady.arrival, slow.arrival), capacity=least_capacity),
        stuck=stuck,
        complete=lag.complete and not observed.hanging,
        held_back=bool(observed.open_transactions),
        safe_to_sleep=facts.from_start or lags.keys() <= observed.committed.keys(),
    )
    return load, trail


def _measure(facts: ScalingFacts, observed: GroupObservation) -> Measurement | None:
    """The newest measurement of this fleet's workers, in a group that has been Stable all the time."""
    since = facts.stable_since
    if since is None:
        return None
    return measure(
        observed.samples,
        facts.members,
        stable_since=since + SETTLED_S,
        commit_interval_s=facts.commit_interval_s,
    )


def _largest(*rates: Mapping[Partition, float]) -> dict[Partition, float]:
    keys = {key for each in rates for key in each}
    return {key: max(each.get(key, 0.0) for each in rates) for key in keys}


def _capacity(trail: Trail) -> float | None:
    """The high percentile of what was learnt under backlog; more where workers have just proven more."""
    learnt = percentile(trail.measured)
    return max(learnt, trail.newest.mean) if learnt is not None and trail.newest is not None else learnt


def describe(load: Load) -> str:
    """The load, and the number of workers that it takes."""
    capacity = "unknown" if load.capacity is None else f"{two_digits(load.capacity)} records/s"
    parts = [
        f"arrival {two_digits(load.arrival)} records/s",
        f"lag {load.total_lag}",
        f"capacity of a worker {capacity}",
    ]
    demand = load.shown
    if demand is not None:
        parts.append(f"so {two_digits(demand.wanted)} workers are needed")
    if demand is not None and demand.hot:
        parts.append(f"hot: {name_partitions(demand.hot)}, each with as much as one worker can do")
    if load.stuck:
        parts.append(f"stuck, and not counted: {name_partitions(sorted(load.stuck))}")
    return ", ".join(parts)


def name_partitions(partitions: Sequence[Partition]) -> str:
    """A few partitions by name, and how many more there are."""
    return name_some([f"{topic}-{number}" for topic, number in partitions])


def two_digits(value: float) -> str:
    """A number with two significant digits, without an exponent."""
    if value == 0.0:
        return "0"
    return f"{float(f'{value:.2g}'):.10f}".rstrip("0").rstrip(".")
