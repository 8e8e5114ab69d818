"""The load of a group as one reading: what is known of it, worker by worker, and the numbers of workers that follow.

A fleet carries its load when each worker carries its own: the sum of what arrives in the partitions that it owns, and
of the backlog there that is to be worked off. Whether another number of workers does is judged by dealing the
partitions as the group's assignor would. A partition that does not move counts nothing for growth, and one that is more
than one worker can do is named: further workers do not help it. Both count a whole worker against shrinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.observation import GroupObservation, ProgressSample
from fleet_operator.planning.problem import name_some
from fleet_operator.planning.scaling.capacity import Measurement, has_backlog, measure_fleet
from fleet_operator.planning.scaling.dealing import (
    HOT_COST,
    Allowance,
    Dealing,
    UsefulCounts,
    dealing_of,
    least_count,
    owned_by,
    useful_counts,
)
from fleet_operator.planning.scaling.facts import Partition, Rates, ScalingFacts, rates_over, span, window
from fleet_operator.planning.scaling.rates import rates_from
from fleet_operator.planning.scaling.trail import Trail

UTILIZATION: Final = 0.8
"""Share of a fleet's capacity that arrival may take; the rest is for bursts."""
WORST_UTILIZATION: Final = 0.95
"""Share of its capacity that arrival may take of the busiest worker."""
SPARE_PART: Final = 1.5
"""A partition's backlog is worked off by at most this part (1 to 1.5) of what its own arrival leaves of a worker."""
BEHIND_S: Final = 4.0
BEHIND_RECORDS: Final = 2.0
"""Work that waits for a worker, in seconds and in records, from which it is behind: less is chance."""
CATCH_UP_RECORDS: Final = 5.0
"""Records that a worker has time for while it catches up, however slow they are."""
FAST_S: Final = 5.0
STEADY_S: Final = 10.0
MINUTE_S: Final = 60.0
LONG_S: Final = 90.0
"""Least windows of the rates that show that a worker is behind, that growth follows, and that a fleet has to carry."""
STUCK_S: Final = 60.0
"""Least time without a commit after which a partition with a lag is stuck (Burrow's rule STALL), and its worker is not
busy with others."""
IN_FLIGHT: Final = 2.0
"""Multiple of the records that are on their way in the mean, beyond which a lag is a backlog: commits come in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load as far as it is known: that of all partitions if it is `complete`, the least that it can be otherwise.
    What waits behind a transaction that hangs is unknown.

    - `lags`: of known partitions; `slow`: rates over a minute and a half.
    - `rates`: records per second of each partition by the larger of a short and a long window.
    - `backlog`: what waits beyond the records on their way; `lately` by the observation before.
    - `counts`: the useful numbers of workers, `most` the bound of the spec among them; `dealing` who owns what.
    - `capacity`: records per second of one worker, None while it is unknown; `proven` is the largest rate that workers
      have handled on average: they can do no less, and a fleet may shrink by it.
    - `measured`: the newest measurement of the fleet's commits, None without one.
    - `stuck`: partitions without progress.
    - `held_back`: an open transaction keeps records from the group.
    - `safe_to_sleep`: an empty group continues where it was in every partition: by its commit, or from the start of a
      log that has no record.
    """

    lags: Mapping[Partition, int]
    slow: Rates
    rates: Mapping[Partition, float]
    fast: Mapping[Partition, float]
    backlog: Mapping[Partition, float]
    lately: Mapping[Partition, float] | None
    counts: UsefulCounts
    most: int
    dealing: Dealing
    capacity: float | None
    proven: float
    measured: Measurement | None
    catch_up_s: float
    stuck: frozenset[Partition]
    safe_to_sleep: bool
    complete: bool = True
    held_back: bool = False

    @property
    def total_lag(self) -> int:
        return sum(self.lags.values())

    @property
    def arrival(self) -> float:
        """Records per second in all partitions."""
        return sum(self.slow.arrival.values())

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing has arrived for a while."""
        waits = self.total_lag > 0 or self.held_back
        return self.complete and not waits and not any(self.slow.arrival.values())

    @property
    def every_rate_known(self) -> bool:
        return self.complete and self.lags.keys() <= self.slow.arrival.keys()

    @property
    def lag_grows(self) -> bool:
        """True if more has arrived for a while than was handled."""
        arrival, commits = self.slow.arrival, self.slow.commits
        return sum(arrival.get(key, 0.0) - commits.get(key, 0.0) for key in self.lags.keys() - self.stuck) > 0.0

    @property
    def workers(self) -> float | None:
        """The number of workers that the arrival takes, with what is for bursts; None while it is unknown."""
        if self.capacity is None:
            return None
        moving = sum(min(rate, self.capacity) for key, rate in self.rates.items() if key not in self.stuck)
        return moving / (self.capacity * UTILIZATION)

    def enough(self) -> int | None:
        """The least useful number that carries what arrives, with what is for bursts; None while it is unknown.

        The number that carries no more than the most can do is the most.
        """
        if self.idle:
            return 0
        capacity = self.capacity or self.proven
        if not capacity:
            return None
        found = self._least(self.rates, capacity, mean=UTILIZATION, worst=WORST_UTILIZATION)
        return min(self.counts.most, max(1, found) + len(self.stuck))

    def wanted(self) -> int | None:
        """The least useful number that also works off the backlog in time; None while a worker's capacity is unknown.

        It has nothing for bursts while it catches up, and no partition is worked off by more than one worker.
        """
        capacity = self.capacity
        if capacity is None:
            return None
        load = {}
        for key, rate in self.rates.items():
            spare = max(0.0, capacity - rate) / SPARE_PART
            load[key] = rate + min(self.backlog.get(key, 0.0) / self.catch_up_s, spare)
        return max(self.enough() or 0, self._least(load, capacity, mean=1.0, worst=1.0))

    def behind(self) -> tuple[int, ...]:
        """The workers, by ordinal, that had more work than they can catch up with at the last two observations."""
        if self.capacity is None or self.lately is None:
            return ()
        return tuple(
            place
            for place, owned in enumerate(self.dealing.owned)
            if self._is_behind(owned, self.backlog) and self._is_behind(owned, self.lately)
        )

    def _is_behind(self, owned: Sequence[Partition], backlog: Mapping[Partition, float]) -> bool:
        """True if a worker has more work than it can catch up with. A hot partition takes its part, and how much waits
        there is nothing that this worker could do less of elsewhere."""
        assert self.capacity is not None, "asked with a capacity"
        others = [key for key in owned if key not in self.hot and key not in self.stuck]
        hot = sum(key in self.hot for key in owned)
        waits = sum(backlog.get(key, 0.0) for key in (others if hot < 2 else owned))
        if waits < max(BEHIND_S * self.capacity, BEHIND_RECORDS):
            return False
        arrives = sum(self.fast.get(key, 0.0) for key in others) + hot * HOT_COST * self.capacity
        return arrives + waits / self.catch_up_s > self.capacity

    def is_alone(self, worker: int) -> bool:
        """True if a worker owns no more than one partition that has anything to do."""
        owned = self.dealing.owned[worker]
        return sum(self.backlog.get(key, 0.0) > 0.0 or self.rates.get(key, 0.0) > 0.0 for key in owned) <= 1

    @property
    def hot(self) -> frozenset[Partition]:
        """Partitions at which more arrives than one worker can handle that owns nothing else."""
        if self.capacity is None:
            return frozenset()
        most = WORST_UTILIZATION * self.capacity
        return frozenset(key for key, rate in self.rates.items() if rate > most and key not in self.stuck)

    @property
    def drains(self) -> bool:
        """True while more than half a second of the fleet's work waits: it keeps its size until that is done."""
        waits = sum(self.backlog.values())
        if self.capacity is None:
            return waits > 0.0
        return waits > 0.5 * self.capacity * max(len(self.dealing.owned), 1)

    def _least(self, load: Mapping[Partition, float], capacity: float, *, mean: float, worst: float) -> int:
        moving = {key: rate for key, rate in load.items() if key not in self.stuck}
        allowance = Allowance(mean=mean * capacity, worst=worst * capacity)
        found = least_count(self.dealing, self.counts.counts, moving, allowance)
        return self.counts.most if found is None else found


def read_load(facts: ScalingFacts, trail: Trail, now: float) -> tuple[Load | None, Trail]:
    """The load, and the trail with what was learnt from it; None while it is unknown."""
    observed, counts, lag = facts.observed, facts.partition_counts, facts.lag
    if observed is None or counts is None or lag is None or lag.total is None:
        return None, trail.forgotten()
    slow, fast = rates_over(window(observed.samples, LONG_S)), rates_from(observed.samples, FAST_S)
    steady, minute, long = (rates_from(observed.samples, least_s) for least_s in (STEADY_S, MINUTE_S, LONG_S))
    if slow is None or fast is None or steady is None or minute is None or long is None:
        return None, trail.forgotten()
    trail = trail.of_revision(facts.revision).with_reports(facts.reports, now)
    measured = measure_fleet(facts)
    trail = trail.with_measurement(measured)
    capacity = _capacity(facts, trail, now)
    lags = {key: value for key, value in lag.partitions.items() if value is not None}
    stuck = find_stuck(facts, observed) & lags.keys()
    rates = max((steady, minute, long), key=lambda each: sum(each.values()))
    useful = useful_counts(counts, facts.assignor)
    ceiling = facts.bounds.most
    catch_up_s = float(facts.spec.catch_up_seconds)
    waits = _Waits(facts, long, capacity, stuck)
    load = Load(
        lags=lags,
        slow=slow,
        rates=rates,
        fast=fast,
        backlog=waits.of(lags),
        lately=waits.of(_lags_of(observed.samples[-2])) if len(observed.samples) > 2 else None,
        counts=useful,
        most=useful.most if ceiling is None else useful.within(ceiling),
        dealing=dealing_of(counts, facts.assignor, owned_by(facts.members), rates),
        capacity=capacity,
        proven=trail.proven,
        measured=measured,
        catch_up_s=catch_up_s if capacity is None else max(catch_up_s, CATCH_UP_RECORDS / capacity),
        stuck=stuck,
        complete=lag.complete and not observed.hanging,
        held_back=bool(observed.open_transactions),
        safe_to_sleep=facts.from_start or lags.keys() <= observed.committed.keys(),
    )
    return load, trail


def _lags_of(sample: ProgressSample) -> dict[Partition, int]:
    both = sample.committed.keys() & sample.end_offsets.keys()
    return {key: max(0, sample.end_offsets[key] - sample.committed[key]) for key in both}


@dataclass(frozen=True, slots=True)
class _Waits:
    """The part of a lag that is backlog: beyond the records on their way, or those that may wait by `maxLagSeconds`."""

    facts: ScalingFacts
    rates: Mapping[Partition, float]
    capacity: float | None
    stuck: AbstractSet[Partition]

    def of(self, lags: Mapping[Partition, int]) -> dict[Partition, float]:
        way_s = self._way_s()
        acceptable_s = float(self.facts.spec.max_lag_seconds or 0)
        return {
            key: max(0.0, lag - max(IN_FLIGHT * rate * way_s + 1.0, rate * acceptable_s))
            for key, lag in lags.items()
            if key not in self.stuck
            for rate in (self.rates.get(key, 0.0),)
        }

    def _way_s(self) -> float:
        """The mean time from a record's arrival until its commit is seen."""
        observed = self.facts.observed
        assert observed is not None, "an observed load"
        at = [sample.at for sample in observed.samples[-2:]]
        handling = 1.0 / self.capacity if self.capacity else 0.0
        return (self.facts.commit_interval_s + (at[-1] - at[0])) / 2.0 + handling


def find_stuck(facts: ScalingFacts, observed: GroupObservation) -> frozenset[Partition]:
    """Partitions that had a lag and no commit for a minute, while everything else of their worker was kept up with.

    A worker that cannot keep up lets some of its partitions wait for longer than others: those are load. A record that
    its worker reports as in hand may take its time, and where no worker is heard, each may.
    """
    heard = [report.work for report in facts.reports if report.work is not None]
    seconds = STUCK_S if heard else max(STUCK_S, facts.timeout_s)
    samples = observed.samples
    recent = [sample for sample in samples if samples[-1].at - sample.at <= seconds + 1.0]
    rates = rates_over(recent) if span(samples) >= seconds else None
    if rates is None:
        return facts.reported_stuck
    moves = any(rate > 0.0 for rate in rates.commits.values())
    in_hand = {(each.topic, each.partition) for work in heard for each in work.in_hand}
    found = set(facts.reported_stuck)
    for owned in owned_by(facts.members) if moves else ():
        stands = {
            key
            for key in owned
            if rates.commits.get(key) == 0.0
            and key not in in_hand
            and all(sample.end_offsets.get(key, 0) > sample.committed.get(key, 0) for sample in recent)
        }
        others = [key for key in owned if key not in stands]
        if stands and not has_backlog(recent, others, rates, commit_interval_s=facts.commit_interval_s):
            found |= stands
    return frozenset(found)


def _capacity(facts: ScalingFacts, trail: Trail, now: float) -> float | None:
    """The remembered capacity of a worker, None while there is none of its revision.

    What is learnt from an observation is remembered by its decision and counts from the next one on: so a process that
    has just begun decides by the same. While one revision replaces another, nothing is remembered, and what is learnt
    counts.
    """
    kept = facts.memory.capacity
    if facts.revision is None:
        return trail.capacity(now) if kept is None else kept.rate
    return kept.rate if kept is not None and kept.revision == facts.revision else None


def describe(load: Load) -> str:
    capacity = "unknown" if load.capacity is None else f"{two_digits(load.capacity)} records/s"
    parts = [
        f"arrival {two_digits(load.arrival)} records/s",
        f"lag {load.total_lag}",
        f"capacity of a worker {capacity}",
    ]
    workers = load.workers
    if workers is not None:
        parts.append(f"so {two_digits(workers)} workers are needed")
    if load.hot:
        parts.append(f"hot: {name_partitions(sorted(load.hot))}, each with as much as one worker can do")
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
