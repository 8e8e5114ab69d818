"""The load of a group, worker by worker, and the numbers of workers that can carry it.

A fleet carries its load if each worker can handle the records that arrive in its partitions, and process their backlog
in time. For a different number of workers, the group's assignor determines the partitions of each worker. More workers
do not help a stuck partition, which makes no progress. They also do not help a hot partition, in which more records
arrive than one worker can handle. So a stuck partition does not count for growth, and decisions name hot partitions.
Before a fleet shrinks, each stuck or hot partition counts as the work of a whole worker.

Decision: docs/decisions/0058-load-by-worker.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.observation import GroupObservation, ProgressSample
from fleet_operator.planning.problem import name_some
from fleet_operator.planning.scaling.capacity import Measurement, has_backlog, measure_fleet
from fleet_operator.planning.scaling.dealing import (
    HOT_COST,
    Dealing,
    UsefulCounts,
    dealing_of,
    least_count,
    owned_by,
    useful_counts,
)
from fleet_operator.planning.scaling.facts import Partition, Rates, ScalingFacts, rates_from, rates_over, span, window
from fleet_operator.planning.scaling.history import ScalingHistory

UTILIZATION: Final = 0.8
"""Share of a fleet's capacity that arriving records may use; the rest is reserved for bursts."""
WORST_UTILIZATION: Final = 0.95
"""Share of the busiest worker's capacity that arriving records may use."""
SPARE_PART: Final = 1.5
"""Safety factor for the spare capacity of a worker. A partition's backlog is planned to be processed with at most
(worker capacity - arrival rate) / `SPARE_PART` records per second."""
BEHIND_S: Final = 4.0
BEHIND_RECORDS: Final = 2.0
"""A worker is behind only if at least `BEHIND_RECORDS` records wait for it, and if handling them takes at least
`BEHIND_S` seconds."""
CATCH_UP_RECORDS: Final = 5.0
"""A fleet has at least the time that one worker needs for this number of records to catch up. If `catchUpSeconds` is
less, this longer time applies."""
FAST_S: Final = 5.0
STEADY_S: Final = 10.0
MINUTE_S: Final = 60.0
LONG_S: Final = 90.0
"""Minimum windows of arrival rates, in seconds. Rates over `FAST_S` decide if a worker is behind; rates over `LONG_S`
determine the backlog. The fleet must carry the largest of the rates over `STEADY_S`, `MINUTE_S` and `LONG_S`."""
STUCK_S: Final = 60.0
"""Minimum seconds without a commit after which a partition with lag counts as stuck (like the status STALL of the
monitoring tool Burrow). The partition is not stuck if its worker is busy with other partitions."""
IN_FLIGHT: Final = 2.0
"""Lag counts as backlog only beyond this multiple of the mean number of records in flight. Smaller lag is normal,
because committed offsets advance in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The known load. If `complete`, it covers all partitions. Otherwise it is a lower bound: for example, the number
    of records behind a hanging transaction is unknown.

    - `lags`: the lag of each known partition. `slow`: arrival and commit rates over the last 90 s.
    - `rates`: records per second that arrive in each partition, measured over the window with the largest total.
      `fast`: the same rates, measured over the shortest window that has enough records.
    - `backlog`: waiting records of each partition, without those in flight. `lately`: the backlog at the previous
      observation; None without one.
    - `counts`: the useful numbers of workers. `most`: the largest of them that the bounds allow.
    - `capacity`: records per second of one worker, None while unknown.
    - `proven`: the largest measured mean rate of the workers in records per second; 0 without a measurement. A worker
      can handle at least this rate. While the capacity is unknown, a fleet may shrink according to this rate.
    - `measured`: the newest measurement of the fleet's commits; None without one.
    - `catch_up_s`: seconds within which a backlog should be worked off.
    - `held_back`: True if an open transaction hides records from the group.
    - `unsettled`: partitions in which only a worker can determine the offset where the group continues. In one case,
      the log end is below the committed offset. In the other case, the partition has no commit, and the spec does not
      tell workers to read it from its first record.
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
    unsettled: frozenset[Partition]
    complete: bool = True
    held_back: bool = False

    @property
    def total_lag(self) -> int:
        return sum(self.lags.values())

    @property
    def arrival(self) -> float | None:
        """Total records per second that arrive in all partitions, over 90 s; None without rates."""
        return sum(self.slow.arrival.values()) if self.slow.seconds else None

    @property
    def idle(self) -> bool:
        """True if no record waits and none has arrived in the last 90 s."""
        waits = self.total_lag > 0 or self.held_back
        return self.complete and not waits and not any(self.slow.arrival.values())

    @property
    def every_rate_known(self) -> bool:
        return self.complete and self.lags.keys() <= self.slow.arrival.keys()

    @property
    def lag_grows(self) -> bool:
        """True if more records arrived than were committed in the last 90 s, not counting stuck partitions."""
        arrival, commits = self.slow.arrival, self.slow.commits
        return sum(arrival.get(key, 0.0) - commits.get(key, 0.0) for key in self.lags.keys() - self.stuck) > 0.0

    @property
    def workers(self) -> float | None:
        """The number of workers needed for the arriving records, with a reserve for bursts; None while unknown."""
        if self.capacity is None or self.arrival is None:
            return None
        moving = sum(min(rate, self.capacity) for key, rate in self.rates.items() if key not in self.stuck)
        return moving / (self.capacity * UTILIZATION)

    def enough(self) -> int | None:
        """The smallest useful number of workers that handles the arriving records, with a reserve for bursts. If even
        the largest useful number is not enough, the largest. None while no rate of a worker is known."""
        if self.idle:
            return 0
        capacity = self.capacity or self.proven
        if not capacity:
            return None
        found = self._least(self.rates, capacity, mean=UTILIZATION, worst=WORST_UTILIZATION)
        return min(self.counts.most, max(1, found) + len(self.stuck))

    def wanted(self) -> int | None:
        """Return the smallest useful number of workers that also processes the backlog in time; None while a worker's
        capacity is unknown. The fleet needs no reserve for bursts while it processes a backlog. The part
        of a partition's backlog that one worker cannot process in time does not count."""
        capacity = self.capacity
        if capacity is None:
            return None
        load = {}
        for key, rate in self.rates.items():
            spare = max(0.0, capacity - rate) / SPARE_PART
            load[key] = rate + min(self.backlog.get(key, 0.0) / self.catch_up_s, spare)
        return max(self.enough() or 0, self._least(load, capacity, mean=1.0, worst=1.0))

    def behind(self) -> tuple[int, ...]:
        """Ordinals of the workers that cannot catch up with their work, according to each of the last two
        observations."""
        if self.capacity is None or self.lately is None:
            return ()
        return tuple(
            place
            for place, owned in enumerate(self.dealing.owned)
            if self._is_behind(owned, self.backlog) and self._is_behind(owned, self.lately)
        )

    def _is_behind(self, owned: Sequence[Partition], backlog: Mapping[Partition, float]) -> bool:
        """True if a worker has more work than it can catch up with.

        A hot partition counts as a fixed share of the worker's capacity (`HOT_COST`). Its backlog does not count,
        because the backlog would remain if other partitions moved to other workers."""
        assert self.capacity is not None, "callers check that the capacity is known"
        others = [key for key in owned if key not in self.hot and key not in self.stuck]
        hot = sum(key in self.hot for key in owned)
        waits = sum(backlog.get(key, 0.0) for key in (others if hot < 2 else owned))
        if waits < max(BEHIND_S * self.capacity, BEHIND_RECORDS):
            return False
        arrives = sum(self.fast.get(key, 0.0) for key in others) + hot * HOT_COST * self.capacity
        return arrives + waits / self.catch_up_s > self.capacity

    def is_alone(self, worker: int) -> bool:
        """True if a worker owns at most one partition with work."""
        owned = self.dealing.owned[worker]
        return sum(self.backlog.get(key, 0.0) > 0.0 or self.rates.get(key, 0.0) > 0.0 for key in owned) <= 1

    @property
    def hot(self) -> frozenset[Partition]:
        """Partitions in which more records arrive than one worker could handle if it owned no other partition."""
        if self.capacity is None:
            return frozenset()
        most = WORST_UTILIZATION * self.capacity
        return frozenset(key for key, rate in self.rates.items() if rate > most and key not in self.stuck)

    @property
    def drains(self) -> bool:
        """True while the backlog exceeds what the fleet handles in half a second; the fleet then does not shrink."""
        waits = sum(self.backlog.values())
        if self.capacity is None:
            return waits > 0.0
        return waits > 0.5 * self.capacity * max(len(self.dealing.owned), 1)

    def _least(self, load: Mapping[Partition, float], capacity: float, *, mean: float, worst: float) -> int:
        moving = {key: rate for key, rate in load.items() if key not in self.stuck}
        found = least_count(self.dealing, self.counts.counts, moving, mean=mean * capacity, worst=worst * capacity)
        return self.counts.most if found is None else found


def read_load(facts: ScalingFacts, history: ScalingHistory, now: float) -> tuple[Load | None, ScalingHistory]:
    """Return the load (None while unknown) and the history with the new reports and measurements."""
    observed, counts, lag = facts.observed, facts.partition_counts, facts.lag
    if observed is None or counts is None or lag is None or lag.total is None or facts.awaits_rates:
        return None, history.after_gap()
    slow, fast = rates_over(window(observed.samples, LONG_S)), rates_from(observed.samples, FAST_S)
    steady, minute, long = (rates_from(observed.samples, least_s) for least_s in (STEADY_S, MINUTE_S, LONG_S))
    if facts.wakes_without_rates:
        slow = Rates(seconds=0.0, arrival={}, commits={})
        fast = steady = minute = long = dict.fromkeys(lag.partitions, 0.0)
    if slow is None or fast is None or steady is None or minute is None or long is None:
        return None, history.after_gap()
    history = history.of_revision(facts.revision).with_reports(facts.reports, now)
    measured = measure_fleet(facts)
    history = history.with_measurement(measured)
    capacity = _capacity(facts, history, now)
    lags = {key: value for key, value in lag.partitions.items() if value is not None}
    stuck = find_stuck(facts, observed) & lags.keys()
    rates = max((steady, minute, long), key=lambda each: sum(each.values()))
    useful = useful_counts(counts, facts.assignor)
    ceiling = facts.bounds.most
    catch_up_s = float(facts.spec.catch_up_seconds)
    # Mean seconds from a record's arrival until its commit is observed.
    transit_s = (facts.commit_interval_s + span(observed.samples[-2:])) / 2.0 + (1.0 / capacity if capacity else 0.0)
    before = _lags_of(observed.samples[-2]) if len(observed.samples) > 2 else None
    load = Load(
        lags=lags,
        slow=slow,
        rates=rates,
        fast=fast,
        backlog=_backlog(facts, lags, long, stuck, transit_s),
        lately=_backlog(facts, before, long, stuck, transit_s) if before is not None else None,
        counts=useful,
        most=useful.most if ceiling is None else useful.within(ceiling),
        dealing=dealing_of(counts, facts.assignor, owned_by(facts.members), rates),
        capacity=capacity,
        proven=history.proven,
        measured=measured,
        catch_up_s=catch_up_s if capacity is None else max(catch_up_s, CATCH_UP_RECORDS / capacity),
        stuck=stuck,
        complete=lag.complete and not observed.hanging,
        held_back=bool(observed.open_transactions),
        unsettled=find_unsettled(facts, observed, lag.partitions),
    )
    return load, history


def _lags_of(sample: ProgressSample) -> dict[Partition, int]:
    both = sample.committed.keys() & sample.end_offsets.keys()
    return {key: max(0, sample.end_offsets[key] - sample.committed[key]) for key in both}


def _backlog(
    facts: ScalingFacts,
    lags: Mapping[Partition, int],
    rates: Mapping[Partition, float],
    stuck: AbstractSet[Partition],
    transit_s: float,
) -> dict[Partition, float]:
    """Return each partition's lag without the records in flight. `transit_s`: mean seconds for which a record is in
    flight. If `maxLagSeconds` permits more waiting records than are in flight, only lag beyond the permitted number
    counts."""
    acceptable_s = float(facts.spec.max_lag_seconds or 0)
    return {
        key: max(0.0, lag - max(IN_FLIGHT * rate * transit_s + 1.0, rate * acceptable_s))
        for key, lag in lags.items()
        if key not in stuck
        for rate in (rates.get(key, 0.0),)
    }


def find_stuck(facts: ScalingFacts, observed: GroupObservation) -> frozenset[Partition]:
    """Find the stuck partitions. A worker reports them as stuck, or they have lag and no commit for a minute although
    their worker keeps up with its other partitions.

    If a worker cannot keep up, only its reports count, because some of its partitions then wait longer anyway. A
    partition is not found by its commits while a worker reports that it is handling one of the partition's records
    (`in_hand`). If no worker reports, the minute is extended to the time that a handler may take (`timeout_s`)."""
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
        halted = {
            key
            for key in owned
            if rates.commits.get(key) == 0.0
            and key not in in_hand
            and all(sample.end_offsets.get(key, 0) > sample.committed.get(key, 0) for sample in recent)
        }
        others = [key for key in owned if key not in halted]
        if halted and not has_backlog(recent, others, rates, commit_interval_s=facts.commit_interval_s):
            found |= halted
    return frozenset(found)


def find_unsettled(
    facts: ScalingFacts, observed: GroupObservation, partitions: Iterable[Partition]
) -> frozenset[Partition]:
    """Find partitions in which it is uncertain where the group continues.

    Until a worker reads such a partition, its lag is unknown or 0 even if records arrive. So the group must not stay
    empty. A partition without a known end offset is left out: either it has no leader and no worker could read it, or
    its offsets have not been observed yet."""
    ended = observed.end_offsets.keys() & frozenset(partitions)
    without = frozenset() if facts.from_start else frozenset(ended - observed.committed.keys())
    return without | (ended & observed.beyond_end)


def _capacity(facts: ScalingFacts, history: ScalingHistory, now: float) -> float | None:
    """Return a worker's capacity from the stored state; None if the state has no capacity for the workers' revision.

    A new measurement is stored together with a decision, and used from the next decision on. So a new operator process
    makes the same decisions. While one revision replaces another, no new capacity is stored. During this time, the
    stored value is used or, without one, the measured value."""
    kept = facts.memory.capacity
    if facts.revision is None:
        return history.capacity(now) if kept is None else kept.rate
    return kept.rate if kept is not None and kept.revision == facts.revision else None


def describe(load: Load) -> str:
    capacity = "unknown" if load.capacity is None else f"{two_digits(load.capacity)} records/s"
    arrival = "unknown" if load.arrival is None else f"{two_digits(load.arrival)} records/s"
    parts = [
        f"arrival {arrival}",
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
    return name_some([f"{topic}-{number}" for topic, number in partitions])


def two_digits(value: float) -> str:
    """Format a number with two significant digits, without an exponent."""
    if value == 0.0:
        return "0"
    return f"{float(f'{value:.2g}'):.10f}".rstrip("0").rstrip(".")
