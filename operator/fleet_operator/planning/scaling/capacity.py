"""The records per second that one worker can handle.

Workers report how long they were busy and how many records they completed: the quotient is what one of them can do if
it is busy all the time, with or without a backlog. Where no worker can be reached, the rate of those with a backlog
stands for it: only they are known to be busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fleet_operator.planning.observation import MemberObservation, ProgressSample, WorkerObservation
from fleet_operator.planning.scaling.facts import Partition, Rates, ScalingFacts, rates_over, span, window

BUSY_WINDOWS_S: Final = (30.0, 60.0, 120.0, 300.0, 900.0)
"""Windows of reports: the shortest one with enough records counts, so that a change of the handler shows at once and
slow records are not a matter of chance."""
RECORDS_ENOUGH: Final = 20
BUSY_ENOUGH_S: Final = 1.0
SILENT_S: Final = 120.0
"""Age of a worker's last report from which it says nothing about the present: calm ones are asked once a minute."""
DENSE_S: Final = 60.0
SPARSE_S: Final = 60.0
"""Age from which reports are kept in intervals, and these."""

SETTLED_S: Final = 2.0
"""Time after a rebalance from which samples count: the first commits of a new owner come later than its records."""
MEASURE_S: Final = 20.0
COMMITS_MEASURED: Final = 4.0
"""Least length of a measurement of commits, in seconds and in intervals between commits: commits come in steps."""
LOOK_S: Final = 5.0
"""Margin of the time between a record's handling and its commit as it is seen."""
KEPT: Final = 12
"""Measurements of commits that count, about four minutes of backlog. Their high percentile is the capacity, because
anything may slow a worker down and nothing speeds it up."""
PERCENTILE: Final = 0.9


class BusyReading(NamedTuple):
    """A worker's word at a time (epoch seconds): the seconds that it was busy, and the records that it completed,
    since its process began."""

    at: float
    busy_s: float
    records: int


Readings = Mapping[str, tuple[BusyReading, ...]]
"""Readings by pod, oldest first."""


def with_reports(known: Readings, reports: Iterable[WorkerObservation], now: float) -> Readings:
    """The readings with what the workers report by now. The readings of a process that restarted begin with it."""
    found = {pod: each for pod, each in known.items() if now - each[-1].at < BUSY_WINDOWS_S[-1]}
    for report in reports:
        if report.work is None:
            continue
        newest = BusyReading(report.heard_at, report.work.busy_seconds, report.work.records)
        before = found.get(report.pod, ())
        if before and newest.at <= before[-1].at:
            continue
        if before and (newest.records < before[-1].records or newest.busy_s < before[-1].busy_s):
            before = ()
        found[report.pod] = (*_thinned(before, newest.at), newest)
    return found


def _thinned(readings: tuple[BusyReading, ...], now: float) -> tuple[BusyReading, ...]:
    kept: list[BusyReading] = []
    for reading in readings:
        young = now - reading.at <= DENSE_S or reading is readings[-1]
        if young or not kept or reading.at - kept[-1].at >= SPARSE_S:
            kept.append(reading)
    first = max((place for place, each in enumerate(kept) if now - each.at >= BUSY_WINDOWS_S[-1]), default=0)
    return tuple(kept[first:])


def busy_capacity(readings: Readings, now: float) -> float | None:
    """Records per second of a worker that is busy all the time; None while too little is known.

    Over the longest window any record says something: a handler that takes minutes completes few.
    """
    records, busy_s = 0, 0.0
    for seconds in BUSY_WINDOWS_S:
        records, busy_s = 0, 0.0
        for first, last in _ends(readings, now, seconds):
            records += last.records - first.records
            busy_s += last.busy_s - first.busy_s
        if records >= RECORDS_ENOUGH and busy_s >= BUSY_ENOUGH_S:
            break
    return records / busy_s if records > 0 and busy_s >= BUSY_ENOUGH_S else None


def _ends(readings: Readings, now: float, seconds: float) -> Iterator[tuple[BusyReading, BusyReading]]:
    """The first and the last reading of each worker that has answered lately, about so many seconds apart."""
    for of_pod in readings.values():
        last = of_pod[-1]
        begin = max((place for place, each in enumerate(of_pod) if each.at <= last.at - seconds), default=0)
        if now - last.at <= SILENT_S and last.at > of_pod[begin].at:
            yield of_pod[begin], last


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measurement of commits over a window without a rebalance.

    - `busy`: mean rate of the workers that had a backlog all the time, None without any.
    - `commits`: rate of all workers together; `mean` that of one of them on average.
    - `mostly_busy`: at least half of the workers with partitions had a backlog, or records and no commit.
    """

    at: float
    busy: float | None
    commits: float
    mean: float
    mostly_busy: bool


def measure_fleet(facts: ScalingFacts, seconds: float = 0.0) -> Measurement | None:
    """The newest measurement of this fleet's workers, over `seconds` if that is more than the least length.

    None in a group that has not been Stable all the time.
    """
    since, observed = facts.stable_since, facts.observed
    if since is None or observed is None:
        return None
    return measure(
        observed.samples,
        facts.members,
        stable_since=since + SETTLED_S,
        commit_interval_s=facts.commit_interval_s,
        seconds=seconds,
    )


def measure(
    samples: Sequence[ProgressSample],
    members: Iterable[MemberObservation],
    *,
    stable_since: float,
    commit_interval_s: float,
    seconds: float = 0.0,
) -> Measurement | None:
    """The newest measurement, over `seconds` if that is more than the least length.

    None while the samples since `stable_since` (epoch seconds) are too few, and where commits in a partition of a
    member went back or began within them. A partition without a commit says nothing.
    """
    length = max(MEASURE_S, COMMITS_MEASURED * commit_interval_s, seconds)
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
