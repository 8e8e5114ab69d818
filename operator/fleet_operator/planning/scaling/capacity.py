"""The records per second that one worker handles, learnt while it has a backlog: only then is it busy all the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.observation import MemberObservation, ProgressSample
from fleet_operator.planning.scaling.facts import Partition, Rates, rates_over, span, window

MEASURE_S: Final = 20.0
COMMITS_MEASURED: Final = 4.0
"""Least length of a measurement, in seconds and in intervals between commits: commits come in steps."""
LOOK_S: Final = 5.0
"""Margin of the time between a record's handling and its commit as it is seen."""
KEPT: Final = 12
"""Measurements that count, about four minutes of backlog. Their high percentile is the capacity, because anything may
slow a worker down and nothing speeds it up."""
PERCENTILE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measurement over a window without a rebalance.

    - `busy`: mean rate of the workers that had a backlog all the time, None without any.
    - `commits`: rate of all workers together; `mean` that of one of them on average.
    - `mostly_busy`: at least half of the workers with partitions had a backlog, or records and no commit.
    """

    at: float
    busy: float | None
    commits: float
    mean: float
    mostly_busy: bool


def measure(
    samples: Sequence[ProgressSample],
    members: Iterable[MemberObservation],
    *,
    stable_since: float,
    commit_interval_s: float,
) -> Measurement | None:
    """The newest measurement; None while the samples since `stable_since` (epoch seconds) are too few, and where
    commits in a partition of a member went back or began within them. A partition without a commit says nothing."""
    length = max(MEASURE_S, COMMITS_MEASURED * commit_interval_s)
    chosen = window([sample for sample in samples if sample.at >= stable_since], length)
    if span(chosen) < length:
        return None
    rates = rates_over(chosen)
    assert rates is not None, "a window has a length"
    busy, total, owners, waiting = list[float](), 0.0, 0, 0
    for member in members:
        owned = [
            (topic, number)
            for topic, numbers in member.partitions.items()
            for number in numbers
            if (topic, number) in chosen[0].committed or (topic, number) in chosen[-1].committed
        ]
        if not owned:
            continue
        if any(key not in rates.commits for key in owned):
            return None
        owners += 1
        rate = sum(rates.commits[key] for key in owned)
        total += rate
        if has_backlog(chosen, owned, rates, commit_interval_s=commit_interval_s):
            busy.append(rate)
        waiting += _least_lag(chosen, owned) > rate * (commit_interval_s + LOOK_S)
    if not owners:
        return None
    return Measurement(
        at=chosen[-1].at,
        busy=sum(busy) / len(busy) if busy else None,
        commits=total,
        mean=total / owners,
        mostly_busy=2 * waiting >= owners,
    )


def has_backlog(
    samples: Sequence[ProgressSample], partitions: Iterable[Partition], rates: Rates, *, commit_interval_s: float
) -> bool:
    """True if the worker of these partitions was busy in all samples: more waited than the commit interval explains.

    A partition that stands keeps no worker busy.
    """
    moving = [key for key in partitions if rates.commits.get(key, 0.0) > 0.0]
    rate = sum(rates.commits[key] for key in moving)
    return bool(moving) and _least_lag(samples, moving) > rate * (commit_interval_s + LOOK_S)


def _least_lag(samples: Iterable[ProgressSample], partitions: Sequence[Partition]) -> int:
    """The smallest sum of lags at any sample; a partition that is unknown there counts nothing."""
    return min(
        sum(max(0, sample.end_offsets.get(key, 0) - sample.committed.get(key, 0)) for key in partitions)
        for sample in samples
    )


def percentile(measured: Sequence[float]) -> float | None:
    """The high percentile of measurements; None without any."""
    if not measured:
        return None
    ordered = sorted(measured)
    return ordered[min(len(ordered) - 1, int(PERCENTILE * len(ordered)))]
