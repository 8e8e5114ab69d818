"""The load of a group as one reading: what is known of it, and the numbers of workers that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.scaling.capacity import Measurement, measure, percentile
from fleet_operator.planning.scaling.demand import Demand, demand, find_stuck, rebalance_seconds
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.rates import Partition, Rates, rates_over, window
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.scaling.useful import UsefulCounts, useful_counts

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
    load = Load(
        lags=lags,
        fast=fast,
        slow=slow,
        counts=useful,
        most=useful.most if ceiling is None else useful.within(ceiling),
        capacity=capacity,
        growth=_demand(facts, fast.arrival, lags, capacity, stuck),
        steady=_demand(facts, steady.arrival, lags, capacity, stuck),
        calm=_demand(facts, _largest(fast.arrival, steady.arrival, slow.arrival), lags, least_capacity, stuck),
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


def _demand(
    facts: ScalingFacts,
    arrival: Mapping[Partition, float],
    lags: Mapping[Partition, int],
    capacity: float | None,
    stuck: frozenset[Partition],
) -> Demand | None:
    """The demand; without a capacity only where nothing arrives and nothing waits, which takes no workers at all."""
    if capacity is None:
        if any(arrival.values()) or any(lags.values()):
            return None
        capacity = 1.0
    assert facts.observed is not None, "a load was observed"
    return demand(
        arrival,
        lags,
        capacity,
        catch_up_s=float(facts.spec.catch_up_seconds),
        acceptable_s=float(facts.spec.max_lag_seconds or 0),
        rebalance_s=rebalance_seconds(facts.observed.transitions),
        stuck=stuck,
    )


def _largest(*rates: Mapping[Partition, float]) -> dict[Partition, float]:
    keys = {key for each in rates for key in each}
    return {key: max(each.get(key, 0.0) for each in rates) for key in keys}


def _capacity(trail: Trail) -> float | None:
    """The high percentile of what was learnt under backlog; more where workers have just proven more."""
    learnt = percentile(trail.measured)
    proven = trail.newest.mean if trail.newest is not None else 0.0
    if learnt is None:
        return None
    return max(learnt, proven)
