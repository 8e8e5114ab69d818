"""The load in whole workers: arrival, backlog, and the cost of a rebalance, partition by partition.

One partition can use no more than one worker. So what a hot partition asks for beyond that is left out and named, and a
partition that does not move counts nothing for growth. Both count a whole worker against shrinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fleet_operator.planning.observation import GroupTransition, MemberObservation, ProgressSample
from fleet_operator.planning.scaling.capacity import has_backlog
from fleet_operator.planning.scaling.rates import Partition, rates_over, span

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
    capacity: float,
    *,
    catch_up_s: float,
    acceptable_s: float,
    rebalance_s: float,
    stuck: AbstractSet[Partition],
) -> Demand:
    """The load for a worker's capacity, in records per second.

    Backlog is what has been waiting for longer than `acceptable_s` by its partition's arrival; it is to be worked off
    within `catch_up_s`, together with what piles up during a rebalance.
    """
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
            key for key in owned if rates.commits.get(key) == 0.0 and all(_waits(sample, key) for sample in recent)
        }
        others = [key for key in owned if key not in stands]
        if stands and not has_backlog(recent, others, rates, commit_interval_s=commit_interval_s):
            found |= stands
    return frozenset(found)


def _waits(sample: ProgressSample, key: Partition) -> bool:
    return sample.end_offsets.get(key, 0) > sample.committed.get(key, 0)


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
